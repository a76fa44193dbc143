"""The result of a comparison in a few sentences that claim no more than the seeds support."""

from __future__ import annotations

from collections.abc import Sequence

from fedweave.report import units
from fedweave.report.summary import Row, best, clearly_better, shared_time


def headline(rows: Sequence[Row]) -> list[str]:
    """Return a few sentences, the most important first."""
    if not rows:
        return ["There are no runs to report."]
    sentences = _single(rows[0]) if len(rows) == 1 else _several(rows)
    told = [sentence for sentence in (*sentences, *_caveats(rows)) if sentence]
    return told or ["The runs have no measure in common."]


def whose(rows: Sequence[Row]) -> str:
    """Say whose model was measured on whose data."""
    sentences = list[str]()
    if any(row["value"] is not None for row in rows):
        sentences.append(f"Test {rows[0]['metric']} is that of the global model on the common test set.")
    if share := max((row["validation"] for row in rows), default=0):
        sentences.append(f"The test set is a validation split here: {share:.3g} of the training samples.")
    if any(row["objective"] is not None for row in rows):
        sentences.append("The training loss is that of the global model on the training data of all clients.")
    if any(row["client_mean"] is not None for row in rows):
        sentences.append("On each client's own test data the same global model is scored for every client by itself.")
    return " ".join(sentences)


def _single(row: Row) -> list[str]:
    end = f"after {_length(row)}"
    if row["value"] is not None:
        score = units.score(row["metric"])(row["value"], row["value_std"])
        how = f"{score} test accuracy" if row["metric"] == "accuracy" else f"a test {row['metric']} of {score}"
        first = f"{row['method']} ended at {how} {end}."
    elif row["objective"] is not None:
        loss = units.loss(row["objective"], row["objective_std"])
        first = f"{row['method']} ended at a training loss of {loss} over all clients {end}."
    else:
        first = f"{row['method']} ran for {_length(row)} and was never evaluated."
    if not row["reached"]:
        return [first, _missed([row])]
    subject = "It" if row["reached"] == row["seeds"] else f"In {row['reached_of']} seeds it"
    return [first, f"{subject} reached {_goal(row)} in {_cost(row)}."]


def _several(rows: Sequence[Row]) -> list[str]:
    ended = _gain(rows) or _quality(rows, "value") or _quality(rows, "objective")
    race = _race(rows)
    return [ended, race, _missed(rows)] if shared_time(rows) else [race, ended, _missed(rows)]


def _gain(rows: Sequence[Row]) -> str:
    """Say what the same simulated time gained or lost beside the first method, as far as the seeds show it, for what.

    Empty where runs ended at different times, or a difference cannot be judged.
    """
    (base, *others), time = rows, shared_time(rows)
    if not time or any(not row["paired"] or row["paired"]["low"] is None for row in others):
        return ""
    up, what, write = base["higher_is_better"], f"test {base['metric']}", units.difference(base["metric"])
    over = f"over {base['method']}" if up else f"compared with {base['method']}"

    def found(verdict: str) -> list[tuple[str, str, str]]:
        """Return method, difference and times the bytes, the largest difference first."""
        rows = sorted((row for row in others if row["paired"]["verdict"] == verdict), key=_gap, reverse=True)
        ratios = (units.ratio(_bytes(row) / _bytes(base)) for row in rows)
        return [(row["method"], write(_gap(row)).lstrip("+"), at) for row, at in zip(rows, ratios, strict=True)]

    def more(others: Sequence[tuple[str, str, str]]) -> list[str]:
        return [f"{method} {'' if up else 'by '}{gap} at {at}" for method, gap, at in others]

    gained, lost = f"no method was shown to {'gain' if up else 'lower'} {what} {over}", ""
    if better := found("better"):
        method, gap, at = better[0]
        how = f"gained {gap} in {what}" if up else f"lowered {what} by {gap}"
        gained = _and([f"{method} {how} {over} at {at} its bytes", *more(better[1:])])
    if worse := found("worse"):
        method, gap, at = worse[0]
        lost = "; " + _and([f"{method} {'lost' if up else 'raised it by'} {gap} at {at}", *more(worse[1:])])
    return f"In the same {units.seconds(time)} of simulated time {gained}{lost}."


