"""Table 1 and figures 4 to 6 of the latency paper: seconds until a loss is reached, and the loss at equal times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fedweave.papers.common.claims import Claim, Outcome, Scale
from fedweave.papers.common.parallel import Told
from fedweave.papers.latency.training import (
    BENCHES,
    EPOCHS,
    LR,
    METHODS,
    SIZES,
    WORLDS,
    Size,
    Study,
    clock,
    priced,
    studied,
    target_of,
    why_not,
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


def _rows(study: Study, dataset: str, settings: Sequence[str], size: Size) -> tuple[list[Row], dict[Any, Ratio]]:
    """Return the lines of the table, and (setting, world, method) -> Ratio of the seconds to ours."""
    rows, ratios, bench = list[Row](), dict[Any, Ratio](), BENCHES[dataset]
    for setting, world in product(settings, WORLDS):
        runs = [study[setting, world, seed] for seed in range(size.seeds)]
        prices = [
            priced(walks, world, target_of(study, setting, seed), size, bench.per_round)
            for seed, walks in enumerate(runs)
        ]
        for method in METHODS:
            pairs = [(p[method], p["ours"]) for p in prices]
            ratio = ratios[setting, world, method] = Ratio.of([mine.seconds / ours.seconds for mine, ours in pairs])
            found = {
                "seconds": np.mean([mine.seconds for mine, _ in pairs]),
                "ratio": ratio.mean,
                "predicted": np.mean([mine.predicted_cost / ours.predicted_cost for mine, ours in pairs]),
                "rounds": np.mean([mine.rounds for mine, _ in pairs]),
                "per round": np.mean([mine.round_seconds for mine, _ in pairs]),
                "A(p)": np.mean([mine.predicted_round for mine, _ in pairs]),
                "accuracy": np.mean([walks[method].accuracy[-1] for walks in runs]),
            }
            rows.append(_line(dataset, setting, world, method, {k: float(v) for k, v in found.items()}))
    return rows, ratios


def _line(dataset: str, setting: str, world: str, method: str, found: Mapping[str, float]) -> Row:
    """Return a line of the table with the paper's seconds beside ours; what was not run is empty."""
    paper = BENCHES[dataset].paper[setting] if world == "uniform" else ()
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


def _beats(dataset: str, setting: str, world: str, ratios: Mapping[Any, Ratio], seeds: int) -> Claim:
    """Judge whether ours is faster than each of the others, by two standard errors over the seeds."""
    mine, paper = {m: ratios[setting, world, m] for m in METHODS[1:]}, BENCHES[dataset].paper[setting]
    text = f"{dataset}, {setting}, {world} latencies: ours reaches the target sooner than uniform, norm and ratio"
    told = ", ".join(f"{m} takes {ratio}" for m, ratio in mine.items())
    if world == "uniform":
        told += "; the paper: " + ", ".join(f"{p / paper[0]:.2f}×" for p in paper[1:])
    return _if_enough(seeds, text, all(ratio.above_one for ratio in mine.values()), told)


def _claims(
    dataset: str, settings: Sequence[str], rows: Sequence[Mapping[str, Any]], ratios: Mapping[Any, Ratio], size: Size
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
            f"median difference {100 * (np.exp(np.median(off)) - 1):.0f} %; largest: {_told(worst)}",
        ),
    ]
    beats = [_beats(dataset, s, w, ratios, size.seeds) for s, w in product(settings, WORLDS)]
    return beats + [_if_enough(size.seeds, *claim) for claim in claims]


def _told(row: Mapping[str, Any]) -> str:
    where = f"{row['setting']}, {row['latencies']}, {row['method']}"
    return f"{where}: {row['ratio']:.2f}×, predicted {row['predicted']:.2f}×"


def _if_enough(seeds: int, text: str, holds: bool, evidence: str) -> Claim:
    """Judge a claim, unless there are too few seeds to do so."""
    if seeds < 3:
        return Claim(text, "not run at this scale", f"{seeds} seed cannot tell: {evidence}")
    return Claim.judged(text, bool(holds), evidence)


def _notes(size: Size) -> tuple[str, ...]:
    amount = "all samples" if size.per_client is None else f"{size.per_client} samples per client"
    how = f"{size.seeds} seeds, {size.rounds} rounds of which {size.trial} trial, {amount}, "
    how += f"batches of {size.batch_size}, {EPOCHS} local epochs of Adam ({LR:g}), LeNet-5."
    target = "target: the lowest test loss, mean of five rounds, that all methods reach, per setting and seed; the "
    target += "paper does not print its own. Seconds are simulated, the trial included; ±: standard error over seeds."
    predicted = "predicted: the ratio of A R², with G and α as estimated in the trial. Where all have as much data "
    predicted += "(iid, nearly class) ratio and uniform selection are one law, and a difference between them is noise."
    return how, target, predicted


