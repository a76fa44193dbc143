"""The documentation as a site: it builds without a warning, and can be read from a folder without a server."""

import json
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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    build = tmp_path_factory.mktemp("build")
    built = subprocess.run([sys.executable, "tools/site.py", str(build)], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return build / "docs"


def test_reference_atlas_and_examples_are_linked(site):
    home = set(Page(site / "index.html").addresses)
    assert {f"reference/{name}.html" for name in ("python", "commands", "methods")} <= home
    assert "atlas/index.html" in home
    assert all("../index.html" in Page(path).addresses for path in (site / "atlas").glob("*.html"))
    assert "files/examples/index.html" in home
    listed = set(Page(site / "files" / "examples" / "index.html").addresses)
    assert {f"{path.stem}.html" for path in (ROOT / "examples").glob("*.py")} <= listed
    notebook = (site / "files" / "examples" / "first_steps.html").read_text(encoding="utf-8")
    assert 'id="an-experiment"' in notebook
    assert 'href="own_sampler.html"' in notebook


def test_no_script_is_missing_where_a_page_is_opened_from_its_folder(site):
    text = (site / "search.js").read_text(encoding="utf-8")
    name, _, index = text.rstrip(";\n").partition(" = ")
    assert name == "var __index"
    assert json.loads(index) == json.loads((site / "search.json").read_text(encoding="utf-8"))


def test_every_link_within_the_site_leads_to_a_file(site):
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
