"""DELTA's motivation (figures 2, 6 and 7): logistic regression on MNIST, with and without clusters of clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedweave import methods
from fedweave.aggregate import InverseProbability
from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.data import load
from fedweave.data.partition import Shards
from fedweave.method import Method
from fedweave.papers.common.claims import Claim, Outcome, judge_lead, mean_and_error, percent
from fedweave.papers.common.parallel import Progress
from fedweave.papers.common.scale import Scale
from fedweave.papers.delta.claims import Runs, final_accuracies
from fedweave.papers.delta.setup import Size, run_experiments
from fedweave.runs.experiment import Experiment
from fedweave.sample import ClusterIS

SIZES: dict[Scale, Size] = {
    "smoke": Size(train=400, test=100, pool=2, clients=20, per_round=4, batch=8, rounds=6, seeds=2),
    "laptop": Size(train=5000, test=1000, pool=2, clients=200, per_round=10, batch=5, rounds=500, seeds=3, every=2),
    "paper": Size(clients=200, per_round=10, batch=32, rounds=500, seeds=3),
}
STEPS = 5  # local updates


def cluster_method(per_round: int, drop_after: int | None = None) -> Method:
    """Return cluster-based IS with two clusters by the norms of all clients' updates (B.2)."""
    sampler = ClusterIS(per_round, 2, norms="oracle", drop_after=drop_after)
    return Method(sampler, aggregator=InverseProbability(), name="cluster_is")


def _runs(contestants: dict[str, Method], scale: Scale, on_progress: Progress | None) -> Runs:
    s = SIZES[scale]
    data = s.reduce(load("mnist" if scale == "paper" else "mnist5k"))
    plain = Experiment(
        method=methods.fedavg(s.per_round),
        data=data,
        partition=Shards(s.clients, 2),
        model="logistic",
        rounds=s.rounds,
        lr=0.01,
        steps=STEPS,
        batch_size=s.batch,
        evaluate_every=s.every,
        workers=1,
    )
    return run_experiments({n: replace(plain, method=m) for n, m in contestants.items()}, s.seeds, on_progress)


def _note(scale: Scale) -> str:
    s = SIZES[scale]
    return (
        f"MNIST, two labels per client (the paper says non-iid), {s.per_round} of {s.clients} clients, {STEPS} steps "
        f"of batch {s.batch}, lr 0.01, {s.rounds} rounds, {s.seeds} seeds; the samplers are the theoretical ones."
    )


def fig2(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 2: the mean of the ten best accuracies until a fifth, three fifths and all of the rounds."""
    k, rounds = SIZES[scale].per_round, SIZES[scale].rounds
    contestants = {
        "fedavg": methods.fedavg(k),
        "fedis": methods.fedis(k),
        "cluster_is": cluster_method(k),
        "feddelta": methods.feddelta(k),
    }
    text = "feddelta is the most accurate"
    try:
        runs = _runs(contestants, scale, on_progress)
    except BadInput as missing:
        return Outcome.not_run("delta/fig2", scale, text, missing)
    marks = [rounds // 5, 3 * rounds // 5, rounds]

    def at(name: str, mark: int) -> Array:
        return np.array([c.best(10, mark) for c in runs[name]])

    rows = [{"method": n} | {f"round {m}": percent(at(n, m), 2) for m in marks} for n in runs]
    others = [n for n in runs if n != "feddelta"]
    claims = [
        judge_lead(f"{text} at round {m}", at("feddelta", m), {n: at(n, m) for n in others}, scale) for m in marks
    ]
    return Outcome("delta/fig2", scale, rows, claims, (_note(scale), "mean of the ten best accuracies so far, ± error"))


def fig6(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 6: mean and smallest length of the selected clients' updates."""
    k, text = (
        SIZES[scale].per_round,
        "in the second half of the rounds cluster-based IS selects shorter updates than IS",
    )
    try:
        runs = _runs({"fedis": methods.fedis(k), "cluster_is": cluster_method(k)}, scale, on_progress)
    except BadInput as missing:
        return Outcome.not_run("delta/fig6", scale, text, missing)
    rows, second = [], {}
    for name, courses in runs.items():
        norms = np.array([c.norms for c in courses])  # (seeds, rounds, mean and smallest)
        second[name] = norms[:, norms.shape[1] // 2 :].mean(1)
        rows.append(
            {
                "method": name,
                **{
                    f"{what} length, quarters": " ".join(f"{q.mean():.3g}" for q in np.array_split(norms[..., i], 4, 1))
                    for i, what in enumerate(("mean", "smallest"))
                },
            }
        )
    claims = []
    for i, what in enumerate(("mean", "smallest")):
        gap, error = mean_and_error((second["fedis"] - second["cluster_is"])[:, i].tolist())
        evidence, claim = f"{what} length shorter by {gap:.3g} ± {error:.2g}", f"{text} ({what})"
        holds = Claim.judge(claim, bool(gap > 2 * error), evidence)
        claims.append(Claim.not_run(claim, evidence) if scale == "smoke" else holds)
    return Outcome("delta/fig6", scale, rows, claims, (_note(scale),))


def fig7(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 7: cluster-based IS, and the same whose cluster of short updates is left out after half of the rounds."""
    k, rounds = SIZES[scale].per_round, SIZES[scale].rounds
    text = "without its cluster of short updates cluster-based IS is more accurate at the end"
    contestants = {"cluster_is": cluster_method(k), "without short updates": cluster_method(k, rounds // 2)}
    try:
        runs = _runs(contestants, scale, on_progress)
    except BadInput as missing:
        return Outcome.not_run("delta/fig7", scale, text, missing)
    rows = [
        {
            "method": n,
            "accuracy, quarters": _quarters([c.accuracy for c in r]),
            "loss, quarters": _quarters([c.loss for c in r]),
            "last": percent([c.last for c in r], 2),
        }
        for n, r in runs.items()
    ]
    ours, vanilla = (final_accuracies(runs[n]) for n in ("without short updates", "cluster_is"))
    return Outcome("delta/fig7", scale, rows, [judge_lead(text, ours, {"cluster_is": vanilla}, scale)], (_note(scale),))


def _quarters(curves: list[Array]) -> str:
    return " ".join(f"{q.mean():.3f}" for q in np.array_split(np.array(curves), 4, axis=1))
