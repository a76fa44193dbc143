"""The command ``fedweave plan``: latency-optimal probabilities for a real fleet, and the option ``run --plan``."""

from __future__ import annotations

import json as json_text
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from fedweave.aggregate import InverseProbability
from fedweave.cli.clients_csv import Measured, compare_laws, read_clients, read_run
from fedweave.cli.options import Text
from fedweave.cli.parameters import Json, help_text
from fedweave.core.settings import BadInput
from fedweave.core.typed_json import Checked, parse_json
from fedweave.runs.callbacks import Callback, Running
from fedweave.runs.experiment import Experiment
from fedweave.sample import Fixed
from fedweave.tables.files import shown_path, writable

LARGEST_GAP = 0.05  # between a client's share of the data in a plan and in a run, in units of the mean share


def plan(
    clients: Annotated[
        Path | None,
        Parameter(
            metavar="CLIENTS.csv",
            show_default=False,
            help="Columns client,latency_seconds, and if known samples,gradient_bound.",
        ),
    ] = None,
    /,
    *,
    from_: Annotated[
        Path | None,
        Parameter(
            "--from",
            metavar="RUN",
            show_default=False,
            help="Instead of a file: latencies, samples, gradient bounds and α as a run folder shows them.",
        ),
    ] = None,
    epsilon: Annotated[Text, help_text("The squared gradient norm to reach; required.", "E")] = None,
    alpha: Annotated[
        Text,
        help_text(
            "2LΓ of the bound: smoothness times twice the gap to the optimal loss. [1; of a run: estimated]", "A"
        ),
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
    with norm (p ∝ data × gradient), uniform and ratio (p ∝ data) selection. It is a bound, not a forecast; ratios of
    plans are meaningful. `fedweave run METHOD --plan plan.json` follows a plan that was printed with --json.
    """
    problems: list[str] = []
    fleet = measured = None
    try:
        if (clients is None) == (from_ is None):
            raise BadInput("plan needs either a file of clients or --from RUN, such as: fedweave plan clients.csv")
        measured = read_run(from_) if from_ else None
        fleet = measured.clients if measured else read_clients(clients or Path())
    except BadInput as e:
        problems += e.problems
    wanted = _number("--epsilon", epsilon, "a number > 0", problems, lambda v: 0 < v < math.inf)
    estimated = f"{measured.alpha}" if measured else "1"
    weight = _number("--alpha", alpha or estimated, "a number >= 0", problems, lambda v: 0 <= v < math.inf)
    size = _number("--cohort", cohort or "1", "a whole number > 0", problems, lambda v: v >= 1 and v.is_integer())
    least = _number("--floor", floor or "0", "a number in [0, 1/N]", problems, lambda v: 0 <= v <= 1)
    if fleet and least * len(fleet.name) > 1 and least <= 1:
        problems.append(f"--floor must leave something to choose: at most 1/{len(fleet.name)} here. Got {floor!r}.")
    if problems or fleet is None:
        raise BadInput(*problems)
    laws = compare_laws(fleet, weight, wanted, int(size) if cohort else None, least, exhaustive)
    from fedweave.report import plan as report  # loads matplotlib, which is slow: only after the input is checked

    remarks = report.remarks(laws, _origin(weight, alpha, measured), chosen=not cohort)
    if fleet.assumed:
        remarks.append(f"The file has no {' and no '.join(fleet.assumed)}: all clients were taken as equal in that.")
    if html is not None:
        command = shlex.join(["fedweave", *sys.argv[1:]])
        alone = html.suffix == ".svg"
        with writable(html):
            page = report.picture(fleet, laws) if alone else report.page(fleet, laws, weight, wanted, command, remarks)
            report.write(html, page)
    if json:
        print(json_text.dumps(report.plain(fleet, laws, weight, wanted, remarks), allow_nan=False))
        return
    print(report.lede(laws))
    Console(markup=False, emoji=False).print(report.terminal(fleet, laws))  # a client's name may look like markup
    for remark in remarks:
        print(remark, file=sys.stderr if remark.startswith("warning") else sys.stdout)
    if html is not None:
        print(f"page: {html}")


def _origin(alpha: float, given: str | None, measured: Measured | None) -> str:
    """Return a sentence about where α comes from, and how much of the fleet was seen."""
    if measured is None:
        return f"α = {alpha:g}" + (" as given." if given else ", because none was given: `--from RUN` estimates it.")
    unheard = f" {measured.unheard} clients never answered and count as average ones." if measured.unheard else ""
    if given:
        return f"α = {alpha:g} as given; the run says {measured.alpha:.3g}.{unheard}"
    if measured.negative:
        return (
            f"warning: eq. 27 is negative in this run, so α is unknown and has its least value, {alpha:.3g}: give "
            f"--alpha.{unheard}"
        )
    return f"α = {alpha:.3g} as estimated from the first {measured.trial} rounds (eq. 27).{unheard}"


class _Client(Checked):
    probability: float
    samples: float = 1


class _Plan(Checked):
    cohort_size: int
    clients: list[_Client]


def read_plan(path: Path) -> dict[str, Any]:
    """Return a plan: a file with what ``fedweave plan --json`` printed."""
    try:
        text = path.expanduser().read_bytes()
    except OSError as e:
        raise BadInput(f"The plan {shown_path(path)} cannot be read: {e.strerror}.") from None
    if path.suffix.lower() == ".csv":
        raise BadInput(
            f"{shown_path(path)} is a file of clients. The plan is the JSON that `fedweave plan {path} --epsilon E "
            "--json > plan.json` writes: give --plan plan.json."
        )
    return parse_json(text, _Plan, f"The plan {shown_path(path)}")


def follow(experiment: Experiment, path: Path) -> tuple[Experiment, Callback]:
    """Return the experiment with a plan's probabilities and cohort size in place of its sampler, and who checks it."""
    plan, clients = read_plan(path), getattr(experiment.partition, "clients", None)
    sampler = Fixed(tuple(float(client["probability"]) for client in plan["clients"]), plan["cohort_size"])
    if clients is not None and clients != len(sampler.probability):
        raise BadInput(
            f"The plan {shown_path(path)} is for {len(sampler.probability)} clients, but there are {clients}: give "
            f"--clients {len(sampler.probability)}, or another plan."
        )
    if not isinstance(experiment.method.aggregator, InverseProbability):
        print(
            f"warning: {experiment.method.name} does not weigh answers by 1/(M p), so clients that the plan prefers "
            "count more than their data. latency_ratio does.",
            file=sys.stderr,
        )
    method = replace(experiment.method, sampler=sampler, name=f"{experiment.method.name}_planned")
    return replace(experiment, method=method), _Shares([float(client.get("samples", 1)) for client in plan["clients"]])


class _Shares(Callback):
    """Warns where the clients of a run have other shares of the data than those of its plan."""

    def __init__(self, samples: Sequence[float]):
        self._samples = samples

    def begin(self, run: Running) -> None:
        """Compare the samples of the plan with those of the run."""
        ours, theirs = self._samples, run.manifest.get("samples")
        if not theirs or len(ours) != len(theirs) or len(set(ours)) == 1:  # not known, or clients count equally
            return
        gaps = (abs(a / sum(ours) - b / sum(theirs)) for a, b in zip(ours, theirs, strict=True))
        if max(gaps) * len(ours) > LARGEST_GAP:
            print(
                "warning: the clients of this run do not have the samples that the plan was made for: row i of the "
                "plan is client i.",
                file=sys.stderr,
            )


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
