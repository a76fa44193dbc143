"""Small tables in HTML, as notebooks show objects: readable on light and dark themes, and escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

CELL = "padding: 2px 10px 2px 0; text-align: left; vertical-align: top; border: 0; font-weight: normal"
TABLE = "border: 0; border-collapse: collapse; margin: 0; background: none; color: inherit; font-size: inherit"
FAINT = "opacity: .7"


def html_table(
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    head: Sequence[str] = (),
    note: str = "",
    bold: Sequence[Sequence[bool]] = (),
) -> str:
    """Return rows of texts as a table; the first cell of a row names it, ``bold`` says which cells stand out."""

    def cell(text: str, faint: bool = False, strong: bool = False) -> str:
        inner = f"<b>{escape(text)}</b>" if strong else escape(text)
        return f'<td style="{CELL}{f"; {FAINT}" if faint else ""}">{inner}</td>'

    lines = ["".join(cell(text, faint=True) for text in head)] if head else []
    for i, row in enumerate(rows):
        strong = bold[i] if bold else [False] * len(row)
        lines.append("".join(cell(t, j == 0 and not head, strong[j]) for j, t in enumerate(row)))
    body = "".join(f'<tr style="background: none">{line}</tr>' for line in lines)
    return (
        '<div style="margin: 4px 0">'
        + (f"<div><b>{escape(title)}</b></div>" if title else "")
        + f'<table style="{TABLE}">{body}</table>'
        + (f'<div style="{FAINT}; max-width: 60em">{escape(note)}</div>' if note else "")
        + "</div>"
    )
