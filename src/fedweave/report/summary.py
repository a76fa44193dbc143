"""The comparison in numbers: one row per method, mean and spread over its seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedweave.runs.results import LATEST, Array, Result
from fedweave.statistics import Difference, paired_difference

TO_TARGET = ("rounds_to_target", "seconds_to_target", "bytes_to_target", "total_bytes_to_target")
QUANTITIES = (
    "value",
    "best",
    "accuracy",
    "best_accuracy",
    "loss",
    *LATEST,
    *TO_TARGET,
    "simulated_seconds",
    "bytes_up",
    "bytes_down",
    "wall_seconds",
)
COMPARED = ("value", "loss", "objective", "client_worst_decile", *TO_TARGET)  # seed by seed
MARGIN = 0.01  # methods are equal within this share of the first one's mean
Groups = dict[str, list[Result]]
Row = dict[str, Any]


def by_method(results: Iterable[Result]) -> Groups:
    """Return the runs of each method, methods in order of first appearance."""
    groups: Groups = {}
    for result in results:
        groups.setdefault(str(result.summary["method"]), []).append(result)
    return groups


def compare_rows(results: Sequence[Result]) -> list[Row]:
    """Return one plain dict per method, ready for a table or for JSON.

    Each of ``QUANTITIES`` is there twice: the mean under its own name and the sample standard deviation under
    ``<name>_std`` (None with one seed). The ``*_to_target`` means are over the ``reached`` seeds alone.
    ``time_ratio`` is the mean simulated time to the target over that of ``baseline`` (fedavg, or the first
    method); where it is None, or over fewer seeds, ``note`` says why. ``unfinished`` counts the runs
    that have fewer rounds than their experiment asks for, but for ``ended_early``, those that ended at the target or by
    patience as asked, and those that ended when their simulated time, ``stop_after``, was over; ``short`` those that
    had done all rounds before that; ``stalled`` those whose steps ended close to zero, ``diverged`` those whose last
    model is of no use. ``abandoned`` of ``abandoned_of`` rounds changed nothing, ``refused_rounds`` refused updates.
    ``worst_client`` is that of the seed in which it did worst.
    ``paired`` is the difference to the first method in the metric, seed by seed, with its 95 % t interval and a
    verdict: better, worse, equal (within ``margin``, 1 % of the first method's mean) or undecided.
    ``paired_clients`` has the same for the worst tenth of the clients, ``paired_costs`` for each of the costs to the
    target, by name, where all seeds of both reached it.
    """
    rows = [_row(method, runs) for method, runs in by_method(results).items()]
    if (
        len({result.summary["metric"] for result in results}) > 1
    ):  # of different tasks: what they have in common is the loss
        loss = {"metric": "loss", "higher_is_better": False, **dict.fromkeys(LATEST[1:])}
        loss |= dict.fromkeys(("best", "best_std", "target", "reached", "reached_of", *TO_TARGET))
        rows = [row | loss | {"value": row["loss"], "value_std": row["loss_std"]} for row in rows]
        for row in rows:
            row["by_seed"]["value"] = row["by_seed"]["loss"]
    base = next((row for row in rows if row["method"] == "fedavg"), rows[0] if rows else None)
    return [row | _against(row, base) | _paired_to(row, rows[0]) for row in rows] if base else []


def judged_by(groups: Groups) -> tuple[list[str], float | None]:
    """Return the metrics that the runs are judged by, and the target in the first; several tasks share the loss."""
    runs = [run for several in groups.values() for run in several]
    metrics = list(dict.fromkeys(str(run.summary["metric"]) for run in runs))
    return (metrics, target_of(runs)) if len(metrics) == 1 else (["loss", *metrics], None)


def target_of(results: Iterable[Result]) -> float | None:
    """Return the target shared by the runs, None without one or with several."""
    found = {_target(result) for result in results}
    return found.pop() if len(found) == 1 else None


def shared_time(rows: Sequence[Row]) -> float | None:
    """Return the simulated time that all runs were given and have used up; None if any ended at another time."""
    times = {row["stop_after"] for row in rows}
    elsewhere = any(row[why] for row in rows for why in ("short", "unfinished", "ended_early"))
    return times.pop() if len(times) == 1 and not elsewhere else None


def clearly_better(a: Row, b: Row, quantity: str, lower: bool = False) -> bool:
    """Return whether ``a`` beats ``b``: the 95 % t interval of their differences, seed by seed, excludes zero."""
    missing = None in (*a["by_seed"][quantity].values(), *b["by_seed"][quantity].values())
    if missing and quantity.endswith("_to_target"):  # seeds that never arrived must not be left out
        return False
    return _difference(a, b, quantity, higher_is_better=not lower).verdict() == "better"


def _difference(a: Row, b: Row, quantity: str, higher_is_better: bool) -> Difference:
    ours, theirs = a["by_seed"][quantity], b["by_seed"][quantity]
    seeds = [seed for seed in ours if seed in theirs] or [None]
    values = [[np.nan if (v := side.get(s)) is None else v for s in seeds] for side in (ours, theirs)]
    return paired_difference(*values, higher_is_better=higher_is_better)


def _paired_to(row: Row, first: Row) -> Row:
    """Return the differences of a row to the first one: in the metric, and in the costs to the target."""
    paired = _paired(row, first, "value", row["metric"], row["higher_is_better"])
    reached = row["reached"] == row["seeds"] and first["reached"] == first["seeds"]  # who fails must not look quick
    costs = {name: _paired(row, first, name, name, higher=False) for name in TO_TARGET} if reached else {}
    worst = _paired(row, first, "client_worst_decile", row["metric"], row["higher_is_better"])
    return {
        "paired": paired,
        "paired_clients": worst,
        "paired_costs": {name: cost for name, cost in costs.items() if cost},
    }


def _paired(row: Row, first: Row, quantity: str, metric: str, higher: bool) -> Row | None:
    """Return the difference of a row to the first one, in the metric's own direction; None for the first itself."""
    if row is first or row[quantity] is None or first[quantity] is None:
        return None
    d, margin = _difference(row, first, quantity, higher), MARGIN * abs(first[quantity])
    if not d.seeds:
        return None
    low, high = sorted(end if higher else -end for end in d.interval)
    known = np.isfinite(low)
    return {
        "metric": metric,
        "baseline": first["method"],
        "difference": d.mean if higher else -d.mean,
        "low": low if known else None,
        "high": high if known else None,
        "verdict": d.verdict(margin) if d.seeds == min(row["seeds"], first["seeds"]) else "undecided",
        "margin": margin,
        "detectable": d.detectable if np.isfinite(d.detectable) else None,
        "seeds": d.seeds,
    }


def best(rows: Sequence[Row], quantity: str) -> Row | None:
    """Return the row with the best mean, or None when no two rows can be compared.

    A cost to the target is compared only among the methods that reached it most often: one fast seed of a method
    that mostly fails does not win.
    """
    known = [row for row in rows if row[quantity] is not None]
    if len(known) < 2:
        return None
    if quantity.endswith("_to_target"):
        most = max(row["reached"] / row["seeds"] for row in known)
        known = [row for row in known if row["reached"] / row["seeds"] == most]
    own = quantity in ("value", "best") or quantity.startswith("client_")
    higher = rows[0]["higher_is_better"] if own else "accuracy" in quantity
    sign = -1 if higher else 1
    return min(known, key=lambda row: sign * row[quantity])


def final_class_accuracy(runs: Sequence[Result]) -> Array | None:
    """Return the accuracy per class of the last evaluated round, mean over the seeds."""
    rows = []
    for run in runs:
        table = np.asarray(run.rounds.get("class_accuracy", ()), dtype=float)
        seen = table[np.isfinite(table).any(1)] if table.ndim == 2 else table[:0]
        rows += [seen[-1]] if len(seen) else []
    if not rows or len({row.size for row in rows}) > 1:
        return None
    known = np.isfinite(rows)
    total = np.where(known, rows, 0).sum(0)
    return np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)  # nan: a class without test samples


