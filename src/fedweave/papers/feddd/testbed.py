"""FedDD's figures 8 and 14 on real nodes behind shaped links, with the simulator's round times beside the real ones.

Table 5 says where the paper's ten machines were, not how fast their links are: rates are those of the simulated
figures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from fedweave.aggregate import InverseProbability
from fedweave.core.records import Array, Population
from fedweave.core.roles import System
from fedweave.core.settings import BadInput, settings
from fedweave.data import Dataset, load
from fedweave.method import Method
from fedweave.papers.common.panels import Bar, Panel, curves
from fedweave.papers.common.record import FACTS, Record, Records, last
from fedweave.papers.common.scale import Scale, reduce_data
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.feddd.setup import SPLITS, TESTBED, Setting, dropout, rivals
from fedweave.papers.feddd.variants import CHOICES
from fedweave.runs.experiment import Experiment
from fedweave.sample import LatencyOptimal
from fedweave.system.wireless import add_links

if TYPE_CHECKING:
    from fedweave.fleet.local.testbed import Link
    from fedweave.runs.results import Result

LOCK = "/run/fedweave-testbed.lock"  # two testbeds at a time would take each other's processors
NODES: Mapping[Scale, int] = {"smoke": 4, "laptop": 4, "paper": 10}
ROUNDS: Mapping[Scale, int] = {"smoke": 2, "laptop": 6}
SEEDS: Mapping[Scale, int] = {"smoke": 1, "laptop": 1, "paper": 5}
# Four nodes of a laptop share two cores with the server and need seconds to start for each message, so that links are
# slower, by a factor that keeps their spread.
SLOWER = 4
REAL = "network namespaces, a real node in each, links shaped by token buckets"
STAND_IN = "stand-in in one process: messages take 8 · bytes / rate on a virtual clock"
READING = (
    "Seconds of a round are from asking to the slowest answer, as the server sees them, with starting a process on "
    "every node. The simulator has the same links, and of computing what the method's own first round took beside the "
    "transfer (median of its clients); the first round is left out of both means. So compare simulated rounds with the "
    "real ones of the same method; those of two methods differ by their first rounds too. The simulator knows the "
    "links, which the fleet learns from bytes and times. Runs are kept, so times are those of the day they were run; "
    "FEDWEAVE_CACHE names another folder to measure again."
)


@dataclass(frozen=True)
class Trial:
    """An experiment on the testbed, or where there is none on what stands in for it."""

    experiment: Experiment
    real: bool


@settings
class Shaped(System):
    """Clients with these links, bit/s, that all compute for as long."""

    up: tuple[PositiveFloat, ...]
    down: tuple[PositiveFloat, ...]
    compute: NonNegativeFloat

    def population(self, base: Population, round: int, seed: int) -> Population:
        return add_links(base, np.full(base.size, self.compute), np.array(self.up), np.array(self.down))


def run_on_testbed(trial: Trial, seed: int) -> Record:
    """Run an experiment on real nodes (or their stand-in) and then in the simulator, with the same links."""
    from fedweave.runs.loop import run

    experiment = replace(trial.experiment, seed=seed, workers=1, device="cpu")
    world = links_of(experiment)
    with one_at_a_time() if trial.real else nullcontext():
        result = (on_nodes if trial.real else on_stand_in)(experiment, links(world))
        world = replace(world, compute=beside_transfer(result.clients, world))
        simulated = run(replace(experiment, system=world))
    beside = {f"simulated_{name}": simulated.rounds[name] for name in ("seconds", "clock", "accuracy")}
    facts = {name: simulated.manifest[name] for name in FACTS}
    how: dict[str, Any] = {"transport": REAL if trial.real else STAND_IN, "compute_seconds": world.compute}
    return Record({**result.rounds, **beside}, result.clients, {**result.summary, **facts, **how})


def links_of(experiment: Experiment) -> Shaped:
    """Return the links that the experiment's world gives its clients."""
    n = experiment.partition.clients or 0
    one = np.ones(n)
    base = Population(
        weight=one / n, samples=one, steps=one, batch_size=one, loss_rate=0 * one, latency=one, available=one > 0,
        model_bytes=one,
    )  # fmt: skip
    drawn = experiment.system.population(base, 1, experiment.seed)
    assert drawn.up_rate is not None
    assert drawn.down_rate is not None
    return Shaped(tuple(drawn.up_rate.tolist()), tuple(drawn.down_rate.tolist()), 0.0)


