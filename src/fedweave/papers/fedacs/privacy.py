"""FedACS under differential privacy, which it claims to support because it needs only the sum of the updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedweave import methods, privacy
from fedweave.aggregate import Private
from fedweave.data.partition import Dirichlet
from fedweave.papers.common.panels import bars, curves
from fedweave.papers.common.record import Record, last, run_experiment, value
from fedweave.papers.common.scale import Scale, load_data, reduce_data
from fedweave.papers.common.study import Measure, Study
from fedweave.runs.experiment import Experiment
from fedweave.system import Dynamic

CLIP, LAST, DELTA = 0.5, 20, 1e-3
CLIENTS: Mapping[Scale, int] = {"smoke": 20, "laptop": 200, "paper": 200}  # a fifth is drawn in a round
ROUNDS: Mapping[Scale, int] = {"smoke": 3, "laptop": 150, "paper": 300}
NOISES = (0.0, 2.0, 4.0, 8.0)


def run_private(experiment: Experiment, seed: int) -> Record:
    """Run; keep two privacy losses: to observers who know who took part, and to those who do not.

    The second is that of the client most likely to be drawn.
    """
    record, aggregator = run_experiment(experiment, seed), experiment.method.aggregator
    if not isinstance(aggregator, Private):
        return record._replace(values={**record.values, "known": np.inf, "secret": np.inf})
    draws = (experiment.partition.clients or 0) // 5
    likely = float(record.clients["expected"].max()) / draws
    secret = privacy.epsilon(aggregator.noise, experiment.rounds, draws, likely, DELTA)
    return record._replace(values={**record.values, "known": record.rounds["epsilon"][-1], "secret": secret})


def _arms(scale: Scale) -> Mapping[str, Experiment]:
    privacy.needs_library()
    clients = CLIENTS[scale]
    base = Experiment(
        method=methods.fedacs(clients // 5),
        data=reduce_data(load_data("mnist", scale), 4000 if scale != "smoke" else 400, 1000, pool=2),
        partition=Dirichlet(clients, 0.1),
        model="logistic",
        system=Dynamic(unit="epochs"),
        rounds=ROUNDS[scale],
        lr=0.02,
    )
    plain = {"fedacs": base.method, "fedavg": methods.fedavg_is(clients // 5)}
    return {
        f"{name}, noise {z:g}": replace(
            base, method=method if z == 0 else replace(method, aggregator=Private(CLIP, z, DELTA))
        )
        for z in NOISES
        for name, method in plain.items()
    }


PRIVATE = Study(
    name="fedacs/private",
    shows="beyond the paper: FedACS and FedAvg under central differential privacy, accuracy and epsilon",
    arms=_arms,
    work=run_private,
    seeds={"smoke": 2, "laptop": 5, "paper": 10},
    measures={
        f"accuracy, last {LAST}": Measure(last("accuracy", LAST), "%"),
        "ε, participants known": Measure(value("known"), digits=3),
        "ε, participants secret": Measure(value("secret"), digits=3),
    },
    panels=(
        bars(f"Last {LAST} rounds", last("accuracy", LAST), "Test accuracy"),
        curves("Test accuracy", "accuracy"),
    ),
    settings=lambda scale: {"rounds": ROUNDS[scale], "clients": CLIENTS[scale], "clip": CLIP},
    notes=(
        f"MNIST (4,000 images of 14×14), logistic regression, Dirichlet(0.1) labels, dynamic world; δ = {DELTA:g}.",
    ),
)
STUDIES: tuple[Study, ...] = (PRIVATE,)
