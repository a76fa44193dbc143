"""FedAWARE without training: its corrected Theorem 4.1 on quadratics, and what eq. 8 does to the diversity, exactly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedweave import theory
from fedweave.papers.common.panels import bars, curves
from fedweave.papers.common.record import Record, value
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.fedaware.theory import measure_bound
from fedweave.solve.min_norm import min_norm_weights

ROUNDS: Mapping[Scale, int] = {"smoke": 16, "laptop": 512, "paper": 512}
INSTANCES = 100


def bound(what: tuple[str, int], seed: int) -> Record:
    """Return the mean squared direction over T rounds on quadratics, measured or bounded."""
    side, rounds = what
    found = measure_bound(1, rounds, seed)
    return Record({"T": found.x, "direction": found.measured[0] if side == "measured" else found.bound})


BOUND = Study(
    name="fedaware/bound",
    shows="beyond the paper: Theorem 4.1, corrected: the mean squared direction over T rounds, measured and bounded",
    arms=lambda scale: {side: (side, ROUNDS[scale]) for side in ("measured", "bound")},
    work=bound,
    seeds={"smoke": 2, "laptop": 5, "paper": 5},
    measures={"direction, all rounds": Measure(lambda r: float(r.rounds["direction"][-1]), ratio=True, digits=3)},
    panels=(curves("Mean squared direction", "direction", "T", "mean ‖d‖² over T rounds", log="xy"),),
    settings=lambda scale: {"clients": 10, "clients a round": 5, "local steps": "1 to 3", "rounds": ROUNDS[scale]},
    notes=("The printed theorem bounds ‖∇f‖², and is false or void (fedweave.theory.fedaware).",),
)


def diversity(rule: str, seed: int) -> Record:
    """Return the least of D̃/D over random vectors (eqs 6 and 3), D̃ with the weights of a rule."""
    rng, ratios = np.random.default_rng(seed), []
    for _ in range(INSTANCES):
        clients = int(rng.integers(2, 9))
        g = np.exp(rng.normal(0, 1, (clients, 1))) * rng.standard_normal((clients, 10)) + 1
        weight = rng.dirichlet(np.ones(clients))
        surrogate = min_norm_weights(g @ g.T) if rule == "fedaware" else weight
        ratios.append(theory.surrogate_diversity(g, weight, surrogate) / theory.gradient_diversity(g, weight))
    return Record(values={"least": min(ratios), "mean": float(np.mean(ratios))})


DIVERSITY = Study(
    name="fedaware/eq8",
    shows="the surrogate diversity under FedAWARE's weights over that under FedAvg's, of the same vectors",
    arms=lambda scale: {rule: rule for rule in ("fedaware", "fedavg")},
    work=diversity,
    seeds={"smoke": 1, "laptop": 5, "paper": 5},
    measures={"least ratio": Measure(value("least"), ratio=True), "mean ratio": Measure(value("mean"), ratio=True)},
    panels=(bars("Surrogate over plain diversity", value("mean"), "D̃/D"),),
    exact=True,
)
STUDIES: tuple[Study, ...] = (BOUND, DIVERSITY)
