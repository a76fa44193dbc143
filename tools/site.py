"""Build the documentation as a site, build/docs, without a network. Run: python tools/site.py [BUILD] (or: make docs)

Pages are staged in build/pages: those of docs/, the reference that is made from the code, and what their links lead to
outside of docs/, such as examples.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import reference

ROOT = Path(__file__).parents[1]
BUILD = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build").absolute()
DOCS, STAGE = ROOT / "docs", BUILD / "pages"
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


def copy(source: Path, target: Path) -> None:
    """Copy a file; links of a page that leave docs/ lead to copies, those to folders become text."""
    if target.exists() and DOCS not in source.parents:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    if source.suffix != ".md":
        return

    def changed(link: re.Match[str]) -> str:
        text, path, anchor = link.groups(default="")
        file = Path(os.path.normpath(source.parent / path))
        if file.is_dir():
            return text
        inside = STAGE / (file.relative_to(DOCS) if DOCS in file.parents else "files" / file.relative_to(ROOT))
        if DOCS not in file.parents:
            copy(file, inside)
        return f"[{text}]({os.path.relpath(inside, target.parent)}{anchor})"

    target.write_text(LINK.sub(changed, source.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    stage()
    shutil.copyfile(ROOT / "zensical.toml", BUILD / "zensical.toml")
    sys.exit(subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=BUILD).returncode)
