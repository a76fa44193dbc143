"""The page of a sweep: the best points, the metric against every swept field, and all points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from fedweave.report import units
from fedweave.report.headline import headline
from fedweave.report.html import card, count, document, header
from fedweave.report.repeat import repeat
from fedweave.report.summary import Row, by_method, compare_rows
from fedweave.report.svg import Ink, inks
from fedweave.report.sweep_figure import against
from fedweave.report.sweep_terminal import field_columns, how_runs_ended, judged_on, score_cells
from fedweave.report.tables import legend, paired_differences, swatch
from fedweave.runs.grid import label_text, point_text

if TYPE_CHECKING:
    from fedweave.runs.sweep import Sweep


def page(sweep: Sweep) -> str:
    """Return the page as HTML: no script, no network, readable from a file, on a phone and on paper."""
    rows, groups = sweep.summary, by_method(sweep.results)
    colors = inks(groups)
    title = f"Sweep of {', '.join(groups) if len(groups) < 5 else f'{len(groups)} methods'}"
    tested = compare_rows(sweep.tested.results) if sweep.tested else []
    fields = field_columns(sweep)
    first = f"difference from {tested[0]['method']}, seed by seed" if tested else ""
    sections = [
        ("The best point of every method", _best(sweep, colors)),
        (f"The best points on the test set: {first}", paired_differences(tested, colors)),
        (f"Against {_and(list(fields.values()))}", _figures(sweep, rows, colors)),
        ("All points", _points(rows, fields, colors, judged_on(sweep))),
        ("How to repeat it", repeat(groups)),
    ]
    seeds, longest = max(row["seeds"] for row in rows), max(run.summary["rounds"] for run in sweep.results)
    scope = f"{count(len(rows), 'point')}, {count(seeds, 'seed')}, {count(longest, 'round')}"
    return document(title, header(title, scope, sentences(sweep, rows, tested), _note(sweep)), sections)


def sentences(sweep: Sweep, rows: Sequence[Row], tested: Sequence[Row]) -> list[str]:
    """Return what came out in a few sentences, the most important first."""
    best = sweep.best
    found = headline(tested) if tested else []
    if best and not tested:
        on = judged_on(sweep)
        found = [
            f"{_best_of_all(best, on)} {'' if sweep.validation else 'Points were chosen on the test set.'}".strip()
        ]
    places = [f"{method} at {point_text(row['point'])}" for method, row in best.items()]
    found += [f"Best points: {'; '.join(places)}."]
    if not best:
        found = ["At every point some run diverged, so there is no best one."]
    found += edges(best, rows)
    if ended := how_runs_ended(rows):
        found.append(ended)
    return found


def _best_of_all(best: Mapping[str, Row], on: str) -> str:
    higher = next(iter(best.values()))["higher_is_better"]
    row = (max if higher else min)(best.values(), key=lambda r: r["mean"])
    score = units.score(row["metric"])(row["mean"], None)
    return f"{row['method']} at {point_text(row['point'])} has the best {on} {row['metric']}, {score}."


def edges(best: Mapping[str, Row], rows: Sequence[Row]) -> list[str]:
    """Say where a best value is the smallest or largest that was tried: beyond it may lie a better one."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for method, row in best.items():
        for path, value in row["point"].items():
            tried = {other["point"].get(path) for other in rows if other["method"] == method}
            if len(tried) < 2 or not all(_is_number(v) for v in tried) or not value:
                continue
            if value in (min(tried), max(tried)):
                end = "largest" if value == max(tried) else "smallest"
                found.setdefault((path, label_text(value), end), []).append(method)
    names = {path: path.rpartition(".")[2] for path, *_ in found}
    return [
        f"The best {names[path]} of {_and(methods)}, {value}, is the {end} that was tried: try some beyond it."
        for (path, value, end), methods in found.items()
    ]


def _note(sweep: Sweep) -> str:
    metric = sweep.results[0].summary["metric"]
    if not sweep.validation:
        return (
            f"{units.heading(metric)} is that of the global model on the common test set. Points were chosen by it, so "
            "that its value at the best point is optimistic."
        )
    how = (
        f"Every point was trained without {100 * sweep.validation:.3g} % of the training samples and judged on them, "
        f"by the {metric} of the global model at the end."
    )
    if sweep.tested is None:
        return how
    return f"{how} The best points were then trained on all training samples, with other seeds, and tested."


def _best(sweep: Sweep, colors: Mapping[str, Ink]) -> str:
    best, on = sweep.best, judged_on(sweep)
    if not best:
        return ""
    columns = ["point", on, "95 % interval", *(["test", "95 % interval"] if sweep.tested else [])]
    lines = [
        (m, [point_text(r["point"]), *score_cells(r), *(score_cells(r["test"]) if r["test"] else [])], False)
        for m, r in best.items()
    ]
    shown = "<code>fedweave report</code> of the folder <code>best</code> in the sweep's folder shows their curves."
    return _table(columns, lines, colors, "Best points") + (f'<p class="note">{shown}</p>' if sweep.tested else "")


def _figures(sweep: Sweep, rows: Sequence[Row], colors: Mapping[str, Ink]) -> str:
    fields = field_columns(sweep)
    on = judged_on(sweep).capitalize()
    drawn = [against(rows, path, name, colors, on, f"against-{n}") for n, (path, name) in enumerate(fields.items())]
    note = "Rings: the best point of a method."
    if max(row["seeds"] for row in rows) > 1:
        note = f"Lines: mean over the seeds. Bands and bars: 95 % interval. {note}"
    if len(colors) > 1:
        note += " A curve that lies on another is dashed."
    if len(fields) > 1:
        note += " Each value of a field is shown with the best values of the other fields."
    cards = "".join(card(svg) for svg in drawn if svg)
    if not cards:
        return ""
    key = legend(colors) if len(colors) > 1 else ""
    return f'<p class="note">{note}</p>{key}<div class="{"pair" if len(fields) > 1 else "pair one"}">{cards}</div>'


def _points(rows: Sequence[Row], fields: Mapping[str, str], colors: Mapping[str, Ink], on: str) -> str:
    columns = [*fields.values(), f"{on} {rows[0]['metric']}", "95 % interval", "seeds"]
    lines: list[tuple[str, list[str], bool]] = []
    for row in rows:
        values = [label_text(row["point"][path]) if path in row["point"] else units.NONE for path in fields]
        lines.append((row["method"], [*values, *score_cells(row), str(row["seeds"])], row["best"]))
    note = (
        "Bold: the best point of a method. t intervals over the seeds; a point at which a run diverged cannot be best."
    )
    return _table(columns, lines, colors, "All points") + f'<p class="note">{note}</p>'


def _table(
    columns: Sequence[str], lines: Sequence[tuple[str, Sequence[str], bool]], colors: Mapping[str, Ink], label: str
) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = ""
    for method, cells, strong in lines:
        texts = [f"<b>{escape(cell)}</b>" if strong else escape(cell) for cell in cells]
        body += f'<tr><th scope="row" class="name">{swatch(colors[method])}{escape(method)}</th>'
        body += "".join(f"<td>{text}</td>" for text in texts) + "</tr>"
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table class="compare">'
        f'<thead><tr><th scope="col" class="name">method</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
