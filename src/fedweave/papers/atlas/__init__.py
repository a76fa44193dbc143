"""The atlas: every claim of the papers with its verdict, as pages made of the recorded outcomes alone.

``fedweave reproduce --page FOLDER`` writes it. Nothing is computed, and the pages need no network.
"""

from __future__ import annotations

from pathlib import Path

from fedweave.papers.atlas.contents import read_contents
from fedweave.papers.atlas.front import front_page
from fedweave.papers.atlas.paper import paper_page
from fedweave.tables.files import write_file


def pages(folder: Path) -> dict[str, str]:
    """Return the pages of the outcomes recorded in a folder, by the names of their files."""
    contents = read_contents(folder)
    return {"index.html": front_page(contents)} | {f"{p}.html": paper_page(contents, p) for p in contents.papers()}


def write_pages(folder: Path, target: Path) -> list[Path]:
    """Write the pages of the outcomes recorded in a folder and return their paths."""
    target.mkdir(parents=True, exist_ok=True)
    found = {target / name: page for name, page in pages(folder).items()}
    for path, page in found.items():
        write_file(path, page.encode())
    return list(found)
