"""The documentation as a site: it builds without a warning, and can be read from a folder without a server."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("zensical")
ROOT = Path(__file__).parents[1]


class Page(HTMLParser):
    """The ids of a page and the addresses that it names."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.addresses = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}
        self.addresses += [found[name] for name in ("href", "src") if found.get(name)]


def test_every_link_within_the_site_leads_to_a_file(tmp_path):
    built = subprocess.run([sys.executable, "tools/site.py", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    site = tmp_path / "docs"
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert {site / "index.html", site / "guide.html", site / "atlas" / "index.html"} <= pages.keys()
    wrong = []
    for path, page in pages.items():
        for address in page.addresses:
            url = urlsplit(address)
            if url.scheme or url.netloc:
                continue
            file = (path.parent / unquote(url.path)).resolve() if url.path else path
            anchor = unquote(url.fragment)
            if not file.is_file() or (anchor and file in pages and anchor not in pages[file].ids):
                wrong.append((str(path.relative_to(site)), address))
    assert not wrong