def _row(method: str, runs: Sequence[Result]) -> Row:
    row: Row = {"method": method, "seeds": len(runs), "target": target_of(runs)}
    row |= {key: runs[0].summary[key] for key in ("metric", "higher_is_better")}
    for quantity in QUANTITIES:
        row |= _mean_std(quantity, [_value(run, quantity) for run in runs])
    row["by_seed"] = {quantity: {_seed(run): _value(run, quantity) for run in runs} for quantity in COMPARED}
    lengths, times = [int(run.summary["rounds"]) for run in runs], {run.experiment.get("stop_after") for run in runs}
    hit = sum(run.summary.get("rounds_to_target") is not None for run in runs)
    aims = hit > 0 or any(_target(run) is not None for run in runs)
    return row | {
        "reached": hit if aims else None,
        "reached_of": f"{hit} of {len(runs)}" if aims else None,
        "rounds_min": min(lengths),
        "rounds_max": max(lengths),
        "worst_client": _worst_client(runs),
        "abandoned": sum(int(run.summary.get("abandoned", 0)) for run in runs),
        "abandoned_of": sum(lengths),
        "refused_rounds": sum(int(run.summary.get("refused_rounds", 0)) for run in runs),
        "diverged": sum(bool(run.summary.get("diverged")) for run in runs),
        "best_round": runs[0].summary.get("best_round") if len(runs) == 1 else None,
        "stalled": sum(run.summary.get("stalled_since") is not None for run in runs),
        "calibrated": any(run.experiment.get("calibrate") for run in runs),
        "validation": max((run.experiment.get("validation") or 0.0) for run in runs),
        "ended_early": sum(run.summary.get("ended_early") in ("target", "patience") for run in runs),
        "stop_after": times.pop() if len(times) == 1 else None,
        "short": sum(
            n == run.experiment.get("rounds")
            and run.summary["simulated_seconds"] < (run.experiment.get("stop_after") or 0)
            for n, run in zip(lengths, runs, strict=True)
        ),
        "unfinished": sum(
            n < run.experiment.get("rounds", n) and not _ended(run) for n, run in zip(lengths, runs, strict=True)
        ),
    }


