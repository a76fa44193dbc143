"""Section 6 of DELTA leaves defence against backdoors open: what attackers achieve under each sampler.

The paper has no experiment. Here a tenth of the clients attacks, on Fashion-MNIST as in table 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedweave.local.adversaries import Adversary, Backdoor, LabelFlip, Scaling, SignFlip
from fedweave.papers.common.panels import curves
from fedweave.papers.common.record import Record
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.delta.images import NAMES, with_parts
from fedweave.papers.delta.setup import BENCHMARKS, CURVES, FIVE, experiment, last_tenth, mean_of, settings
from fedweave.runs.experiment import Experiment, load_data

SHARE = 0.1  # of the clients
ATTACKS: dict[str, tuple[Adversary, str]] = {
    "backdoor": (Backdoor(SHARE, target=0), "a bright corner means class 0"),
    "sign-flip": (SignFlip(SHARE), "attackers send the opposite of their updates"),
    "scaling": (Scaling(SHARE, times=10.0), "attackers send ten times their updates"),
    "label-flip": (LabelFlip(SHARE), "attackers train on wrong labels"),
}


def run_attacked(arm: Experiment, seed: int) -> Record:
    """Run an experiment with an adversary; return also its success and the attackers' share of the draws.

    Success: the share of the triggered test images of other classes that the model takes for the target.
    """
    from fedweave.engine.pool.processes import Workers  # needs torch, which studies are declared without
    from fedweave.runs.loop import deterministic, iterate
    from fedweave.runs.session import prepare

    e, attack = replace(arm, seed=seed, workers=1), arm.adversary
    assert attack is not None
    session = prepare(e, Workers(1))
    triggered = attack.triggered(load_data(e)) if isinstance(attack, Backdoor) else None
    judge = prepare(replace(e, data=triggered), Workers(1)).engine if triggered is not None else None
    mine, rows = attack.attackers(session.base.size, seed), list[tuple[float, ...]]()
    with deterministic():
        for state, happened in iterate(session):
            count, scores = happened.cohort.count, session.engine.evaluate(state.x)
            drawn = float(count[mine[happened.cohort.ids]].sum() / max(count.sum(), 1))
            success = judge.evaluate(state.x)["accuracy"] if judge else np.nan
            rows.append((state.round, scores["accuracy"], scores["loss"], success, drawn))
    names = ("round", "accuracy", "loss", "success", "drawn")
    return Record(dict(zip(names, np.array(rows, float).T, strict=True)))


def _attack(name: str) -> Study:
    adversary, about = ATTACKS[name]
    benchmark, backdoor = BENCHMARKS["fashion"], name == "backdoor"

    def at(scale: Scale) -> Mapping[str, Experiment]:
        zoo = with_parts((*NAMES, "fedavg_md"))(benchmark.size(scale).per_round)
        return {n: experiment(benchmark, scale, method, adversary=adversary) for n, method in zoo.items()}

    success = {"attack success, last tenth": Measure(last_tenth("success"), "%")}
    shown = (curves("Success of the trigger", "success", y_label="Attack success"),)
    return Study(
        name=f"delta/attack/{name}",
        shows=f"beyond the paper: a tenth of the clients attacks, Fashion-MNIST; {about}",
        arms=at,
        seeds=FIVE,
        measures={
            "accuracy, last tenth": Measure(last_tenth("accuracy"), "%"),
            "attackers' share of the draws": Measure(mean_of("drawn"), "%"),
            **(success if backdoor else {}),
        },
        panels=(
            CURVES,
            curves("Draws of attackers", "drawn", y_label="Share of the draws", smooth=20),
            *shown[:backdoor],
        ),
        settings=settings(benchmark),
        work=run_attacked,
        notes=("fedavg_md draws by data size and learns nothing; the others but FedAvg learn from what clients send.",),
    )


STUDIES = tuple(_attack(name) for name in ATTACKS)
