"""Table 1 and figures 4 to 6 of the latency paper: seconds until a loss is reached, and the loss at equal times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fedweave.papers.common.claims import Claim, Outcome
from fedweave.papers.common.parallel import Progress
from fedweave.papers.common.scale import Scale
from fedweave.papers.latency.training import (
    BENCHMARKS,
    EPOCHS,
    LR,
    METHODS,
    SIZES,
    WORLDS,
    Study,
    TrainingSize,
    clock,
    measure_costs,
    run_study,
    target_of,
    unavailable_reason,
)

Row = dict[str, Any]


class Ratio(NamedTuple):
    """How much longer than ours: the geometric mean over seeds, and its standard error as a factor."""

    mean: float
    error: float

    @classmethod
    def of(cls, factors: Sequence[float]) -> Ratio:
        logs = np.log(factors)
        error = float(logs.std(ddof=1) / np.sqrt(logs.size)) if logs.size > 1 else np.inf
        return cls(float(np.exp(logs.mean())), float(np.exp(min(error, 50.0))))

    def __str__(self) -> str:
        return f"{self.mean:.2f}×" + (f" (±{100 * (self.error - 1):.0f} %)" if self.error < 1e3 else "")

    @property
    def above_one(self) -> bool:
        """Whether the mean lies more than two standard errors above one."""
        return self.mean > self.error**2


NAMES = {"fashion_mnist": "fashion", "emnist_letters": "letters"}


def _rows(
    study: Study, dataset: str, settings: Sequence[str], size: TrainingSize
) -> tuple[list[Row], dict[Any, Ratio]]:
    """Return the lines of the table, and (setting, world, method) -> Ratio of the seconds to ours."""
    rows, ratios, benchmark = list[Row](), dict[Any, Ratio](), BENCHMARKS[dataset]
    for setting, world in product(settings, WORLDS):
        runs = [study[setting, world, seed] for seed in range(size.seeds)]
        costs = [
            measure_costs(trajectories, world, target_of(study, setting, seed), size, benchmark.per_round)
            for seed, trajectories in enumerate(runs)
        ]
        for method in METHODS:
            pairs = [(p[method], p["ours"]) for p in costs]
            ratio = ratios[setting, world, method] = Ratio.of([mine.seconds / ours.seconds for mine, ours in pairs])
            found = {
                "seconds": np.mean([mine.seconds for mine, _ in pairs]),
                "ratio": ratio.mean,
                "predicted": np.mean([mine.predicted_cost / ours.predicted_cost for mine, ours in pairs]),
                "rounds": np.mean([mine.rounds for mine, _ in pairs]),
                "per round": np.mean([mine.round_seconds for mine, _ in pairs]),
                "A(p)": np.mean([mine.predicted_round for mine, _ in pairs]),
                "accuracy": np.mean([trajectories[method].accuracy[-1] for trajectories in runs]),
            }
            rows.append(_line(dataset, setting, world, method, {k: float(v) for k, v in found.items()}))
    return rows, ratios


def _line(dataset: str, setting: str, world: str, method: str, found: Mapping[str, float]) -> Row:
    """Return a line of the table with the paper's seconds and ours; cells that were not run are empty."""
    paper = BENCHMARKS[dataset].paper[setting] if world == "uniform" else ()
    seconds = dict(zip(METHODS, paper, strict=False))
    return {
        "data": NAMES[dataset],
        "setting": setting,
        "latencies": world,
        "method": method,
        "seconds": found.get("seconds"),
        "ratio": found.get("ratio"),
        "paper": seconds.get(method),
        "paper ratio": seconds[method] / seconds["ours"] if seconds else None,
        **{key: found.get(key) for key in ("predicted", "rounds", "per round", "A(p)", "accuracy")},
    }


