"""DELTA's figures 2, 6, 7, 9 and 10: what samplers pick, with and without clusters, and how long gradients are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave import methods
from fedweave.aggregate import InverseProbability
from fedweave.core.records import Array
from fedweave.data.partition import Shards
from fedweave.method import Method
from fedweave.papers.common.panels import Line, Make, Panel, Records, bars, curves
from fedweave.papers.common.record import Record
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.delta import setup
from fedweave.papers.delta.setup import (
    BENCHMARKS,
    CURVES,
    FIVE,
    Size,
    best_mean,
    column_of,
    last_tenth,
    mean_of,
    samples,
)
from fedweave.runs.experiment import Experiment
from fedweave.sample import ClusterIS
from fedweave.theory import diversity_ratio

if TYPE_CHECKING:
    from fedweave.runs.session import Session

SIZES: dict[Scale, Size] = {
    "smoke": Size(train=400, test=100, pool=2, clients=20, per_round=4, batch=8, rounds=6, network="logistic"),
    "laptop": Size(train=10_000, test=2000, clients=200, per_round=10, batch=5, rounds=500, network="logistic"),
    "paper": Size(clients=200, per_round=10, batch=32, rounds=500, network="logistic"),
}
IMAGES, STEPS, LR = 60_000, 5, 0.01
EVERY = 10  # rounds between looks at the gradients of all clients


def cluster_method(per_round: int, drop_after: int | None = None) -> Method:
    """Return cluster-based IS with two clusters by the norms of all clients' updates (B.2)."""
    sampler = ClusterIS(per_round, 2, norms="oracle", drop_after=drop_after)
    return Method(sampler, aggregator=InverseProbability(), name="cluster_is")


def logistic(scale: Scale, method: Method) -> Experiment:
    """Return B.2's experiment: logistic regression on MNIST, five local steps; two labels a client."""
    s = SIZES[scale]
    return Experiment(
        method=method,
        data=samples("mnist", scale, s.train, s.test, s.pool),
        partition=Shards(s.clients, 2),
        model=s.network,
        rounds=s.rounds,
        lr=LR,
        steps=STEPS,
        batch_size=s.batch,
    )


