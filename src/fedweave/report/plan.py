"""A latency plan as a terminal table, a figure and a page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table

from fedweave.report import units
from fedweave.report.style import CSS
from fedweave.report.svg import PALETTE, canvas, simplify, to_svg
from fedweave.solve import LatencyPlan
from fedweave.solve.clients import Clients
from fedweave.tables.files import write_file

Laws = Mapping[str, LatencyPlan]
SHOWN = 40  # clients shown in the terminal; the page and JSON list all of them
BAR = 8  # characters of the longest bar
_MARKS = {"planned": ("o", 26), "norm": ("x", 18), "uniform": ("_", 14), "ratio": ("+", 22)}


def lede(laws: Laws) -> str:
    """Return the plan in one sentence."""
    plan = laws["planned"]
    others = ", ".join(
        f"{name} {units.ratio(law.total_seconds / plan.total_seconds)}"
        for name, law in laws.items()
        if name != "planned"
    )
    return (
        f"Draw {plan.cohort_size} clients per round: {_rounds(plan)} rounds of {units.seconds(plan.round_seconds)}, "
        f"{units.seconds(plan.total_seconds)} in all. Other laws take longer: {others}."
    )


def _rounds(law: LatencyPlan) -> str:
    return f"{law.rounds:,}" if law.rounds < 10**9 else f"{law.rounds:.3g}"


BOUNDS = (
    "Totals are bounds, not forecasts: training usually needs far fewer rounds. Ratios between plans are meaningful. "
    "α decides how far slow clients are avoided: try several, and see what the plan does."
)


def remarks(laws: Laws, alpha: str, chosen: bool) -> list[str]:
    """Return what a reader of the plan must know; ``alpha`` says where α is from, ``chosen`` that M was searched."""
    plan = laws["planned"]
    n, weight = plan.probability.size, units.ratio(plan.largest_weight)
    found = [
        BOUNDS,
        alpha,
        f"The answer that is weighed most counts {weight} its data share, 1/(M p); --floor limits it.",
    ]
    if chosen and plan.cohort_size == n:
        found.append(
            f"warning: the best cohort size is {n:,}, as many draws as clients, the most that was tried. The bound "
            "knows no cost of many clients but time; give --cohort for smaller rounds."
        )
    return found


_LAWS = ("law", "draws", "rounds", "per round", "in all", "against the plan", "largest weight")
_CLIENTS = ("client", "latency", "samples", "G", "p", "by norm", "by ratio")


def _law_cells(name: str, law: LatencyPlan, plan: LatencyPlan) -> tuple[str, ...]:
    ratio = units.ratio(law.total_seconds / plan.total_seconds)
    times = (units.seconds(law.round_seconds), units.seconds(law.total_seconds))
    return (name, f"{law.cohort_size:,}", _rounds(law), *times, ratio, units.ratio(law.largest_weight))


def _client_cells(i: int, clients: Clients, laws: Laws) -> tuple[str, ...]:
    measured = (units.seconds(clients.latency[i]), f"{clients.samples[i]:,.0f}", units.plain(clients.bound[i]))
    return (clients.name[i], *measured, *(units.plain(laws[n].probability[i]) for n in ("planned", "norm", "ratio")))


def terminal(clients: Clients, laws: Laws) -> Group:
    """Return both tables; the clients come fastest first, with a bar for p."""
    first = Table(*_LAWS, box=box.SIMPLE_HEAD)
    for name, law in laws.items():
        first.add_row(*_law_cells(name, law, laws["planned"]))
    p, order = laws["planned"].probability, np.argsort(clients.latency, kind="stable")
    second = Table(*_CLIENTS, "", box=box.SIMPLE_HEAD)
    for table in (first, second):
        for column in table.columns[1:]:
            column.justify = "right"
    second.columns[-1].justify = "left"
    shown = order if order.size <= SHOWN else np.concatenate([order[: SHOWN // 2], order[-SHOWN // 2 :]])
    for place, i in enumerate(shown):
        if place == SHOWN // 2 and order.size > SHOWN:
            second.add_row(f"… {order.size - SHOWN:,} more")
        second.add_row(*_client_cells(i, clients, laws), "█" * max(1, round(BAR * p[i] / p.max())) if p[i] else "")
    return Group(first, second)


def picture(clients: Clients, laws: Laws) -> str:
    """Return p against latency as an inline SVG: the plan, and selection by norm, uniform and by ratio."""
    with canvas(9.4, 3.6) as figure:
        axes = simplify(figure.add_subplot(), grid="both")
        for color, (name, (marker, size)) in zip(PALETTE, _MARKS.items(), strict=False):
            p = laws[name].probability
            some = p > 0
            axes.scatter(clients.latency[some], p[some], s=size, marker=marker, color=color, linewidths=1.2, label=name)
        for scale, values in ((axes.set_xscale, clients.latency), (axes.set_yscale, laws["planned"].probability)):
            if values.max() > 20 * values[values > 0].min():
                scale("log")
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_major_formatter("{x:g}")  # the default formatter uses mathtext, which is off
        axes.set_title("Probability of a draw against latency")
        axes.set_xlabel("latency, seconds")
        axes.legend(frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
        names = "the plan, and selection by norm, uniform and by ratio"
        return to_svg(figure, "plan", f"Probability of {len(clients.name)} clients against latency: {names}")


def page(
    clients: Clients, laws: Laws, alpha: float, epsilon: float, command: str, remarks: Sequence[str] = (BOUNDS,)
) -> str:
    """Return the plan as one self-contained HTML page."""
    plan = laws["planned"]
    order = np.argsort(clients.latency, kind="stable")
    table = _html_table(_LAWS, [_law_cells(name, law, plan) for name, law in laws.items()])
    everyone = _html_table(_CLIENTS, [_client_cells(i, clients, laws) for i in order])
    first = (
        f"α = {alpha:g}, ε = {epsilon:g}. Expected from the latency paper's bound; every law uses its best cohort "
        "size, unless one was given. The largest weight is 1/(M p): how many times its data share an answer counts."
    )
    marked = (re.sub("`([^`]*)`", r"<code>\1</code>", escape(note)) for note in (first, *remarks))
    notes = "".join(f'<p class="note">{note}</p>' for note in marked)
    sections = (
        ("The plan against other laws", f"{table}{notes}"),
        ("Which clients are asked", f'<figure class="figure wide" tabindex="0">{picture(clients, laws)}</figure>'),
        ("All clients, fastest first", everyone),
        ("How to repeat it", f"<pre>{escape(command)}</pre>"),
    )
    body = "".join(f"<section><h2>{title}</h2>{content}</section>" for title, content in sections)
    title = f"Latency plan for {len(clients.name)} clients"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{CSS}</style></head><body><main>\n"
        f'<header><h1>{title}</h1><p class="lede">{escape(lede(laws))}</p></header>'
        f"{body}<footer>Written by fedweave.</footer></main></body></html>\n"
    )


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col"{_name(i)}>{escape(text)}</th>' for i, text in enumerate(head))
    lines = "".join(
        f'<tr><th scope="row" class="name">{escape(name)}</th>{"".join(f"<td>{escape(c)}</td>" for c in cells)}</tr>'
        for name, *cells in rows
    )
    return (
        '<div class="scroll" role="region" tabindex="0"><table class="compare">'
        f"<thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _name(column: int) -> str:
    return "" if column else ' class="name"'


def write(path: Path, content: str) -> None:
    """Write the page or the figure, creating the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content.encode())


def plain(
    clients: Clients, laws: Laws, alpha: float, epsilon: float, remarks: Sequence[str] = (BOUNDS,)
) -> dict[str, Any]:
    """Return everything as JSON-able data; ``fedweave run --plan`` reads it."""
    plan = laws["planned"]
    cost = {
        name: {k: v for k, v in law._asdict().items() if k != "probability"} | {"largest_weight": law.largest_weight}
        for name, law in laws.items()
    }
    people = [
        {
            "client": name,
            "latency_seconds": float(clients.latency[i]),
            "samples": int(clients.samples[i]),
            "gradient_bound": float(clients.bound[i]),
            "probability": float(plan.probability[i]),
            "norm": float(laws["norm"].probability[i]),
            "ratio": float(laws["ratio"].probability[i]),
        }
        for i, name in enumerate(clients.name)
    ]
    given = {"alpha": alpha, "epsilon": epsilon, "remarks": list(remarks)}
    return {**cost["planned"], **given, "laws": cost, "clients": people}