def _worst_client(runs: Sequence[Result]) -> Row | None:
    """Return the worst client of the seed in which it did worst, with that seed."""
    known = [run for run in runs if run.summary.get("worst_client") and _value(run, "client_worst") is not None]
    if not known:
        return None
    worst = (min if known[0].summary["higher_is_better"] else max)(known, key=lambda run: run.summary["client_worst"])
    return {"seed": _seed(worst), **worst.summary["worst_client"]}


def _ended(run: Result) -> bool:
    return run.summary.get("ended_early") is not None


def _against(row: Row, base: Row) -> Row:
    mine, theirs = row["seconds_to_target"], base["seconds_to_target"]
    note = None
    if row["reached"] is None:
        note = "no target set"
    elif mine is None:
        note = f"{row['method']} never reached the target"
    elif not theirs:
        note = f"{base['method']} never reached the target" if theirs is None else "no simulated time passed"
    elif row["reached"] < row["seeds"] or base["reached"] < base["seeds"]:
        note = "over the seeds that reached the target"
    ratio = mine / theirs if mine is not None and theirs else None
    return {"baseline": base["method"], "time_ratio": ratio, "note": note}


def worse_at_the_end(rows: Sequence[Row]) -> str:
    """Say what “reached” means where a method reached the target and its mean at the end has not; else nothing."""
    for row in rows:
        up, value = row["higher_is_better"], row["value"]
        if row["reached"] and value is not None and (value < row["target"] if up else value > row["target"]):
            return f"“reached”: at some evaluation; the end may be {'lower' if up else 'higher'}"
    return ""


def _mean_std(name: str, values: Sequence[float | None]) -> Row:
    known = np.array([v for v in values if v is not None and np.isfinite(v)], dtype=float)
    return {
        name: float(known.mean()) if known.size else None,
        f"{name}_std": float(known.std(ddof=1)) if known.size > 1 else None,
    }


def _seed(run: Result) -> str:
    return str(run.summary.get("seed", run.experiment.get("seed")))


def _value(run: Result, quantity: str) -> float | None:
    return run.summary.get(quantity)


def _target(run: Result) -> float | None:
    target = run.summary.get("target", run.experiment.get("target"))
    return None if target is None else float(target)