def _gap(row: Row) -> float:
    """Return how far a method ended from the first one."""
    return abs(row["paired"]["difference"])


def _bytes(row: Row) -> float:
    return row["bytes_up"] + row["bytes_down"]


def _race(rows: Sequence[Row]) -> str:
    """Say which method reached the target first in simulated time."""
    arrived = [row for row in rows if row["reached"]]
    first = arrived[0] if len(arrived) == 1 else best(arrived, "seconds_to_target")
    if first is None:
        return ""
    goal = _goal(first)
    some = "" if _share(first) == 1 else f" (in {first['reached_of']} seeds)"
    if len(arrived) == 1:
        return f"Only {first['method']} reached {goal}{some}: in {_cost(first)}."
    if all(row["seeds"] == 1 for row in rows):
        how = f"{_cost(first)}{_versus(first)}"
        return f"{first['method']} reached {goal} first, in {how}: one seed, so perhaps by chance."
    # compared with methods that reached the target at least as often; the others are named by _missed
    rivals = [row for row in arrived if row is not first and _share(row) >= _share(first)]
    close = [row for row in rivals if not clearly_better(first, row, "seconds_to_target", lower=True)]
    if not close:
        behind = _behind(first, rivals)
        return f"{first['method']} reached {goal} first{some}: in {_cost(first)}{_versus(first)}{behind}."
    if len(close) == len(rivals):
        names = _and([f"{row['method']} ({_time(row)})" for row in (first, *close)])
        return f"No clear winner in the simulated time to {goal}: {names} are within the seeds' spread."
    return f"{_leaders([first, *close], goal)}; the seeds do not show which of them is faster."


def _behind(first: Row, rivals: Sequence[Row]) -> str:
    """Return how much longer the second took, when the winner is the baseline and so has no ratio itself."""
    known = [row for row in rivals if row["time_ratio"] is not None]
    if first["method"] != first["baseline"] or not known:
        return ""
    after = min(known, key=lambda row: row["time_ratio"])
    return f"; the next, {after['method']}, took {units.ratio(after['time_ratio'])} as long in simulated time"


def _leaders(leaders: Sequence[Row], goal: str) -> str:
    names = _and([row["method"] for row in leaders])
    base = leaders[0]["baseline"]
    if any(row["time_ratio"] is None or row["method"] == base for row in leaders):
        return f"{names} reached {goal} first, in {_and([_time(row) for row in leaders])} of simulated time"
    ratios = _and([units.ratio(row["time_ratio"]) for row in leaders])
    return f"{names} reached {goal} first, in {ratios} the simulated time of {base}"


def _quality(rows: Sequence[Row], quantity: str) -> str:
    """Say which method ended best."""
    top = best(rows, quantity)
    if top is None:
        return ""
    what, lower, write = f"test {top['metric']}", not top["higher_is_better"], units.score(top["metric"])
    if quantity == "objective":
        what, lower, write = "training loss over all clients", True, units.loss
    name = f"{'lowest' if lower else 'highest'} final {what}"
    rest = [row for row in rows if row is not top and row[quantity] is not None]
    rest.sort(key=lambda row: row[quantity], reverse=not lower)
    close = [row for row in rest if not clearly_better(top, row, quantity, lower)]

    def score(row: Row) -> str:
        return f"{row['method']} ({write(row[quantity], row[f'{quantity}_std'])})"

    if all(row["seeds"] == 1 for row in rows):
        return f"{score(top)} has the {name}, then {score(rest[0])}; with one seed each that may be chance."
    if not close:
        ahead = f"ahead of {score(rest[0])}: the paired 95 % interval excludes zero"
        return f"{score(top)} has the {name}, {ahead}{_price(top, rest[0])}."
    close = close[:3] if len(close) > 4 else close
    names = _and([score(top), *map(score, close)])
    if len(close) == len(rest):
        return f"No clear winner in final {what}: {names} are within the seeds' spread."
    return f"{names} have the {name}, too close for the seeds to tell them apart."


