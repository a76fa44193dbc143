"""The comparison as an HTML table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from fedweave.report import units
from fedweave.report.paired import paired_cells, paired_note
from fedweave.report.summary import Row, best, worse_at_the_end
from fedweave.report.svg import Ink


@dataclass(frozen=True)
class Column:
    """One quantity of the table; in ``ranked`` columns the best value is bold."""

    heading: str
    quantity: str
    write: units.Format
    ranked: bool = True


_LOSS = Column("loss", "loss", units.loss)
_OBJECTIVE = Column("training loss", "objective", units.loss)
_UNTIL = (
    Column("rounds", "rounds_to_target", units.rounds),
    Column("simulated time", "seconds_to_target", units.seconds),
    Column("upload", "bytes_to_target", units.size),
    Column("upload and download", "total_bytes_to_target", units.size),
)
# the total cost of a run is not ranked: it follows from the number of rounds that was set
_WHOLE = (
    Column("simulated time", "simulated_seconds", units.seconds, ranked=False),
    Column("upload", "bytes_up", units.size, ranked=False),
    Column("download", "bytes_down", units.size, ranked=False),
    Column("wall time", "wall_seconds", units.seconds, ranked=False),
)


def swatch(ink: Ink) -> str:
    """Return a short piece of a method's line."""
    dash = f' stroke-dasharray="{ink.dash}"' if ink.dash else ""
    line = f'<line x1="1" y1="5" x2="21" y2="5" stroke="{ink.color}" stroke-width="3.5"{dash}/>'
    return f'<svg class="swatch" viewBox="0 0 22 10" aria-hidden="true">{line}</svg>'


def legend(colors: Mapping[str, Ink]) -> str:
    """Return the key to all figures."""
    items = "".join(f"<li>{swatch(ink)}{escape(method)}</li>" for method, ink in colors.items())
    return f'<ul class="legend" aria-label="Methods">{items}</ul>'


def comparison(rows: Sequence[Row], colors: Mapping[str, Ink]) -> str:
    """Return the table without columns that are empty for all methods."""
    has_target = any(row["reached"] is not None for row in rows)
    metric = rows[0]["metric"]
    end = (Column(metric, "value", units.score(metric)), Column("best", "best", units.score(metric)))
    end = (*end, _LOSS) if metric != "loss" else end
    groups = [("At the end", _known((*end, _OBJECTIVE), rows)), ("Whole run", _known(_WHOLE, rows))]
    groups.insert(1, (f"{units.heading(metric)} on each client's own test data", _known(_clients(metric), rows)))
    if has_target:
        goal = units.goal(next((row["target"] for row in rows if row["target"] is not None), None), metric)
        groups.append((f"Until {goal}", _known(_UNTIL, rows)))
    groups = [(name, columns) for name, columns in groups if columns or name.startswith("Until")]
    head = '<tr><th scope="col" rowspan="2" class="name">method</th>'
    second = ""
    for name, columns in groups:
        until = name.startswith("Until")
        span = len(columns) + (_extra(rows) if until else 0)
        head += f'<th scope="colgroup" colspan="{span}" class="group">{escape(name)}</th>'
        second += _headings(columns, rows, until)
    body = "".join(_line(row, rows, groups, colors[row["method"]]) for row in rows)
    return (
        '<div class="scroll broad" role="region" aria-label="Comparison table" tabindex="0"><table class="compare">'
        f"<thead>{head}</tr><tr>{second}</tr></thead><tbody>{body}</tbody></table></div>"
        f'<p class="note">{escape(_note(rows))}</p>'
    )


def paired_differences(rows: Sequence[Row], colors: Mapping[str, Ink], key: str = "paired") -> str:
    """Return the differences to the first method as a table; nothing with one method or one seed."""
    known = [row for row in rows if row[key] and row[key]["low"] is not None]
    if not known:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("difference", "95 % interval", "verdict", "detectable"))
    body = "".join(
        f'<tr><th scope="row" class="name">{swatch(colors[row["method"]])}{escape(row["method"])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in paired_cells(row[key]))
        + "</tr>"
        for row in known
    )
    return (
        '<div class="scroll" role="region" aria-label="Paired differences" tabindex="0"><table class="compare">'
        f'<thead><tr><th scope="col" class="name">method</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="note">{escape(paired_note(known[0][key]))}</p>'
    )


