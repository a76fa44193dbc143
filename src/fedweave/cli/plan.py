"""The command ``fedweave plan``: latency-optimal probabilities for a real fleet."""

from __future__ import annotations

import json as json_text
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from fedweave.cli.clients_csv import compare_laws, read_clients
from fedweave.cli.options import Json, Text, help_text
from fedweave.core.settings import BadInput
from fedweave.tables.files import writable

EXAMPLE = "Example: fedweave plan clients.csv --epsilon 0.1 --html plan.html"


def plan(
    clients: Annotated[Path, Parameter(metavar="CLIENTS.csv", help="client,latency_seconds,samples,gradient_bound")],
    /,
    *,
    epsilon: Annotated[Text, help_text("The squared gradient norm to reach; required.", "E")] = None,
    alpha: Annotated[
        Text, help_text("2LΓ of the bound: smoothness times twice the gap to the optimal loss. [1]", "A")
    ] = None,
    cohort: Annotated[Text, help_text("Draws per round. [the best of 1 to all]", "M")] = None,
    floor: Annotated[Text, help_text("Least probability of every client. [0]", "P")] = None,
    exhaustive: Annotated[
        bool, Parameter(negative="", show_default=False, help="Solve for every cohort size, not only promising ones.")
    ] = False,
    html: Annotated[Path | None, help_text("Also write a page with a figure; FILE.svg: the figure alone.")] = None,
    json: Json = False,
) -> None:
    """Plan for a real fleet: each client's probability, the cohort size and the number of rounds.

    The total is the expected seconds until the squared gradient is EPSILON, by the bound of the latency paper, compared
    with norm (p ∝ data × gradient), uniform and ratio (p ∝ data) selection.
    """
    problems: list[str] = []
    fleet = None
    try:
        fleet = read_clients(clients)
    except BadInput as e:
        problems += e.problems
    wanted = _number("--epsilon", epsilon, "a number > 0", problems, lambda v: 0 < v < math.inf)
    weight = _number("--alpha", alpha or "1", "a number >= 0", problems, lambda v: 0 <= v < math.inf)
    size = _number("--cohort", cohort or "1", "a whole number > 0", problems, lambda v: v >= 1 and v.is_integer())
    least = _number("--floor", floor or "0", "a number in [0, 1/N]", problems, lambda v: 0 <= v <= 1)
    if fleet and least * len(fleet.name) > 1 and least <= 1:
        problems.append(f"--floor must leave something to choose: at most 1/{len(fleet.name)} here. Got {floor!r}.")
    if problems or fleet is None:
        raise BadInput(*problems)
    laws = compare_laws(fleet, weight, wanted, int(size) if cohort else None, least, exhaustive)
    from fedweave.report import plan as report  # loads matplotlib, which is slow: only after the input is checked

    if html is not None:
        command = shlex.join(["fedweave", *sys.argv[1:]])
        alone = html.suffix == ".svg"
        with writable(html):
            content = report.picture(fleet, laws) if alone else report.page(fleet, laws, weight, wanted, command)
            report.write(html, content)
    if json:
        print(json_text.dumps(report.plain(fleet, laws, weight, wanted), allow_nan=False))
        return
    print(report.lede(laws))
    Console(markup=False, emoji=False).print(report.terminal(fleet, laws))  # a client's name may look like markup
    if html is not None:
        print(f"page: {html}")


def _number(option: str, text: str | None, rule: str, problems: list[str], good: Callable[[float], bool]) -> float:
    """Return the number in ``text``; add what is wrong with it to ``problems``."""
    if text is None:
        problems.append(f"{option} is required: {rule}.")
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or not good(value):
        problems.append(f"{option} must be {rule}. Got {text!r} instead.")
    return value
