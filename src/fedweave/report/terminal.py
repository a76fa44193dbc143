"""The comparison as a table for the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedweave.report import units
from fedweave.report.headline import diverged_runs
from fedweave.report.paired import paired_cells, paired_note
from fedweave.report.summary import TO_TARGET, Row, best, compare_rows, worse_at_the_end
from fedweave.runs.results import Result

COSTS = dict(zip(TO_TARGET, ("rounds", "sim. time", "upload", "up and down"), strict=True))
WHOLE = "bytes"  # by which the headline compares
WIDTH = 100
LEFT_OUT_FIRST = ("upload", "loss", "rounds", "wall", "× time")  # columns, where not all of them fit
Column = tuple[str, str, Callable[[Row], str]]  # heading, the quantity that is ranked, the text of a cell


def terminal_table(results: Sequence[Result], width: int = WIDTH) -> Table:
    """Return the comparison as a rich table; the best mean of a column is bold.

    Where the width is too small for all columns, those that matter least are left out, and the caption names them.
    """
    rows = compare_rows(results)
    columns, left_out = known_columns(rows), list[str]()
    table = _means(rows, columns)
    for heading in LEFT_OUT_FIRST:
        if Console(width=10 * WIDTH).measure(table).maximum <= width:
            break
        if len(fewer := [column for column in columns if column[0] != heading]) < len(columns):
            columns, left_out = fewer, [*left_out, heading]
            table = _means(rows, columns)
    table.caption = caption(rows, [heading for heading, _, _ in columns], left_out)
    return table


def _means(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption_justify="left", show_edge=False)
    table.padding, table.pad_edge = (0, 0, 0, 1), False  # 100 columns with the longest names and spreads
    longest = max((len(row["method"]) for row in rows), default=0)
    table.add_column("method", overflow="fold", min_width=min(max(longest, 6), 24), max_width=24)
    for heading, _, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    winners = {quantity: best(rows, quantity) if quantity else None for _, quantity, _ in columns}
    for row in rows:
        cells = [Text(cell(row), "bold" if winners[quantity] is row else "") for _, quantity, cell in columns]
        table.add_row(Text(row["method"]), *cells)
    return table


def comparison_tables(results: Sequence[Result], width: int = WIDTH) -> list[Table]:
    """Return the means, the differences with their verdicts, the costs and the clients, as far as there are any."""
    found = (terminal_table(results, width), *(make(results) for make in (paired_table, cost_table, client_table)))
    return [table for table in found if table is not None]


def as_text(tables: Sequence[Table]) -> str:
    """Return tables as plain text, at most 100 columns wide."""
    texts = list[str]()
    for table in tables:
        Console(file=(text := io.StringIO()), width=WIDTH, color_system=None).print(table)
        texts.append("\n".join(map(str.rstrip, text.getvalue().splitlines())).strip("\n"))
    return "\n\n".join(texts)


def paired_table(results: Sequence[Result]) -> Table | None:
    """Return the differences to the first method, seed by seed, with their verdicts; None with one method or seed."""
    rows = [row for row in compare_rows(results) if row["paired"] and row["paired"]["low"] is not None]
    if not rows:
        return None
    first = rows[0]["paired"]
    title = f"{first['metric']}: difference from {first['baseline']}, seed by seed"
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.caption, table.caption_justify = paired_note(first), "left"
    for heading in ("method", "difference", "95 % interval", "verdict", "detectable"):
        table.add_column(heading, justify="left" if heading in ("method", "verdict") else "right", overflow="fold")
    for row in rows:
        table.add_row(Text(row["method"]), *paired_cells(row["paired"]))
    return table


def cost_table(results: Sequence[Result]) -> Table | None:
    """Return what the target costs beside the first method, seed by seed; None where no two can be compared."""
    rows = [row for row in compare_rows(results) if row["paired_costs"]]
    costs = [(row, cost) for row in rows for cost in row["paired_costs"].values() if cost["low"] is not None]
    if not costs:
        return None
    goal = units.goal(rows[0]["target"], rows[0]["metric"])
    title = f"cost until {goal}: difference from {costs[0][1]['baseline']}, seed by seed"
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    for heading in ("method", "cost", "difference", "95 % interval", "verdict"):
        table.add_column(heading, justify="right" if heading[0] in "d9" else "left", overflow="fold")
    for row, cost in costs:
        first = cost is next(iter(row["paired_costs"].values()))
        table.add_row(Text(row["method"] if first else ""), COSTS[cost["metric"]], *paired_cells(cost)[:3])
    return table


def client_table(results: Sequence[Result]) -> Table | None:
    """Return the scores on each client's own test data as a table; None where no run has them."""
    rows = [row for row in compare_rows(results) if row["client_mean"] is not None]
    if not rows:
        return None
    metric = rows[0]["metric"]
    title = f"{metric} of the global model on each client's own test data"
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("method", overflow="fold", max_width=24)
    columns = {
        "mean": "client_mean",
        "std": "client_std",
        "worst tenth": "client_worst_decile",
        "worst": "client_worst",
    }
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = (units.score(metric)(row[name], row[f"{name}_std"]) for name in columns.values())
        table.add_row(Text(row["method"]), *cells)
    table.caption, table.caption_justify = Text(worst_clients(rows)) or None, "left"
    return table