def settings(scale: Scale) -> Mapping[str, Any]:
    """Return the settings that are printed side by side."""
    s = SIZES[scale]
    images = s.train or IMAGES
    return {
        "data": "mnist",
        "training images": images,
        "clients": s.clients,
        "participation": f"{s.per_round / s.clients:.0%}",
        "client sizes": "equal, two labels",
        "network": s.network,
        "rounds": s.rounds,
        "local steps": STEPS,
        "batch": s.batch,
        "steps an epoch": -(-images // (s.clients * s.batch)) if scale != "smoke" else "other",
        "learning rate": LR,
        "tuning": "one learning rate for all methods",
    }


def run_and_look(arm: Experiment, seed: int) -> Record:
    """Run an experiment; return also the lengths of the picked clients' mean local gradients, ‖u‖/(η K), by round.

    With ``true_gradients``, after the first and last and every ``EVERY`` rounds also the longest and shortest gradient
    ∇F_i of all clients, the largest and smallest diversity ‖∇F_i − ∇f‖, and how they grew since the last look.
    """
    from fedweave.engine.pool.processes import Workers  # needs torch, which studies are declared without
    from fedweave.runs.loop import deterministic, iterate
    from fedweave.runs.session import prepare

    session, rows = prepare(replace(arm, seed=seed, workers=1), Workers(1)), list[dict[str, float]]()
    before: dict[str, Array] = {}
    with deterministic():
        for state, happened in iterate(session):
            replies, p = happened.replies, happened.view.layout.parameters
            u = replies.updates[replies.received, :p].astype(float)
            norm = np.linalg.norm(u, axis=1) / (happened.lr * replies.steps[replies.received])
            scores, due = session.engine.evaluate(state.x), state.round in (1, arm.rounds) or state.round % EVERY == 0
            after = gradient_lengths(session, state.x) if arm.true_gradients and due else {}
            rows.append(
                {
                    "round": state.round,
                    **{name: scores[name] for name in ("accuracy", "loss")},
                    "picked_mean": norm.mean(),
                    "picked_least": norm.min(),
                    "picked_diversity": diversity_ratio((u**2).sum(1).mean(), (u.mean(0) ** 2).sum()),
                    **{f"{what}_{kind}": v for what, values in after.items() for kind, v in _extremes(values).items()},
                    **{f"{what}_growth": growth(before[what], v) for what, v in after.items() if before},
                }
            )
            before = after or before
    names = dict.fromkeys(name for row in rows for name in row)
    return Record({name: np.array([row.get(name, np.nan) for row in rows]) for name in names})


def gradient_lengths(session: Session, x: Array) -> dict[str, Array]:
    """Return ‖∇F_i‖ and ζ_i = ‖∇F_i − Σ ω ∇F‖ of every client, on all its data."""
    g = session.engine.gradients(x, np.arange(session.base.size)).astype(float)
    return {"norm": np.linalg.norm(g, axis=1), "diversity": np.linalg.norm(g - session.base.weight @ g, axis=1)}


def growth(before: Array, after: Array) -> float:
    """Return the median ratio of after to before; clients without a gradient before are left out."""
    seen = before > 0
    return float(np.median(after[seen] / before[seen])) if seen.any() else np.nan


def _extremes(values: Array) -> dict[str, float]:
    return {"most": values.max(), "least": values.min()}


def _of(contest: Callable[[int, int], Mapping[str, Method]]) -> Callable[[Scale], Mapping[str, Experiment]]:
    """Return the arms: methods, given clients per round and rounds."""
    return lambda scale: {
        n: logistic(scale, m) for n, m in contest(SIZES[scale].per_round, SIZES[scale].rounds).items()
    }


def halves(column: str, second: bool = True) -> Callable[[Record], float]:
    """Return a measure: the mean of a column over the second, or first, half of the rounds."""

    def of(record: Record) -> float:
        values = record.rounds[column]
        return float((values[values.size // 2 :] if second else values[: values.size // 2]).mean())

    return of


MARKS = {"100": 0.2, "300": 0.6, "500": 1.0}  # rounds of 500
NON_IID = "Non-iid: two labels a client; the paper does not say which. The samplers are the theoretical ones."
FIG2 = Study(
    name="delta/fig2",
    shows="logistic regression on MNIST, 10 of 200 clients: the ten best accuracies until rounds 100, 300 and 500",
    arms=_of(
        lambda k, _: {
            "fedavg": methods.fedavg(k),
            "fedis": methods.fedis(k),
            "cluster_is": cluster_method(k),
            "feddelta": methods.feddelta(k),
        }
    ),
    seeds=FIVE,
    measures={f"best 10 until round {m}": Measure(best_mean(10, share), "%") for m, share in MARKS.items()}
    | {"diversity of the picked": Measure(lambda r: float(r.rounds["picked_diversity"].mean()), ratio=True, digits=3)},
    panels=(
        *(bars(f"Best 10 until round {m}", best_mean(10, share), "Test accuracy") for m, share in MARKS.items()),
        curves("Diversity of the picked updates", "picked_diversity", y_label="E‖u‖²/‖E u‖²", smooth=20),
    ),
    settings=settings,
    work=run_and_look,
    notes=(NON_IID, "At other scales the marks are the same shares of the rounds."),
)
LENGTHS = {
    f"{what} norm, {half} half": Measure(halves(column, half == "second"), ratio=True, digits=3)
    for what, column in (("mean", "picked_mean"), ("least", "picked_least"))
    for half in ("first", "second")
}
FIG6 = Study(
    name="delta/fig6",
    shows="mean and least gradient norm of the clients that IS and cluster-based IS pick, over the rounds",
    arms=_of(lambda k, _: {"fedis": methods.fedis(k), "cluster_is": cluster_method(k)}),
    seeds=FIVE,
    measures=LENGTHS,
    panels=(
        curves("Mean of the picked clients", "picked_mean", y_label="Gradient norm", smooth=10),
        curves("Least of the picked clients", "picked_least", y_label="Gradient norm", smooth=10),
    ),
    settings=settings,
    work=run_and_look,
    notes=(NON_IID,),
)
FIG7 = Study(
    name="delta/fig7",
    shows="cluster-based IS, and the same whose cluster of short updates is left out after half of the rounds",
    arms=_of(
        lambda k, rounds: {"cluster_is": cluster_method(k), "without short updates": cluster_method(k, rounds // 2)}
    ),
    seeds=FIVE,
    measures={
        "accuracy, last tenth": Measure(last_tenth("accuracy"), "%"),
        "loss, last tenth": Measure(last_tenth("loss"), ratio=True),
    },
    panels=(CURVES, curves("Test loss", "loss")),
    settings=settings,
    work=run_and_look,
    notes=(NON_IID,),
)


PRACTICAL = Study(
    name="delta/practical",
    shows="remark G.1: theoretical and practical samplers, logistic regression on MNIST as in figure 2",
    arms=_of(lambda k, _: {n: getattr(methods, n)(k) for n in ("feddelta", "fedpracdelta", "fedis", "fedpracis")}),
    seeds=FIVE,
    measures={"accuracy, all rounds": Measure(mean_of("accuracy"), "%")},
    panels=(CURVES,),
    settings=settings,
    work=run_and_look,
    notes=("Non-iid: two labels a client. The theoretical samplers ask every client in every round.",),
)


def _over_rounds(what: str, label: str) -> Make:
    """Return a panel of the longest and the shortest of all clients over the rounds."""

    def make(records: Records) -> Panel:
        ((_, runs),) = records.items()
        seen = np.isfinite(runs[0].rounds[f"{what}_most"])
        x = runs[0].rounds["round"][seen].astype(float)
        lines = [Line(name, x, column_of(runs, f"{what}_{kind}")[:, seen]) for name, kind in KINDS.items()]
        return Panel(label, "Round", label, lines, log="y")

    return make


KINDS = {"largest of all clients": "most", "smallest of all clients": "least"}


def _lengths(item: str, data: str) -> Study:
    name, what, label = {
        "fig9": ("fedpracis", "norm", "Gradient norm"),
        "fig10": ("fedpracdelta", "diversity", "Gradient diversity norm"),
    }[item]

    def at(scale: Scale) -> Mapping[str, Experiment]:
        make = getattr(methods, name)
        if data == "mnist":
            return {name: replace(logistic(scale, make(SIZES[scale].per_round)), true_gradients=True)}
        size = BENCHMARKS["fashion"].size(scale)
        return {name: setup.experiment(BENCHMARKS["fashion"], scale, make(size.per_round), true_gradients=True)}

    return Study(
        name=f"delta/{item}/{data}",
        shows=f"largest and smallest {label.lower()} of all clients over the rounds, {name}, {data}",
        arms=at,
        seeds=FIVE,
        measures={
            "largest": Measure(lambda r: float(np.nanmax(r.rounds[f"{what}_most"])), digits=3),
            "smallest": Measure(lambda r: float(np.nanmin(r.rounds[f"{what}_least"])), digits=3),
            "growth": Measure(lambda r: float(np.nanmean(r.rounds[f"{what}_growth"])), digits=3),
        },
        panels=(_over_rounds(what, label),),
        settings=settings if data == "mnist" else setup.settings(BENCHMARKS["fashion"]),
        work=run_and_look,
        notes=(
            f"Gradients are on all of a client's data, every {EVERY} rounds and after the first and the last.",
            "Growth: the median over clients of the ratio to the last look, the paper's U; its mean over the rounds.",
            "The caption names the theoretical methods, the text the practical ones, which are run.",
        ),
    )


STUDIES = (
    FIG2,
    FIG6,
    FIG7,
    PRACTICAL,
    *(_lengths(item, data) for item in ("fig9", "fig10") for data in ("mnist", "fashion")),
)
