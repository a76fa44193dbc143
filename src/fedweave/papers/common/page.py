"""One self-contained HTML page about reproduced items: figures, tables, verdicts, settings.

Sections are made of recorded outcomes (``Outcome.recorded``), be they just computed or read from a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedweave.papers.common.drawing import colors_of, draw
from fedweave.papers.common.drawn import DrawnPanel
from fedweave.papers.common.judge import Judged, shown_fidelity
from fedweave.papers.common.recorded import Recorded
from fedweave.papers.common.scale import caution
from fedweave.report.style import CSS
from fedweave.report.tables import legend

VERDICTS = """
.verdict { font-weight: 600; } .confirmed { color: #0a7d4f; } .contradicted { color: #b3261e; }
@media (prefers-color-scheme: dark) { .confirmed { color: #5fd39a; } .contradicted { color: #ff8a80; } }
.claims td, .claims th { white-space: normal; text-align: left; } .claims td:first-child { min-width: 18rem; }
.claims td:last-child { min-width: 16rem; } .texts td, .texts th { white-space: normal; text-align: left; }
"""
LEGEND = (
    "Lines: mean over seeds; bands: lowest to highest seed; bars: mean with its 95 % interval; diamonds: published."
)


def page(outcomes: Sequence[Recorded], judged: Mapping[str, Sequence[Judged]], title: str) -> str:
    """Return the page: no script, no network. ``judged`` are the claims of each item, after correction."""
    body = "".join(section(outcome, judged.get(outcome.item, ()), f"f{i}") for i, outcome in enumerate(outcomes))
    return document(title, f"<header><h1>{escape(title)}</h1></header>{body}", VERDICTS)


def document(title: str, body: str, style: str) -> str:
    """Return a page that needs no other file."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}{style}</style></head><body><main>\n{body}"
        f"<footer>Written by fedweave. {LEGEND}</footer></main></body></html>\n"
    )


def section(outcome: Recorded, judged: Sequence[Judged], key: str) -> str:
    """Return an item's figures, table, claims and settings; ``key`` begins the ids of its figures."""
    facts = f"scale {outcome.scale}, {outcome.seeds} seeds, fidelity: {shown_fidelity(outcome.item, outcome.fidelity)}"
    warned = f"<p><b>{text}</b></p>" if (text := caution(outcome.scale, outcome.fidelity)) else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in outcome.notes)
    settings = [{"setting": name, **values} for name, values in outcome.settings.items()]
    return (
        f'<section><h2 id="{escape(outcome.item)}">{escape(outcome.item)}</h2><p>{escape(outcome.shows)}</p>'
        f'<p class="note">{escape(facts)}</p>{warned}{figures(outcome, key)}{table(outcome.rows)}{_claims(judged)}'
        f"{table(settings, 'compare texts')}{notes}</section>"
    )


def figures(outcome: Recorded, key: str) -> str:
    """Return the figures of every column of an item."""
    if outcome.panels is None:
        return '<p class="note">Curves were not recorded when this item was run.</p>'
    return "".join(_column(outcome, column, panels, key) for column, panels in outcome.panels.items())


def _column(outcome: Recorded, column: str, panels: Sequence[DrawnPanel], key: str) -> str:
    colors = colors_of(panels)
    drawn = "".join(
        f'<figure class="figure">{draw(panel, colors, f"{key}-{column}-{i}")}</figure>'
        for i, panel in enumerate(panels)
    )
    heading = f"<h3>{escape(outcome.columns[column].capitalize())}</h3>" if len(outcome.columns) > 1 else ""
    named = {name: ink for name, ink in colors.items() if name}
    labels = legend(named) if len(named) > 1 else ""
    return f'{heading}{labels}<div class="{"pair" if len(panels) > 1 else "pair one"}">{drawn}</div>'


def table(rows: Sequence[Mapping[str, Any]], kind: str = "compare") -> str:
    """Return rows of the same cells as a table that scrolls sideways where it is too wide."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row.values()) + "</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _claims(judged: Sequence[Judged]) -> str:
    if not judged:
        return ""
    body = "".join(
        f"<tr><td>{escape(j.claim.claim)} {'<b>(primary)</b>' if j.claim.primary else f'({j.family})'}</td>"
        f"<td>{escape(j.claim.where)}</td><td>{escape(j.claim.published or '—')}</td>"
        f'<td class="verdict {j.verdict}">{j.verdict}, {j.shown_fidelity}</td><td>{escape(j.evidence)}</td></tr>'
        for j in judged
    )
    head = "".join(f"<th>{name}</th>" for name in ("claim", "where", "published", "verdict", "evidence"))
    return (
        '<div class="scroll"><table class="compare claims"><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
