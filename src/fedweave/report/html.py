"""One self-contained HTML page about a set of runs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from fedweave.report import figures, units
from fedweave.report.clients import Unevenness, label_counts, participation, ranked_scores, unevenness, untested
from fedweave.report.curves import TOTAL_BYTES
from fedweave.report.headline import headline, whose
from fedweave.report.repeat import repeat
from fedweave.report.style import CSS
from fedweave.report.summary import Groups, Row, by_method, compare_rows, final_class_accuracy, judged_by, shared_time
from fedweave.report.svg import Ink, inks
from fedweave.report.tables import comparison, legend, paired_costs, paired_differences, swatch
from fedweave.report.terminal import worst_clients
from fedweave.round.measures import LABELS as MEASURES
from fedweave.runs.results import Array, Result

_AXES = {"round": "Rounds", "clock": "Simulated time", "bytes_up": "Upload", TOTAL_BYTES: "Upload and download"}


def page(results: Sequence[Result], title: str | None = None) -> str:
    """Return the report as HTML: no network, readable from a file, on a phone, on paper and without scripts.

    First what is uneven and who is forgotten, then results, then how they came about.
    """
    groups, rows = by_method(results), compare_rows(results)
    colors = inks(groups)
    title = title or _title(list(groups))
    against = f"difference from {rows[0]['method']}, seed by seed" if rows else ""
    sections = [
        ("What is uneven", _labels(results)),
        ("Who is forgotten: accuracy per class", _classes(groups, colors)),
        ("Who is forgotten: the global model on each client's own test data", _client_scores(groups, colors)),
        ("Comparison" if len(rows) > 1 else "Numbers", comparison(rows, colors) if rows else ""),
        (f"{units.heading(rows[0]['metric']) if rows else ''}: {against}", paired_differences(rows, colors)),
        (f"Worst tenth of clients: {against}", paired_differences(rows, colors, "paired_clients")),
        (_costs_title(rows), paired_costs(rows, colors)),
        ("Learning curves", _curves(groups, colors, shared_time(rows) is not None)),
        ("Which clients take part", _participation(groups, colors)),
        ("How clients disagree and the server moves", _measures(groups, colors)),
        ("How to repeat it", repeat(groups) if rows else ""),
    ]
    return document(title, _header(title, rows), sections)


def document(title: str, header: str, sections: Sequence[tuple[str, str]]) -> str:
    """Return a page with these sections by their headings; empty ones are left out."""
    body = "".join(
        f"<section><h2>{escape(name, quote=False)}</h2>{content}</section>" for name, content in sections if content
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body><main>\n"
        f"{header}{body}<footer>Written by fedweave.</footer></main></body></html>\n"
    )


def _title(methods: Sequence[str]) -> str:
    if len(methods) > 4:
        return f"{len(methods)} methods compared"
    return ", ".join(methods) or "fedweave report"


def _header(title: str, rows: Sequence[Row]) -> str:
    return header(title, _scope(rows) if rows else "", headline(rows), whose(rows))


def header(title: str, scope: str, sentences: Sequence[str], note: str) -> str:
    """Return the head of a page: its title, the most important sentence in large letters, the others below it."""
    first, *more = sentences
    rest = f'<p class="more">{escape(" ".join(more))}</p>' if more else ""
    rest += f'<p class="note">{escape(note)}</p>' if note else ""
    size = f" <span>· {escape(scope)}</span>" if scope else ""
    return f'<header><h1>{escape(title)}{size}</h1><p class="lede">{escape(first)}</p>{rest}</header>'


def _costs_title(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    goal = units.goal(rows[0]["target"], rows[0]["metric"])
    return f"Cost until {goal}, difference from {rows[0]['method']}, seed by seed"


def _scope(rows: Sequence[Row]) -> str:
    """Return the extent of the runs: 2 seeds, 40 rounds."""
    seeds, longest = max(row["seeds"] for row in rows), max(row["rounds_max"] for row in rows)
    if seconds := shared_time(rows):
        return f"{count(seeds, 'seed')}, {units.seconds(seconds)} of simulated time"
    return f"{count(seeds, 'seed')}, {count(longest, 'round')}"


def _curves(groups: Groups, colors: dict[str, Ink], timed: bool) -> str:
    """Return tabs made of radio buttons, one for each axis: they need no script, and the arrow keys work.

    Where all runs had the same simulated time (``timed``), their rounds say little and come last.
    """
    (metric, *others), target = judged_by(groups)
    shown_metrics = dict.fromkeys((metric, *others, "accuracy", "loss", "objective"))
    buttons, panels = "", ""
    axes = dict(sorted(_AXES.items(), key=lambda axis: axis[0] == "round")) if timed else _AXES
    for x, name in axes.items():
        drawn = [figures.curves(groups, colors, y, x, target if y == metric else None) for y in shown_metrics]
        shown = [card(svg) for svg in drawn if svg]
        if not shown:
            continue
        key, checked = x.replace("_", "-"), "" if buttons else " checked"
        buttons += f'<input type="radio" name="axis" id="axis-{key}"{checked}>'
        buttons += f'<label for="axis-{key}">{name}</label>'
        row = f'<div class="{"pair" if len(shown) > 1 else "pair one"}">{"".join(shown)}</div>'
        panels += f'<div class="panel panel-{key}"><h3>{name}</h3>{row}</div>'
    if not panels:
        return ""
    key = legend(colors) if len(groups) > 1 else ""
    tabs = f'<div class="tabs" role="group" aria-label="Horizontal axis">{buttons}{panels}</div>'
    return f'<p class="note">{_reading(groups, metric)}</p>{key}{tabs}'


def _measures(groups: Groups, colors: dict[str, Ink]) -> str:
    """Return the curves of measures other than accuracy and loss, where a run has them."""
    drawn = [svg for name in MEASURES if (svg := figures.curves(groups, colors, name, "round"))]
    if not drawn:
        return ""
    note = (
        "Diversity is √(mean of ‖u‖²) over ‖mean of u‖ (FedAWARE eq. 3): 1 when all updates point the same "
        "way, large when they cancel."
    )
    key = legend(colors) if len(groups) > 1 else ""
    return f'<p class="note">{note}</p>{key}<div class="pair">{"".join(map(card, drawn))}</div>'


def _reading(groups: Groups, metric: str) -> str:
    note = "Against simulated time and bytes, each curve keeps its last measured value until the next evaluation."
    for same in figures.coinciding(groups, metric):
        names = f"{', '.join(same[:-1])} and {same[-1]}"
        note += f" The curves of {escape(names)} coincide: the later ones are dashed on top of the first."
    if all(len(runs) == 1 for runs in groups.values()):
        return note
    lines = "Lines: mean over the seeds. Bands: lowest to highest seed. Thin ends: seeds that ran longer than others."
    return f"{lines} {note}"


def _client_scores(groups: Groups, colors: dict[str, Ink]) -> str:
    scores = {m: s for m, runs in groups.items() if (s := ranked_scores(runs)) is not None}
    runs = [run for several in groups.values() for run in several]
    if not scores or len({run.summary["metric"] for run in runs}) > 1:
        return ""
    note = "At the last evaluation of the clients, each ranked by its own score."
    if any(len(several) > 1 for several in groups.values()):
        note += " Lines: mean over the seeds, rank by rank. Bands: lowest to highest seed."
    left_out = sorted(set(untested(runs)))
    if left_out and left_out[-1]:
        count = f"{left_out[0]:,} to {left_out[-1]:,}" if len(left_out) > 1 else f"{left_out[0]:,}"
        note += f" Left out: {count} of the clients, which have no test samples."
    note = escape(f"{note} {worst_clients(compare_rows(runs))}")
    key = legend({m: colors[m] for m in scores}) if len(groups) > 1 else ""
    svg = figures.client_scores(scores, colors, runs[0].summary["metric"])
    return f'<p class="note">{note}</p>{key}<div class="pair one">{card(svg)}</div>'


def _participation(groups: Groups, colors: dict[str, Ink]) -> str:
    parts = {m: p for m, runs in groups.items() if (p := participation(runs)) is not None}
    if not parts:
        return ""
    top = max(p.asked.max() for p in parts.values())
    cards = ""
    for i, (method, part) in enumerate(parts.items()):
        svg = figures.participation(part, method, colors[method], top, f"participation-{i}")
        text = f"answered {units.percent(part.answer_rate)} of the requests"
        text += f"; {part.never_asked} never asked" if part.never_asked else ""
        cards += card(svg, f"<h3>{swatch(colors[method])}{escape(method)}</h3><p>{text}</p>")
    note = "Per client, the share of rounds in which the server asked it (light) and it answered (dark)."
    return f'<p class="note">{note}</p><div class="small">{cards}</div>'


def _labels(results: Sequence[Result]) -> str:
    found = [(run, counts) for run in results if (counts := label_counts(run)) is not None]
    if not found:
        return ""
    run, counts = found[0]
    same = all(other.shape == counts.shape and np.array_equal(other, counts) for _, other in found)
    (clients, classes), total = counts.shape, int(counts.sum())
    seed = run.experiment.get("seed")
    note = f"{count(total, 'training sample')} on {count(clients, 'client')}, {classes} classes."
    uneven = unevenness([r for r in results if r.experiment.get("seed") == seed], clients)
    above = {}
    if uneven is not None:
        note += " " + _unevenness(uneven)
        if np.nanmax(uneven.steps) > np.nanmin(uneven.steps):
            above["Local steps a round, mean"] = uneven.steps
        if np.nanmax(uneven.unanswered) > 0:
            above["Requests without a usable answer, %"] = 100 * uneven.unanswered
    if not same or above:
        note += f" This is seed {'one' if seed is None else seed}"
        note += "; the other seeds partition the data differently." if not same else "."
    return f'<p class="note">{escape(note)}</p>{card(figures.labels(counts, _names(run), above), wide=True)}'


def _unevenness(uneven: Unevenness) -> str:
    """Say how far clients differ in work, simulated time and answers."""
    low, high = units.seconds(uneven.fastest), units.seconds(uneven.slowest)
    time = (
        f"every participation takes {low} of simulated time"
        if low == high
        else (f"a participation takes {low} to {high} of simulated time")
    )
    low, high = f"{100 * np.nanmin(uneven.unanswered):.0f}", f"{100 * np.nanmax(uneven.unanswered):.0f}"
    share = high if low == high else f"{low} to {high}"
    answers = f"{share} % of a client's requests in these runs brought no usable answer"
    answers = answers if np.nanmax(uneven.unanswered) else "every request brought a usable answer"
    return f"{units.heading(time)}; {answers}."


def _classes(groups: Groups, colors: dict[str, Ink]) -> str:
    found = {m: v for m, runs in groups.items() if (v := final_class_accuracy(runs)) is not None}
    if not found or len({v.size for v in found.values()}) > 1:
        return ""
    first = next(iter(groups.values()))[0]
    dots = len(found) > 1 and sum(v.size for v in found.values()) <= figures.MANY_DOTS
    mean = ", mean over the seeds" if any(len(runs) > 1 for runs in groups.values()) else ""
    note = f"At the last evaluation{mean}." + (" Each dot is a method." if dots else "")
    worst = [f"{m} {100 * np.nanmin(v):.0f} % (class {_worst(v, _names(first))})" for m, v in found.items()]
    note += f" Lowest: {', '.join(worst)}."
    svg = figures.class_accuracy(found, colors, _names(first))
    return f'<p class="note">{escape(note)}</p>{legend(colors) if dots else ""}{card(svg, wide=True)}'


def _worst(values: Array, names: Sequence[str] | None) -> str:
    """Return the name of the class with the lowest accuracy."""
    place = int(np.nanargmin(values))
    return names[place] if names and place < len(names) else str(place)


def _names(run: Result) -> list[str] | None:
    names = run.manifest.get("classes")
    return [str(name) for name in names] if isinstance(names, list | tuple) else None


def card(svg: str, head: str = "", wide: bool = False) -> str:
    """Return a figure in its frame."""
    extra = ' class="figure wide" tabindex="0"' if wide else ' class="figure"'
    return f"<figure{extra}>{head}{svg}</figure>"


def count(n: int, noun: str) -> str:
    """Return a number of things: 1 seed, 2 seeds."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