def _judge_faster(dataset: str, setting: str, world: str, ratios: Mapping[Any, Ratio], seeds: int) -> Claim:
    """Judge whether ours is faster than each of the others, by two standard errors over the seeds."""
    mine, paper = {m: ratios[setting, world, m] for m in METHODS[1:]}, BENCHMARKS[dataset].paper[setting]
    text = f"{dataset}, {setting}, {world} latencies: ours reaches the target sooner than uniform, norm and ratio"
    evidence = ", ".join(f"{m} takes {ratio}" for m, ratio in mine.items())
    if world == "uniform":
        evidence += "; the paper: " + ", ".join(f"{p / paper[0]:.2f}×" for p in paper[1:])
    return _judge_if_enough_seeds(seeds, text, all(ratio.above_one for ratio in mine.values()), evidence)


def _claims(
    dataset: str,
    settings: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    ratios: Mapping[Any, Ratio],
    size: TrainingSize,
) -> list[Claim]:
    others = [r for r in rows if r["method"] != "ours"]
    off = [abs(np.log(r["ratio"] / r["predicted"])) for r in others]
    worst = others[int(np.argmax(off))]
    late = [abs(r["per round"] / r["A(p)"] - 1) for r in rows]
    gained = {s: ratios[s, "uniform", "uniform"] for s in settings}
    claims = [
        (
            f"{dataset}: more is gained where data is not i.i.d.",
            all(gained[s].mean > gained["iid"].mean for s in settings if s != "iid"),
            "over uniform selection: " + ", ".join(f"{s} {gain}" for s, gain in gained.items()),
        ),
        (
            f"{dataset}: rounds last as long as the objective says, within 15 %",
            max(late) < 0.15,
            f"largest difference {100 * max(late):.0f} %, mean {100 * float(np.mean(late)):.0f} %",
        ),
        (
            f"{dataset}: training gains what the objective predicts, within 20 %",
            max(off) < np.log(1.2),
            f"median difference {100 * (np.exp(np.median(off)) - 1):.0f} %; largest: {_describe(worst)}",
        ),
    ]
    beats = [_judge_faster(dataset, s, w, ratios, size.seeds) for s, w in product(settings, WORLDS)]
    return beats + [_judge_if_enough_seeds(size.seeds, *claim) for claim in claims]


def _describe(row: Mapping[str, Any]) -> str:
    where = f"{row['setting']}, {row['latencies']}, {row['method']}"
    return f"{where}: {row['ratio']:.2f}×, predicted {row['predicted']:.2f}×"


def _judge_if_enough_seeds(seeds: int, text: str, holds: bool, evidence: str) -> Claim:
    """Judge a claim, unless there are too few seeds to do so."""
    if seeds < 3:
        return Claim.not_run(text, f"{seeds} seed cannot tell: {evidence}")
    return Claim.judge(text, bool(holds), evidence)


def _notes(size: TrainingSize) -> tuple[str, ...]:
    amount = "all samples" if size.per_client is None else f"{size.per_client} samples per client"
    how = f"{size.seeds} seeds, {size.rounds} rounds of which {size.trial} trial, {amount}, "
    how += f"batches of {size.batch}, {EPOCHS} local epochs of Adam ({LR:g}), LeNet-5."
    target = "target: the lowest test loss, mean of five rounds, that all methods reach, per setting and seed; the "
    target += "paper does not print its own. Seconds are simulated, the trial included; ±: standard error over seeds."
    predicted = "predicted: the ratio of A R², with G and α as estimated in the trial. Where all have as much data "
    predicted += "(iid, nearly class) ratio and uniform selection are one law, and a difference between them is noise."
    return how, target, predicted