def links(world: Shaped) -> list[Link]:
    """Return the links as a testbed takes them."""
    from fedweave.fleet.local.testbed import Link

    return [Link(up=up, down=down) for up, down in zip(world.up, world.down, strict=True)]


def beside_transfer(clients: Mapping[str, Array], world: Shaped) -> float:
    """Return the seconds of a participation beside its transfer: the median over the answers of the first round."""
    first = (clients["round"] == clients["round"].min()) & (clients["received"] == 1)
    who, sent = clients["client"][first].astype(int), clients["bytes_up"][first]
    up, down = np.array(world.up)[who], np.array(world.down)[who]
    rest = clients["seconds"][first] - 8 * sent / up - 8 * sent / down  # in the first round all send whole models
    return max(float(np.median(rest)), 0.0) if rest.size else 0.0


def on_nodes(experiment: Experiment, links: list[Link]) -> Result:
    """Run an experiment on real nodes."""
    from fedweave.fleet.local.rehearsal import rehearse
    from fedweave.fleet.local.testbed import Testbed

    with Testbed(links, secure=False) as bed:  # with TLS Flower gives each array 30 s to get through
        return rehearse(bed, experiment)


def on_stand_in(experiment: Experiment, links: list[Link]) -> Result:
    """Run an experiment in this process, over links that let time pass on a virtual clock."""
    from fedweave.fleet.local.rehearsal import client_of
    from fedweave.fleet.local.throttled import ThrottledGrid
    from fedweave.fleet.server.app import run
    from fedweave.fleet.server.terms import VirtualClock
    from fedweave.system import Measured

    clock, told = VirtualClock(), logging.getLogger("flwr")
    grid, before = ThrottledGrid(client_of(experiment), links, clock), told.level
    told.setLevel(logging.WARNING)  # not whom each round asks
    try:
        return run(replace(experiment, system=Measured()), grid, clock=clock)
    finally:
        told.setLevel(before)


@contextmanager
def one_at_a_time() -> Generator[None]:
    """Wait until no other testbed runs on this machine."""
    import fcntl  # which Linux has

    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_real(scale: Scale) -> bool:
    """Return whether real nodes are used: not for a smoke run, and not where namespaces are not allowed."""
    if scale == "smoke" or find_spec("flwr") is None:
        return False
    from fedweave.fleet.local.testbed import refusal

    return not refusal()


def _stand_in(scale: Scale) -> str:
    """Return that no real nodes ran, and why; "" if they did."""
    if is_real(scale):
        return ""
    from fedweave.fleet.local.testbed import refusal

    why = "At smoke scale no real nodes run." if scale == "smoke" else f"No real nodes ran: {refusal()}"
    return f"{why} The seconds are those of a {STAND_IN}, and say nothing of real nodes."


@cache
def _data(scale: Scale) -> Dataset:
    return reduce_data(load("mnist5k"), 2000 if scale == "laptop" else 200, 500)


def _experiment(split: str, scale: Scale) -> Experiment:
    """Return FedAvg with all clients: as published, or with four nodes, other data and slower links."""
    published = Setting("cifar10", split, testbed=True).experiment("paper" if scale == "paper" else "smoke")
    if scale == "paper":
        return published
    rates: dict[str, Any] = {
        name: tuple(rate / SLOWER for rate in getattr(TESTBED, name)) for name in ("up_rate", "down_rate")
    }
    return replace(
        published,
        data=_data(scale),
        partition=SPLITS[split](NODES[scale], "samples"),
        system=replace(TESTBED, **rates),
        model="cnn2" if scale == "laptop" else "mlp",
        rounds=ROUNDS[scale],
    )


