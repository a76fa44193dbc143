"""One self-contained HTML page about reproduced items: figures, tables, verdicts, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedweave.papers.common.drawing import colors_of, draw
from fedweave.papers.common.judge import Judged
from fedweave.papers.common.study import Outcome, compare_settings
from fedweave.report.style import CSS
from fedweave.report.tables import legend

VERDICTS = """
.verdict { font-weight: 600; } .confirmed { color: #0a7d4f; } .contradicted { color: #b3261e; }
@media (prefers-color-scheme: dark) { .confirmed { color: #5fd39a; } .contradicted { color: #ff8a80; } }
.claims td, .claims th { white-space: normal; text-align: left; } .claims td:first-child { min-width: 18rem; }
.claims td:last-child { min-width: 16rem; }
"""


def page(outcomes: Sequence[Outcome], judged: Mapping[str, Sequence[Judged]], title: str) -> str:
    """Return the page: no script, no network. ``judged`` are the claims of each item, after correction."""
    body = "".join(_section(outcome, judged.get(outcome.study.name, ()), i) for i, outcome in enumerate(outcomes))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}{VERDICTS}</style></head><body><main>\n"
        f"<header><h1>{escape(title)}</h1></header>{body}"
        "<footer>Written by fedweave. Lines: mean over seeds; bands: lowest to highest seed; bars: mean with its 95 % "
        "interval; diamonds: published.</footer></main></body></html>\n"
    )


def _section(outcome: Outcome, judged: Sequence[Judged], number: int) -> str:
    study, figures = outcome.study, ""
    for column in outcome.records:
        panels = outcome.panels(column)
        colors = colors_of(panels)
        drawn = "".join(
            f'<figure class="figure">{draw(panel, colors, f"f{number}-{column}-{i}")}</figure>'
            for i, panel in enumerate(panels)
        )
        heading = f"<h3>{outcome.named(column).capitalize()}</h3>" if len(outcome.records) > 1 else ""
        named = {name: ink for name, ink in colors.items() if name}
        key = legend(named) if len(named) > 1 else ""
        figures += f'{heading}{key}<div class="{"pair" if len(panels) > 1 else "pair one"}">{drawn}</div>'
    facts = f"scale {outcome.scale}, {study.seeds[outcome.scale]} seeds, fidelity: {study.fidelity(outcome.scale)}"
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in study.notes)
    return (
        f'<section><h2 id="{escape(study.name)}">{escape(study.name)}</h2><p>{escape(study.shows)}</p>'
        f'<p class="note">{escape(facts)}</p>{figures}{_table(outcome.rows())}{_claims(judged)}'
        f"{_settings(compare_settings(study, outcome.scale))}{notes}</section>"
    )


def _table(rows: Sequence[Mapping[str, Any]], kind: str = "compare") -> str:
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
        f'<td class="verdict {j.verdict}">{j.verdict}, {j.fidelity}</td><td>{escape(j.evidence)}</td></tr>'
        for j in judged
    )
    head = "".join(f"<th>{name}</th>" for name in ("claim", "where", "published", "verdict", "evidence"))
    return (
        '<div class="scroll"><table class="compare claims"><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _settings(settings: Mapping[str, Mapping[str, Any]]) -> str:
    return _table([{"setting": name, **values} for name, values in settings.items()])