def paired_costs(rows: Sequence[Row], colors: Mapping[str, Ink]) -> str:
    """Return the differences to the first method in what the target costs; nothing where no two can be compared."""
    known = [row for row in rows if any(cost["low"] is not None for cost in row["paired_costs"].values())]
    if not known:
        return ""
    head = "".join(f'<th scope="col">{column.heading}</th>' for column in _UNTIL)
    body = ""
    for row in known:
        body += f'<tr><th scope="row" class="name">{swatch(colors[row["method"]])}{escape(row["method"])}</th>'
        for column in _UNTIL:
            difference, interval, verdict, _ = paired_cells(row["paired_costs"][column.quantity])
            below = "".join(f'<span class="spread">{text}</span>' for text in (interval, verdict))
            body += f"<td>{difference} {below}</td>"
        body += "</tr>"
    note = "Negative: less than the first method. t intervals over the paired seeds, as above."
    if len(known) < len(rows) - 1:
        note += " Methods of which some seeds missed the target are left out."
    return (
        '<div class="scroll" role="region" aria-label="Differences in cost" tabindex="0"><table class="compare">'
        f'<thead><tr><th scope="col" class="name">method</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="note">{note}</p>'
    )


def _clients(metric: str) -> tuple[Column, ...]:
    write = units.score(metric)
    return (
        Column("mean", "client_mean", write),
        Column("std", "client_std", write, ranked=False),
        Column("worst tenth", "client_worst_decile", write),
        Column("worst", "client_worst", write),
    )


def _known(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    return [c for c in columns if any(row[c.quantity] is not None for row in rows)]


def _extra(rows: Sequence[Row]) -> int:
    """Return how many more columns the target has: reached, and with several methods the time ratio."""
    return 1 + (len(rows) > 1 and any(row["time_ratio"] is not None for row in rows))


def _headings(columns: Sequence[Column], rows: Sequence[Row], until: bool) -> str:
    cells = [c.heading for c in columns]
    if until:
        cells = ["reached", *cells]
        if _extra(rows) == 2:
            cells.append(f"simulated time vs {rows[0]['baseline']}")
    last = len(cells) - 1
    return "".join(f'<th scope="col"{_edge(i == 0, i == last)}>{escape(text)}</th>' for i, text in enumerate(cells))


def _edge(first: bool, last: bool = False) -> str:
    return ' class="first"' if first else ' class="last"' if last else ""


def _line(row: Row, rows: Sequence[Row], groups: Sequence[tuple[str, Sequence[Column]]], ink: Ink) -> str:
    out = f'<tr><th scope="row" class="name">{swatch(ink)}{escape(row["method"])}</th>'
    for name, columns in groups:
        cells = [_cell(row, rows, c) for c in columns]
        if name.startswith("Until"):
            cells = [escape(row["reached_of"] or units.NONE), *cells]
            if _extra(rows) == 2:
                cells.append(units.ratio(row["time_ratio"]))
        out += "".join(f"<td{_edge(i == 0)}>{cell}</td>" for i, cell in enumerate(cells))
    return out + "</tr>"


def _cell(row: Row, rows: Sequence[Row], column: Column) -> str:
    text = column.write(row[column.quantity], row[f"{column.quantity}_std"])
    winner = best(rows, column.quantity) if column.ranked else None
    mean, plus, spread = text.partition(" ± ")
    mean = f"<b>{mean}</b>" if winner is row else mean
    return f'{mean} <span class="spread">±&nbsp;{spread}</span>' if plus else mean


def _note(rows: Sequence[Row]) -> str:
    seeds = sorted({row["seeds"] for row in rows})
    many = seeds[-1] > 1
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    parts = [
        f"Mean ± standard deviation over {count} seeds." if many else "One seed each." if len(rows) > 1 else "One seed."
    ]
    if any(0 < (row["reached"] or 0) < row["seeds"] for row in rows):
        parts.append("Costs until the target are over the seeds that reached it.")
    if len(rows) > 1:
        parts.append("Bold: best mean" + (", whether or not the spread allows a verdict." if many else "."))
    if worse := worse_at_the_end(rows):
        parts.append(f"{worse}.")
    if len(rows) > 1 and any(row["reached"] for row in rows):  # else the headline says that none did
        without = [row for row in rows if row["time_ratio"] is None and row["reached"] is not None and row["note"]]
        parts += dict.fromkeys(map(_no_ratio, without))
    return " ".join(parts)


def _no_ratio(row: Row) -> str:
    """Say why a method has no time ratio: because of itself, or because of the first method, as all have none then."""
    own = row["method"] != row["baseline"] and not row["reached"]
    return (
        f"No time ratio for {row['method']}: it never reached the target." if own else f"No time ratio: {row['note']}."
    )
