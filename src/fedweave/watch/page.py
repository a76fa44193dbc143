"""The files of the page: its skeleton, its script and its style sheet, which is the report's and a little more."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from fedweave.report.style import CSS, DASHES, PALETTE

TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


@cache
def page_file(kind: str) -> bytes:
    """Return the page itself (html), its script (js) or its style sheet (css)."""
    text = (files("fedweave.watch") / f"page.{kind}").read_text(encoding="utf-8")
    if kind == "css":
        text = CSS + text
    if kind == "js":
        text = f"const PALETTE = {json.dumps(PALETTE)}, DASHES = {json.dumps(DASHES)};\n{text}"
    return text.encode()