def _settings(split: str, scale: Scale) -> Mapping[str, Any]:
    published = Setting("cifar10", split, testbed=True).settings("paper")
    transport = f"ours: {REAL if is_real(scale) else STAND_IN}"
    if scale == "paper":
        return {**published, "transport": transport}
    used, factor = _experiment(split, scale), 1000 / SLOWER
    return {
        **published,
        "data": used.data if isinstance(used.data, str) else used.data.name,
        "training images": len(_data(scale)),
        "clients": NODES[scale],
        "network": used.model,
        "rounds": used.rounds,
        "epochs": used.epochs,
        "batch (not published)": used.batch_size,
        "steps an epoch": -(-len(_data(scale)) // NODES[scale] // used.batch_size),
        "links": f"ours: table 4 × {factor:g} (not published)",
        "transport": transport,
    }


def _seconds(column: str) -> Callable[[Record], float]:
    """Return the mean seconds of a round, without the first, from which the simulator has its computing."""
    return lambda record: float(record.rounds[column][1:].mean())


def _is_of_nodes(record: Record) -> bool:
    return record.values["transport"] == REAL


real_seconds, simulated_seconds = _seconds("seconds"), _seconds("simulated_seconds")
MEASURES = {
    "final accuracy": Measure(last("accuracy"), "%"),
    "round, s": Measure(real_seconds, ratio=True),
    "simulated round, s": Measure(simulated_seconds, ratio=True),
    "of it computing, s": Measure(lambda r: r.values["compute_seconds"], ratio=True),
    "real over simulated": Measure(
        lambda r: real_seconds(r) / simulated_seconds(r) if _is_of_nodes(r) else np.nan, ratio=True, digits=3
    ),
    "sent, MB": Measure(lambda r: float(r.rounds["bytes_up"][-1]) / 1e6, ratio=True),
}


def _how(records: Records) -> str:
    """Return what the seconds of these runs are."""
    runs = [run for each in records.values() for run in each]
    return "real" if all(map(_is_of_nodes, runs)) else "of the stand-in"


def over_time(records: Records) -> Panel:
    """Draw the accuracy over the seconds of the fleet."""
    panel = curves(f"Accuracy over time, {_how(records)}", "accuracy", "clock")(records)
    return replace(panel, x_label=f"Seconds, {_how(records)}")


def beside_simulated(records: Records) -> Panel:
    """Draw the seconds of a round, and the simulator's beside them."""
    both = {_how(records): real_seconds, "simulated": simulated_seconds}
    bars = [
        Bar(f"{arm}, {how}", np.array([of(run) for run in runs]))
        for arm, runs in records.items()
        for how, of in both.items()
    ]
    return Panel("Length of a round", "", "Seconds", bars=bars)


def _methods(scale: Scale) -> Mapping[str, Method]:
    """Return figure 8's methods, and latency-optimal selection with as many clients as the budget allows."""
    asked, trial = round(0.6 * NODES[scale]), 5 if scale == "paper" else 2
    planned = Method(LatencyOptimal(asked, trial=trial), aggregator=InverseProbability(), name="latency_optimal")
    return {**rivals(refresh=1), "latency_optimal": planned}


def _choices(scale: Scale) -> Mapping[str, Method]:
    return {choice: dropout(choose=choice, refresh=1) for choice in CHOICES}


def _study(figure: str, split: str, shows: str, methods: Callable[[Scale], Mapping[str, Method]]) -> Study:
    def arms(scale: Scale) -> Mapping[str, Trial]:
        if find_spec("flwr") is None:
            raise BadInput("A testbed is a fleet of Flower's nodes. Install it with: pip install 'fedweave[flower]'.")
        plain, real = _experiment(split, scale), is_real(scale)
        return {name: Trial(replace(plain, method=method), real) for name, method in methods(scale).items()}

    return Study(
        name=f"feddd/{figure}/testbed/{split}",
        shows=f"{shows}, real nodes behind shaped links, and the simulator beside them: {split}",
        arms=arms,
        seeds=SEEDS,
        measures=MEASURES,
        panels=(over_time, beside_simulated),
        settings=partial(_settings, split),
        work=run_on_testbed,
        stand_in=_stand_in,
        notes=(READING,),
    )


STUDIES: tuple[Study, ...] = (
    *(_study("fig8", split, "five methods", _methods) for split in SPLITS),
    *(_study("fig14", split, "which channels are sent, five choices", _choices) for split in SPLITS),
)
