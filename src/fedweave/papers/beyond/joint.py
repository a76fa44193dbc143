"""Selection and dropout in one plan (FedDD, section 8), against each alone and both one after the other.

Set-up and measures are those of ``beyond/async``: as many participations for every arm, a target fixed beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedweave import methods
from fedweave.method import Method
from fedweave.papers.beyond.asynchronous import (
    MEASURES,
    NOTES,
    PANELS,
    PER_ROUND,
    SHOWN,
    WORLDS,
    World,
    about_arms,
    arms,
    settings,
)
from fedweave.papers.common.study import Study
from fedweave.sample import Uniform
from fedweave.upload import DifferentialDropout

ARMS = {
    "synchronous": "ten clients a round, whole models",
    "feddd": "all clients, which send 60 % of their models",
    "feddd, 10": "FedDD's dropout on ten clients a round",
    "latency-optimal": "ten draws by the plan of least expected time, after five trial rounds",
    "both": "FedDD's dropout on the latency-optimal cohort",
    "joint": "at most ten clients a round, and what each sends, by one plan of the largest contribution per second",
    "oort": "ten clients a round by loss and time",
}


def selections(deadline: float, clients: int) -> Mapping[str, tuple[Method, float]]:
    """Return every arm's method, and how many participations at least its rounds have.

    Draws of latency-optimal selection may hit a client twice, and the joint plan may ask fewer than ten.
    """
    return {
        "synchronous": (methods.fedavg(PER_ROUND), PER_ROUND),
        "feddd": (methods.feddd(), clients),
        "feddd, 10": (Method(Uniform(PER_ROUND), upload=DifferentialDropout(), name="feddd"), PER_ROUND),
        "latency-optimal": (methods.latency_optimal(PER_ROUND), PER_ROUND / 1.2),
        "both": (methods.latency_dropout(PER_ROUND), PER_ROUND / 1.2),
        "joint": (methods.feddd_joint(PER_ROUND), PER_ROUND / 1.4),
        "oort": (methods.oort(PER_ROUND), PER_ROUND),
    }


def study(name: str, world: World) -> Study:
    """Return the study of all arms in a world."""
    return Study(
        name=f"beyond/joint/{name}",
        shows=f"time and bytes to {SHOWN} of selection, dropout, both, and both in one plan: {world.about}",
        arms=arms(world, selections),
        seeds={"smoke": 2, "laptop": 10, "paper": 10},
        measures=MEASURES,
        panels=PANELS,
        settings=settings(world),
        notes=(about_arms(ARMS), *NOTES[1:2]),
    )


STUDIES = tuple(study(name, WORLDS[name]) for name in ("lognormal", "wireless"))
