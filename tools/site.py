"""Build the documentation as a site, build/docs, without a network. Run: python tools/site.py [BUILD] (or: make docs)

Pages are staged in build/pages: those of docs/, the reference that is made from the code, and what their links lead to
outside of docs/; examples get a page that shows them. What is behind ``<!-- site:`` is only for the site.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import reference

ROOT = Path(__file__).parents[1]
BUILD = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build").absolute()
DOCS, STAGE, EXAMPLES = ROOT / "docs", BUILD / "pages", ROOT / "examples"
SHOWN = {".py": "python", ".csv": "text", ".ipynb": ""}  # files that get a page, and their language
LINK = re.compile(r"\[([^\]\n]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def stage() -> None:
    """Copy all pages and what they link to."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(DOCS, STAGE)
    for name, text in reference.pages().items():
        place = STAGE / "reference" / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        copy(page, STAGE / page.relative_to(DOCS))
    for page in (STAGE / "atlas").glob("*.html"):
        text, nav = page.read_text(encoding="utf-8"), '<nav aria-label="Pages">'
        page.write_text(text.replace(nav, f'{nav}<a href="../index.html">fedweave</a>', 1), encoding="utf-8")


def copy(source: Path, target: Path) -> None:
    """Copy a file, with the links of a page changed."""
    if target.exists() and DOCS not in source.parents:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    if source.suffix == ".md":
        text = re.sub(r"<!-- site: (.*?) -->", r"\1", source.read_text(encoding="utf-8"))
        target.write_text(relinked(text, source, target), encoding="utf-8")


def relinked(text: str, source: Path, target: Path) -> str:
    """Return a text whose links out of docs/ lead to copies; those to folders other than examples become text."""

    def changed(link: re.Match[str]) -> str:
        text, path, anchor = link.groups(default="")
        file = Path(os.path.normpath(source.parent / path))
        if file.is_dir() and file != EXAMPLES:
            return text
        inside = STAGE / (file.relative_to(DOCS) if DOCS in file.parents else "files" / file.relative_to(ROOT))
        if file == EXAMPLES:
            inside = list_examples(inside / "index.md")
        elif file.suffix in SHOWN:
            inside = show(file, inside)
        elif DOCS not in file.parents:
            copy(file, inside)
        return f"[{text}]({os.path.relpath(inside, target.parent)}{anchor})"

    return LINK.sub(changed, text)


def list_examples(target: Path) -> Path:
    """Write a page with a link to every example."""
    files = [file for file in sorted(EXAMPLES.iterdir()) if file.suffix in SHOWN]
    links = [f"- [{file.name}]({show(file, target.with_name(file.name)).name})" for file in files]
    target.write_text("\n".join(["# Examples\n", *links, ""]), encoding="utf-8")
    return target


def show(source: Path, copied: Path) -> Path:
    """Copy a file and write a page that shows it."""
    page, text = copied.with_suffix(".md"), source.read_text(encoding="utf-8")
    if page.exists():
        return page
    copy(source, copied)
    if source.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        shown = "\n\n".join(part if kind == "markdown" else f"```python\n{part}\n```" for kind, part in cells)
        shown = relinked(shown, source, page)
    else:
        shown = f"# {source.name}\n\n```{SHOWN[source.suffix]}\n{text}```"
    page.write_text(f"{shown}\n\nThe file itself: [{source.name}]({source.name}).\n", encoding="utf-8")
    return page


if __name__ == "__main__":
    stage()
    shutil.copyfile(ROOT / "zensical.toml", BUILD / "zensical.toml")
    build = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    if code := subprocess.run(build, cwd=BUILD).returncode:
        sys.exit(code)
    index = (BUILD / "docs" / "search.json").read_text(encoding="utf-8")  # for pages that are opened from their folder
    (BUILD / "docs" / "search.js").write_text(f"var __index = {index};\n", encoding="utf-8")