def table1(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Table 1: simulated seconds to the target loss, three data settings, uniform and log-normal latencies."""
    settings, size, rows, claims = ("iid", "class", "dir"), SIZES[scale], list[Row](), list[Claim]()
    for dataset in BENCHMARKS:
        if (reason := unavailable_reason(dataset, scale)) is not None:
            rows += [_line(dataset, s, "uniform", m, {}) for s, m in product(settings, METHODS)]
            text = f"{dataset}: ours reaches the target sooner than uniform, norm and ratio"
            claims.append(Claim.not_run(text, reason))
            continue
        study = run_study(dataset, settings, size, on_progress)
        mine, ratios = _rows(study, dataset, settings, size)
        rows += mine
        claims += _claims(dataset, settings, mine, ratios, size)
    return Outcome("latency/table1", scale, rows, claims, _notes(size))


SHARES = (0.25, 0.5, 1.0)  # of the time that the shortest training took


def _curve_rows(study: Study, dataset: str, setting: str, size: TrainingSize) -> list[Row]:
    """Return loss and accuracy at equal times, and the mean change of accuracy from round to round."""
    rows = []
    for world, method in product(WORLDS, METHODS):
        lines = []
        for seed in range(size.seeds):
            trajectories = study[setting, world, seed]
            end, trajectory = min(clock(w, world)[-1] for w in trajectories.values()), trajectories[method]
            at = [
                max(int(np.searchsorted(clock(trajectory, world), share * end, side="right")) - 1, 0)
                for share in SHARES
            ]
            jumps = np.abs(np.diff(trajectory.accuracy[len(trajectory.accuracy) // 2 :])).mean()
            lines.append([*trajectory.loss[at], *trajectory.accuracy[at], jumps])
        names = [f"{what} at {100 * share:g} %" for what in ("loss", "accuracy") for share in SHARES]
        means = np.mean(lines, axis=0).tolist()
        place = {"data": NAMES[dataset], "setting": setting, "latencies": world, "method": method}
        rows.append({**place, **dict(zip([*names, "jump of accuracy"], means, strict=True))})
    return rows


def _curves(item: str, setting: str, scale: Scale, on_progress: Progress | None) -> Outcome:
    size, rows, claims = SIZES[scale], list[Row](), list[Claim]()
    for dataset in BENCHMARKS:
        if (reason := unavailable_reason(dataset, scale)) is not None:
            claims.append(Claim.not_run(f"{dataset}: ours has the lowest loss at equal time", reason))
            continue
        mine = _curve_rows(run_study(dataset, (setting,), size, on_progress), dataset, setting, size)
        rows += mine
        for world in WORLDS:
            claims += _curve_claims(f"{dataset}, {setting}, {world} latencies", world, mine, size.seeds)
    return Outcome(
        item, scale, rows or [{"data": name, "setting": setting} for name in BENCHMARKS], claims, _notes(size)[:1]
    )


def _curve_claims(where: str, world: str, rows: Sequence[Row], seeds: int) -> list[Claim]:
    here = {r["method"]: r for r in rows if r["latencies"] == world}
    evidence = {
        key: ", ".join(f"{m} {r[key]:.3f}" for m, r in here.items()) for key in ("loss at 100 %", "jump of accuracy")
    }
    lowest = all(here["ours"]["loss at 100 %"] < here[m]["loss at 100 %"] for m in METHODS[1:])
    claims = [
        _judge_if_enough_seeds(
            seeds, f"{where}: ours has the lowest loss at equal time", lowest, evidence["loss at 100 %"]
        )
    ]
    if here["ours"]["setting"] != "iid":  # the paper says the next of the other settings
        text = f"{where}: the accuracy of ours jumps less from round to round than under uniform selection"
        calmer = here["ours"]["jump of accuracy"] < here["uniform"]["jump of accuracy"]
        claims.append(_judge_if_enough_seeds(seeds, text, calmer, evidence["jump of accuracy"]))
    return claims


def fig4(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 4: loss and accuracy over time, i.i.d. data."""
    return _curves("latency/fig4", "iid", scale, on_progress)


def fig5(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 5: loss and accuracy over time, Dirichlet(0.1) data."""
    return _curves("latency/fig5", "dir", scale, on_progress)


def fig6(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 6: loss and accuracy over time, half of the classes per client."""
    return _curves("latency/fig6", "class", scale, on_progress)