def _price(row: Row, other: Row) -> str:
    """Say what a method took beside another one, where that differs."""
    costs = (
        ("simulated time", row["simulated_seconds"], other["simulated_seconds"]),
        ("bytes", _bytes(row), _bytes(other)),
    )
    ratios = [(what, a / b) for what, a, b in costs if a and b]
    parts = [f"{units.ratio(ratio)} the {what}" for what, ratio in ratios if abs(ratio - 1) > 0.01]
    return f"; it took {_and(parts)}" if parts else ""


def _missed(rows: Sequence[Row]) -> str:
    """Name the methods whose seeds did not all reach the target."""
    goal = _goal(next((row for row in rows if row["target"] is not None), rows[0]))
    never = [row["method"] for row in rows if row["reached"] == 0]
    some = [row for row in rows if row["reached"] and _share(row) < 1]
    if len(never) == len(rows) > 1:
        return f"No method reached {goal}."
    sentences = [f"{_and(never)} never reached {goal}."] if never else []
    if some and len(rows) > 1:
        counts = _and([f"{row['method']} in {row['reached_of']} seeds" for row in some])
        sentences.append(f"Some seeds fell short: {counts} reached {goal}.")
    return " ".join(sentences)


def _caveats(rows: Sequence[Row]) -> list[str]:
    seeds = max(row["seeds"] for row in rows)
    sentences = []
    if any(row["diverged"] for row in rows):
        sentences.append(f"Training diverged: {diverged_runs(rows)}. Lower the learning rate.")
    if any(row["calibrated"] for row in rows):
        sentences.append(
            "Step lengths are calibrated: every round each method's learning rate is scaled to FedAvg's step."
        )
    if len(rows) > 1 and seeds == 2:
        sentences.append("Two seeds give only a rough idea of the spread.")
    if any(row["stalled"] for row in rows):
        which = _some(rows, "stalled")
        sentences.append(f"Training stalled ({which}): the direction ended close to zero, see the step lengths.")
    if any(row["ended_early"] for row in rows):
        which = _some(rows, "ended_early")
        sentences.append(
            f"Some runs ended at the target or by patience, as asked ({which}): final numbers are of different rounds."
        )
    if any(row["short"] for row in rows):
        which = _some(rows, "short")
        sentences.append(f"Some runs had done all their rounds before the time was over ({which}): give more rounds.")
    if any(row["unfinished"] for row in rows):
        which = _some(rows, "unfinished")
        sentences.append(
            f"Some runs stopped before their last round ({which}): their final numbers are not comparable."
        )
    return sentences


def diverged_runs(rows: Sequence[Row]) -> str:
    """Return how many runs of which methods diverged, and how good they had been: 1 of 3 of scaffold (best 63.0 %)."""
    found = [row for row in rows if row["diverged"]]
    best_ = (units.score(row["metric"])(row["best"], None) for row in found)
    at = (f" at round {row['best_round']}" if row["best_round"] else "" for row in found)
    counts = (_some([row], "diverged") for row in found)
    return _and([f"{count} (best {value}{when})" for count, value, when in zip(counts, best_, at, strict=True)])


def _some(rows: Sequence[Row], what: str) -> str:
    """Return how many runs of which methods: 1 of 3 of fedavg and 2 of 3 of fedprox."""
    return _and([f"{row[what]} of {row['seeds']} of {row['method']}" for row in rows if row[what]])


def _goal(row: Row) -> str:
    return units.goal(row["target"], row["metric"])


def _cost(row: Row) -> str:
    n = units.rounds(row["rounds_to_target"])
    time = units.seconds(row["seconds_to_target"])  # the spread is in the table
    return f"{n} {'round' if n == '1' else 'rounds'}, {time} of simulated time"


def _time(row: Row) -> str:
    return units.seconds(row["seconds_to_target"], row["seconds_to_target_std"])


def _versus(row: Row) -> str:
    if row["time_ratio"] is None or row["method"] == row["baseline"]:
        return ""
    return f", {units.ratio(row['time_ratio'])} the simulated time of {row['baseline']}"


def _length(row: Row) -> str:
    low, high = row["rounds_min"], row["rounds_max"]
    span = f"{high}" if low == high else f"{low} to {high}"
    return f"{span} {'round' if span == '1' else 'rounds'}"


def _share(row: Row) -> float:
    return row["reached"] / row["seeds"]


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