def worst_clients(rows: Sequence[Row]) -> str:
    """Name each method's worst client, as far as runs tell."""
    said = list[str]()
    for row in rows:
        if not (worst := row["worst_client"]):
            continue
        who = [worst["name"]] if "name" in worst else []
        who.append(f"client {worst['client']}")
        if (count := worst.get("test_samples")) is not None:  # older runs do not say
            who.append(f"{count:,} test sample{'s' * (count != 1)}")
        name = f"{who[0]} ({', '.join(who[1:])})" if who[1:] else who[0]
        seed = f" of seed {worst['seed']}" if row["seeds"] > 1 else ""
        same = f", as {worst['others']} other{'s' * (worst['others'] != 1)}" if worst["others"] else ""
        said.append(f"{row['method']} {name}{seed}{same}")
    return f"Worst: {'; '.join(said)}." if said else ""


def known_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of a comparison, without those that are empty for all methods."""
    return [column for column in _columns(rows) if any(column[2](row) != units.NONE for row in rows)]


def _columns(rows: Sequence[Row]) -> list[Column]:
    metric = rows[0]["metric"] if rows else "accuracy"
    quality: list[Column] = [(metric, "value", lambda r: units.score(metric)(r["value"], r["value_std"]))]
    if all(row["value"] is None for row in rows):
        quality.append(("training loss", "objective", lambda r: units.loss(r["objective"], r["objective_std"])))
    if metric != "loss":
        quality.append(("loss", "loss", lambda r: units.loss(r["loss"])))
    if any(row["reached"] is not None for row in rows):
        return [
            *quality,
            ("reached", "", lambda r: r["reached_of"] or units.NONE),
            ("rounds", "rounds_to_target", lambda r: units.rounds(r["rounds_to_target"])),
            ("sim. time", "seconds_to_target", lambda r: units.seconds(r["seconds_to_target"])),
            ("× time", "", lambda r: units.ratio(r["time_ratio"])),
            ("upload", "bytes_to_target", lambda r: units.size(r["bytes_to_target"])),
            (WHOLE, "", lambda r: units.size(r["bytes_up"] + r["bytes_down"])),
        ]
    return [
        *quality,
        ("sim. time", "", lambda r: units.seconds(r["simulated_seconds"])),
        ("upload", "", lambda r: units.size(r["bytes_up"])),
        ("wall", "", lambda r: units.seconds(r["wall_seconds"])),
    ]


def caption(rows: Sequence[Row], shown: Sequence[str] | None = None, left_out: Sequence[str] = ()) -> str:
    """Say what the numbers of a comparison are; ``shown`` are the columns, if not all known ones."""
    shown = [heading for heading, _, _ in known_columns(rows)] if shown is None else shown
    seeds = {row["seeds"] for row in rows}
    parts = ["mean ± std over the seeds" if max(seeds, default=1) > 1 else "one seed each"]
    if any(row["value"] is not None for row in rows):
        on = "validation split" if any(row["validation"] for row in rows) else "common test set"
        parts.append(f"{rows[0]['metric']}: of the global model on the {on}")
    target = next((row["target"] for row in rows if row["target"] is not None), None)
    if any(row["reached"] is not None for row in rows):
        goal = units.goal(target, rows[0]["metric"])
        until = [heading for heading in shown if heading in ("reached", "rounds", "sim. time", "upload")]
        parts.append(f"“{until[0]}” to “{until[-1]}”: until {goal}, over the seeds that got there")
        parts += [f"“× time”: sim. time beside {rows[0]['baseline']}"] if "× time" in shown else []
        parts.append(f"“{WHOLE}”: up and down, of the whole run")
        parts += [worse] if (worse := worse_at_the_end(rows)) else []
    if left_out:
        parts.append(f"left out for lack of width: {', '.join(left_out)}")
    if ended := sum(row["ended_early"] for row in rows):
        parts.append(
            f"{ended} of {sum(row['seeds'] for row in rows)} runs ended at the target or by patience, as asked"
        )
    if short := sum(row["short"] for row in rows):
        all_ = sum(row["seeds"] for row in rows)
        parts.append(f"{short} of {all_} runs had done all their rounds before the time was over: give more rounds")
    if any(row["diverged"] for row in rows):
        parts.append(f"diverged, so lower the learning rate: {diverged_runs(rows)}")
    if refused := sum(row["refused_rounds"] for row in rows):
        parts.append(f"updates were refused in {refused} of {sum(row['abandoned_of'] for row in rows)} rounds")
    unfinished = sum(row["unfinished"] for row in rows)
    if unfinished:
        parts.append(f"{unfinished} of {sum(row['seeds'] for row in rows)} runs stopped early")
    if abandoned := sum(row["abandoned"] for row in rows):
        parts.append(f"{abandoned} of {sum(row['abandoned_of'] for row in rows)} rounds were abandoned")
    return "; ".join(parts) + "."
