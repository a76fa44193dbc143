"""The page of one paper: its claims, item by item, with figures, tables, cost, errata and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from fedweave.papers.atlas.contents import Contents
from fedweave.papers.atlas.parts import DIFFERENCE, Cell, commands, counts, difference, navigation, table, verdict
from fedweave.papers.atlas.style import STYLE
from fedweave.papers.common.drawn import DrawnLine
from fedweave.papers.common.judge import Judged, shown_fidelity
from fedweave.papers.common.ledger import BEYOND
from fedweave.papers.common.page import document, figures
from fedweave.papers.common.page import table as plain_table
from fedweave.papers.common.recorded import Recorded
from fedweave.report.svg import compact
from fedweave.report.units import seconds

PRINTED = ("where", "published")  # of a claim of a paper
SHOWN = ("ratio ", "difference ", "detectable ", "the same in every run")  # evidence that has cells of its own
FIGURE_POINTS = 7000  # of all lines on a page, which keeps the atlas small however much is recorded


def paper_page(contents: Contents, paper: str) -> str:
    """Return the page of a paper."""
    about, records = contents.about[paper], contents.records_of(paper)
    run = "".join(_item(contents, record, i, _points(records)) for i, record in enumerate(records))
    body = (
        f'<header>{navigation(contents, paper)}<h1 class="title">{escape(about.name)}</h1>'
        f'<p class="more">{escape(about.title)} ({escape(about.authors)}).</p>{_primary(contents, paper)}</header>'
        f'<section><h2 id="counts">Outcomes</h2>{counts(contents, [paper])}</section>{_errata(contents, paper)}'
        f'<section><h2 id="run">What was run</h2>{run or "<p>Nothing yet.</p>"}</section>{_left(contents, paper)}'
    )
    return document(f"{about.name}: which claims hold?", body, STYLE)


def _points(records: Sequence[Recorded]) -> int:
    """Return how many points each line of the page gets."""
    lines = sum(len(panel.lines) for r in records for panels in (r.panels or {}).values() for panel in panels)
    return min(max(FIGURE_POINTS // max(lines, 1), 25), 80)


def _primary(contents: Contents, paper: str) -> str:
    found = [j for j in contents.claims(paper) if j.claim.primary]
    return "".join(
        f'<div class="primary"><p class="note">The primary claim, {escape(j.claim.where)}</p><p>{escape(j.claim.claim)}'
        f'</p><p><span class="{verdict(j).kind}">{j.verdict}</span>{f", {j.shown_fidelity}" if j.seeds else ""}'
        f"{': ' + escape(j.evidence) if j.evidence else ''}</p>{_open(contents, j)}</div>"
        for j in found
    )


def _open(contents: Contents, judged: Judged) -> str:
    entry = contents.open_of(judged)
    if entry is None:
        return ""
    return (
        f"<p><b>What was tried.</b> {escape(entry.tried)} <b>What would decide it.</b> {escape(entry.would_decide)}</p>"
    )


def _errata(contents: Contents, paper: str) -> str:
    found = contents.about[paper].errata
    if not found:
        return ""
    rows = [
        [Cell(escape(e.where)), Cell(escape(e.found)), Cell(f"<code>{escape(e.check)}</code>", name="shown by")]
        for e in found
    ]
    listed = table(("where", "what", "shown by"), rows)
    return f'<section><h2 id="errata">What does not hold as printed</h2>{listed}</section>'


def _item(contents: Contents, record: Recorded, number: int, points: int) -> str:
    shown = f"{record.shows[:1].upper()}{record.shows[1:]}."
    differ = {name: v for name, v in record.settings.items() if v["used"] != v["published"]}
    full = "full size" if record.item.startswith(f"{BEYOND}/") else "published"
    settings = [{"setting": n, full: v["published"], "used": v["used"]} for n, v in differ.items()]
    judged = contents.of_record(record)
    remarks = "".join(
        f"<p><i>{escape(j.claim.claim)}</i></p>{_open(contents, j)}" for j in judged if contents.open_of(j)
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in record.notes)
    drawn = figures(_thinned(record, points), f"f{number}")
    return (
        f'<section id="{escape(record.item)}.{record.scale}"><h3>{escape(record.item)}</h3><p>{escape(shown)}</p>'
        f'<p class="note">{escape(_facts(record))}</p>{compact(drawn)}{_claims(contents, judged)}{remarks}'
        f"<details open><summary>Numbers</summary>{plain_table(record.rows)}{notes}</details>"
        f"{_details(f'Settings that differ from the {full} ones', plain_table(settings, 'compare texts'))}"
        f"{commands(_command(record))}</section>"
    )


def _details(title: str, content: str) -> str:
    return f"<details open><summary>{title}</summary>{content}</details>" if content else ""


def _command(record: Recorded) -> str:
    tune = " --tune" if record.tuned else ""
    return f"fedweave reproduce {record.item} --scale {record.scale}{tune} --record results"


def _facts(record: Recorded) -> str:
    fidelity = shown_fidelity(record.item, record.fidelity)
    facts = [f"scale {record.scale}", f"{record.seeds} seeds", f"fidelity {fidelity}", record.date]
    cost = "cost not recorded"
    if record.cost and record.cost.unknown < record.cost.runs:
        part = f" ({record.cost.unknown} runs unknown)" if record.cost.unknown else ""
        cost = f"{record.cost.runs} runs, {seconds(record.cost.processor_seconds)} of processor time{part}"
    several = len(record.origins or ()) > 1
    how = [
        f"seeds {', '.join(map(str, o.seeds))} by code {o.code[:8]} on {o.processor['name']}"
        for o in record.origins or ()
    ]
    return "; ".join([*facts, cost, *(how if several else [record.processor.get("name", "")])])


def _claims(contents: Contents, judged: Sequence[Judged]) -> str:
    if not judged:
        return ""
    ours = judged[0].claim.paper == BEYOND  # nobody printed these claims
    rows = [
        [
            Cell(f"{escape(j.claim.claim)}{' <b>(primary)</b>' if j.claim.primary else ''}"),
            *([] if ours else [Cell(escape(getattr(j.claim, name)), name=name) for name in PRINTED]),
            verdict(j),
            *difference(contents, j),
            Cell(_reason(j), name="judged by"),
        ]
        for j in judged
    ]
    head = ("claim", *(() if ours else PRINTED), "outcome", *DIFFERENCE, "judged by")
    return table(head, rows, ids=[j.claim.id for j in judged])


def _reason(judged: Judged) -> str:
    """Return the rest of the evidence: number of seeds, corrected p, and what else was said."""
    said = [part.strip() for part in judged.evidence.split(";")]
    rest = [part for part in said if not part.startswith(SHOWN)]
    known = judged.difference is None or judged.seeds < judged.claim.seeds  # what was said begins with the seeds
    seeds = [] if known else [f"{judged.seeds} seeds"]
    return escape("; ".join([judged.family, *seeds, *rest]))


def _left(contents: Contents, paper: str) -> str:
    """Return the claims that were not run, by reason and item, with what running them would take."""
    claims = [j for j in contents.claims(paper) if j.verdict == "not run"]
    if not claims:
        return ""
    body = ""
    for item, each in groupby(sorted(claims, key=lambda j: j.claim.item), key=lambda j: j.claim.item):
        same = list(each)
        why = {contents.why_not_run(j) for j in same}
        reasons = "; ".join(sorted(f"{reason}{f' (cost: {cost})' if cost else ''}" for reason, cost in why))
        listed = "".join(f'<li id="{escape(j.claim.id)}">{escape(j.claim.claim)}{_printed(j)}</li>' for j in same)
        body += (
            f"<h3>{escape(item)}</h3><p>{escape(reasons[:1].upper() + reasons[1:])}. "
            f'<code>fedweave reproduce {escape(item)}</code></p><ul class="claims-left">{listed}</ul>'
        )
    return f'<section><h2 id="left">What was not run</h2>{body}</section>'


def _printed(judged: Judged) -> str:
    if judged.claim.paper == BEYOND:
        return ""
    published = f"; published: {escape(judged.claim.published)}" if judged.claim.published else ""
    return f' <span class="note">{escape(judged.claim.where)}{published}</span>'


def _thinned(record: Recorded, points: int) -> Recorded:
    """Return a record with fewer points on its lines."""

    def fewer(line: DrawnLine) -> DrawnLine:
        step = max(len(line.x) - 1, 1) / max(min(points, len(line.x)) - 1, 1)
        chosen = sorted({round(i * step) for i in range(min(points, len(line.x)))})
        parts = {name: [getattr(line, name)[i] for i in chosen] for name in ("x", "mean", "low", "high")}
        return line.model_copy(update=parts)

    panels = {
        column: [panel.model_copy(update={"lines": [fewer(line) for line in panel.lines]}) for panel in each]
        for column, each in (record.panels or {}).items()
    }
    return record.model_copy(update={"panels": panels if record.panels is not None else None})