def table1(scale: Scale, told: Told | None = None) -> Outcome:
    """Table 1: simulated seconds to the target loss, three data settings, uniform and log-normal latencies."""
    settings, size, rows, claims = ("iid", "class", "dir"), SIZES[scale], list[Row](), list[Claim]()
    for dataset in BENCHES:
        if (reason := why_not(dataset, scale)) is not None:
            rows += [_line(dataset, s, "uniform", m, {}) for s, m in product(settings, METHODS)]
            text = f"{dataset}: ours reaches the target sooner than uniform, norm and ratio"
            claims.append(Claim(text, "not run at this scale", reason))
            continue
        study = studied(dataset, settings, size, told)
        mine, ratios = _rows(study, dataset, settings, size)
        rows += mine
        claims += _claims(dataset, settings, mine, ratios, size)
    return Outcome("latency/table1", scale, rows, claims, _notes(size))


SHARES = (0.25, 0.5, 1.0)  # of the time that the shortest training took


def _curve_rows(study: Study, dataset: str, setting: str, size: Size) -> list[Row]:
    """Return loss and accuracy at equal times, and how much the accuracy jumps from round to round."""
    rows = []
    for world, method in product(WORLDS, METHODS):
        lines = []
        for seed in range(size.seeds):
            walks = study[setting, world, seed]
            end, walk = min(clock(w, world)[-1] for w in walks.values()), walks[method]
            at = [max(int(np.searchsorted(clock(walk, world), share * end, side="right")) - 1, 0) for share in SHARES]
            jumps = np.abs(np.diff(walk.accuracy[len(walk.accuracy) // 2 :])).mean()
            lines.append([*walk.loss[at], *walk.accuracy[at], jumps])
        names = [f"{what} at {100 * share:g} %" for what in ("loss", "accuracy") for share in SHARES]
        means = np.mean(lines, axis=0).tolist()
        place = {"data": NAMES[dataset], "setting": setting, "latencies": world, "method": method}
        rows.append({**place, **dict(zip([*names, "jump of accuracy"], means, strict=True))})
    return rows


def _curves(item: str, setting: str, scale: Scale, told: Told | None) -> Outcome:
    size, rows, claims = SIZES[scale], list[Row](), list[Claim]()
    for dataset in BENCHES:
        if (reason := why_not(dataset, scale)) is not None:
            claims.append(Claim(f"{dataset}: ours has the lowest loss at equal time", "not run at this scale", reason))
            continue
        mine = _curve_rows(studied(dataset, (setting,), size, told), dataset, setting, size)
        rows += mine
        for world in WORLDS:
            claims += _curve_claims(f"{dataset}, {setting}, {world} latencies", world, mine, size.seeds)
    return Outcome(
        item, scale, rows or [{"data": name, "setting": setting} for name in BENCHES], claims, _notes(size)[:1]
    )


def _curve_claims(where: str, world: str, rows: Sequence[Row], seeds: int) -> list[Claim]:
    here = {r["method"]: r for r in rows if r["latencies"] == world}
    told = {
        key: ", ".join(f"{m} {r[key]:.3f}" for m, r in here.items()) for key in ("loss at 100 %", "jump of accuracy")
    }
    lowest = all(here["ours"]["loss at 100 %"] < here[m]["loss at 100 %"] for m in METHODS[1:])
    claims = [_if_enough(seeds, f"{where}: ours has the lowest loss at equal time", lowest, told["loss at 100 %"])]
    if here["ours"]["setting"] != "iid":  # the paper says the next of the other settings
        text = f"{where}: the accuracy of ours jumps less from round to round than under uniform selection"
        calmer = here["ours"]["jump of accuracy"] < here["uniform"]["jump of accuracy"]
        claims.append(_if_enough(seeds, text, calmer, told["jump of accuracy"]))
    return claims


def fig4(scale: Scale, told: Told | None = None) -> Outcome:
    """Figure 4: loss and accuracy over time, i.i.d. data."""
    return _curves("latency/fig4", "iid", scale, told)


def fig5(scale: Scale, told: Told | None = None) -> Outcome:
    """Figure 5: loss and accuracy over time, Dirichlet(0.1) data."""
    return _curves("latency/fig5", "dir", scale, told)


def fig6(scale: Scale, told: Told | None = None) -> Outcome:
    """Figure 6: loss and accuracy over time, half of the classes per client."""
    return _curves("latency/fig6", "class", scale, told)
