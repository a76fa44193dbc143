"""The front page of the atlas: the whole ledger as one table."""

from __future__ import annotations

from html import escape

from fedweave.papers.atlas.contents import Contents, shown_difference
from fedweave.papers.atlas.parts import (
    DIFFERENCE,
    Cell,
    commands,
    counts,
    difference,
    fidelity,
    link,
    navigation,
    table,
    verdict,
)
from fedweave.papers.atlas.recipes import recipe
from fedweave.papers.atlas.style import SCRIPT, STYLE
from fedweave.papers.common.judge import Judged
from fedweave.papers.common.page import document
from fedweave.papers.common.results_page import count_run
from fedweave.report.units import seconds

TITLE = "Do five federated-learning papers hold?"
WORDS = """<p>An outcome is <b>confirmed</b>, <b>contradicted</b>, <b>undecided</b> or <b>not run</b>. Fidelity says how
close the setting was to the paper's: <b>published</b> (its own data, network, sizes and rounds), <b>faithful</b>
(smaller, with the same steps per epoch, spread of client sizes, participation and tuning), <b>toy</b> (less) and
<b>exact</b> (arithmetic). Questions of ours that no single paper asks have no published setting: their largest size is
the <b>full size</b>. Contradicted is never said at toy fidelity.</p>
<p>Claims were written down and frozen before they were run. Each seed redraws partition, first model, world and
cohorts; differences are taken seed by seed, with t intervals. Each paper has one <b>primary</b> claim, corrected by
Holm's method over the five; its other claims are <b>exploratory</b>, corrected by Benjamini and Hochberg's method;
questions of ours are families of their own. <b>Detectable</b> is the smallest difference that the seeds would have
shown, before correction.</p>"""
FILTERS = (("paper", 0), ("outcome", 2), ("fidelity", 3), ("family", 4))


def front_page(contents: Contents) -> str:
    """Return the page."""
    body = (
        f'<header>{navigation(contents, "index")}<h1 class="title">{TITLE}</h1>{_summary(contents)}</header>'
        f'<section><h2 id="primary">The five primary claims</h2>{_primary(contents)}</section>'
        f'<section><h2 id="counts">Outcomes by paper</h2>{counts(contents, contents.papers())}</section>'
        f'<section><h2 id="claims">Every claim</h2>{_ledger(contents)}</section>'
        f'<section><h2 id="words">What the words mean</h2>{WORDS}</section>'
        f'<section><h2 id="data">Data sets that could not be had</h2>{_data(contents)}</section>'
        f'<section><h2 id="again">How to repeat it</h2>{_again()}</section><script>{SCRIPT}</script>'
    )
    return document(TITLE, body, STYLE)


def _summary(contents: Contents) -> str:
    known = [record.cost for record in contents.records if record.cost and record.cost.unknown < record.cost.runs]
    costs = [cost.processor_seconds for cost in known]
    spent = (
        f" Summed over items, the runs with a known cost took {seconds(sum(costs))} of processor time." if costs else ""
    )
    return (
        f'<p class="lede">{count_run([(j.claim.beyond, j.verdict) for j, _ in contents.judged])}</p>'
        '<p class="more">Each claim of the papers, with section and sentence, judged by paired runs of one library.'
        f"{spent}</p>"
    )


def _primary(contents: Contents) -> str:
    claims = [j for paper in contents.papers() for j in contents.claims(paper) if j.claim.primary]
    rows = [_primary_row(contents, j) for j in claims]
    return table(("claim", "published", "outcome", "fidelity", *DIFFERENCE), rows)


def _primary_row(contents: Contents, judged: Judged) -> list[Cell]:
    claim = f'<a href="{link(judged)}">{escape(judged.claim.claim)}</a>'
    published = Cell(escape(judged.claim.published), name="published")
    return [Cell(claim), published, verdict(judged), fidelity(judged), *difference(contents, judged)]


def _ledger(contents: Contents) -> str:
    claims = [j for paper in contents.papers() for j in contents.claims(paper)]
    claims.sort(key=lambda j: j.verdict == "not run")
    rows = [_row(contents, j) for j in claims]
    controls = "".join(
        f'<label>{name}<select data-column="{column}"><option value="">any</option></select></label>'
        for name, column in FILTERS
    )
    return (
        f'<form class="filters" id="filters" hidden>{controls}<label>words<input type="search" name="words" '
        'placeholder="such as cifar-10 hybrid"></label></form><p class="note" id="shown" aria-live="polite"></p>'
        + table(("paper", "claim", "outcome", "fidelity", "family", DIFFERENCE[0]), rows, "list stack ledger")
    )


def _row(contents: Contents, judged: Judged) -> list[Cell]:
    mean, interval, _ = shown_difference(judged)
    numbers = "" if mean == "—" else mean if interval == "—" else f"{mean} ({interval})"
    numbers += escape(contents.remark(judged)) if numbers else ""
    if judged.verdict == "not run":
        reason, cost = contents.why_not_run(judged)
        numbers = f'<span class="note">{escape(reason)}{f" (cost: {escape(cost)})" if cost else ""}</span>'
    claim = f'<a href="{link(judged)}">{escape(judged.claim.claim)}</a>'
    return [
        Cell(contents.about[judged.claim.paper].name),
        Cell(claim),
        verdict(judged),
        fidelity(judged),
        Cell(judged.family),
        Cell(numbers, name=DIFFERENCE[0]),
    ]


def _data(contents: Contents) -> str:
    intro = (
        "<p>Claims that need these data sets say so. With the files in the folder FEDWEAVE_DATA their items run like "
        "all others.</p>"
    )
    parts = []
    for name in contents.notes.unavailable:
        command, checks = recipe(name)
        parts.append(
            f'<h3 id="data-{escape(name)}">{escape(name)}</h3>{commands(command)}<p class="note">{escape(checks)}</p>'
        )
    return intro + "".join(parts) if parts else "<p>None.</p>"


def _again() -> str:
    lines = (
        "fedweave list claims                                     # every claim with its verdict",
        "fedweave reproduce fedacs/fig7 --scale laptop --html fig7.html",
        "fedweave reproduce --random 3 --seed 7                   # repeat recorded items and compare",
        "fedweave reproduce --page atlas                          # these pages",
    )
    return (
        commands(*lines)
        + "<p>Reproductions can be interrupted and continued, on other machines too. The numbers behind every page are "
        "JSON files in the folder <code>results</code> of the repository.</p>"
    )
