"""What a run leaves behind: one row per round, one per asked client, and the numbers people quote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedweave.core.records import Array, State
from fedweave.core.settings import BadInput
from fedweave.store.export import Columns
from fedweave.tasks import Task

if TYPE_CHECKING:
    from torch import Tensor, nn

STALLED_ROUNDS = 5
ENDED = {  # why before the last round
    "target": "it reached the target",
    "patience": "its metric no longer improved",
    "time": "its simulated time was over",
}
LATEST = ("objective", "client_mean", "client_std", "client_worst", "client_worst_decile")  # if a run has them


@dataclass(frozen=True)
class Result:
    """One finished (or interrupted) run.

    ``rounds`` columns, one row per round: ``round`` (from 1), ``clock`` (simulated seconds at its end), ``seconds``
    (of this round), ``device_seconds`` (summed over the asked clients), ``wall_seconds`` (cumulative), ``accuracy``,
    ``loss`` (of the global model on the common test set; nan where not evaluated), ``train_loss`` (of this round's
    clients while they trained), ``asked``, ``received``, ``refused``, ``bytes_up``, ``bytes_down`` (cumulative),
    ``class_accuracy`` (rounds × classes) and ``abandoned`` (1: nothing of it counts); then the measures that this run
    has (``fedweave.round.measures``): ``diversity``, ``direction_length``, ``step_length``, those of its aggregator,
    and what was asked for: ``objective`` (the training loss over all clients) and ``client_mean``, ``client_std``,
    ``client_worst``, ``client_worst_decile`` of ``client_scores``.
    ``clients`` columns, one row per round and asked client: ``round``, ``client``, ``count``, ``expected``,
    ``received`` (a mask), ``steps``, ``loss``, ``seconds``, ``bytes_up``, ``first_gradient`` (norm of the first
    stochastic gradient, at the global model) and ``first_loss`` (of the same batch).
    ``client_scores`` columns, where clients were evaluated one by one: ``round``, ``client`` and ``value``, the task's
    primary metric of the global model on the client's own test samples; then ``test_samples``, their number, and
    ``name``, where the data names its natural clients.
    """

    experiment: Mapping[str, Any]  # the resolved experiment as plain data
    manifest: Mapping[str, Any]  # versions, command, data digest, device, label counts per client
    rounds: Columns
    clients: Columns
    summary: Mapping[str, Any]
    x: Array | None = None  # final parameters, flat
    folder: Path | None = None
    client_scores: Columns = field(default_factory=dict)
    best: State = field(default_factory=dict, repr=False)  # x, round and value of the best evaluated model
    factory: Callable[..., nn.Module] | None = field(default=None, repr=False, compare=False)  # of an own model

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the function that makes the model when a result is sent elsewhere: many cannot be sent."""
        return {**vars(self), "factory": None}

    def __repr__(self) -> str:
        s = self.summary
        score = f"{s['metric']}={s['value']}" if s["value"] is None else f"{s['metric']}={s['value']:.4g}"
        return f"Result({s['method']}, rounds={s['rounds']}, {score}, run={s['run']!r})"

    def _repr_html_(self) -> str:
        from fedweave.report import result_html

        return result_html(self)

    def model(
        self, factory: Callable[..., nn.Module] | None = None, *, which: Literal["last", "best"] = "last"
    ) -> nn.Module:
        """Return a new torch module with the trained values, in evaluation mode.

        ``which="best"`` is the model of the evaluated round with the best value of the task's primary metric.
        ``factory`` makes the module; it is needed only where a model of your own was trained in another process.
        """
        from fedweave.runs.trained import trained_module

        return trained_module(self, factory, which)

    def state_dict(
        self, factory: Callable[..., nn.Module] | None = None, *, which: Literal["last", "best"] = "last"
    ) -> dict[str, Tensor]:
        """Return all parameters and buffers of ``model()`` by name, as ``load_state_dict`` takes them."""
        return dict(self.model(factory, which=which).state_dict())

    def to_pandas(self) -> Any:
        """Return the rows per round as a pandas DataFrame."""
        return frame_of([self], [{}])


def frame_of(results: Sequence[Result], keys: Sequence[Mapping[str, Any]]) -> Any:
    """Return the rows per round of several runs as one pandas DataFrame; first the columns that are one value a run."""
    pd = pandas()
    tables = [
        {name: [value] * run.rounds["round"].size for name, value in own.items()} | dict(run.rounds)
        for run, own in zip(results, keys, strict=True)
    ]
    names = dict.fromkeys(name for table in tables for name in table)
    sizes = [run.rounds["round"].size for run in results]
    return pd.DataFrame(
        {n: [v for t, size in zip(tables, sizes, strict=True) for v in t.get(n, [None] * size)] for n in names}
    )


def flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return a row without rows inside it: their values have names such as ``paired_low``."""
    found = dict[str, Any]()
    for name, value in row.items():
        found |= flat(value, f"{before}{name}_") if isinstance(value, Mapping) else {before + name: value}
    return found


def pandas() -> Any:
    """Return pandas, which is an extra."""
    try:
        import pandas as pd
    except ImportError:
        raise BadInput("to_pandas() needs pandas. Install it with: pip install 'fedweave[data]'.") from None
    return pd


def score_of(row: Mapping[str, Any], task: Task | None = None) -> str:
    """Return how a round did, in words: by the task's own metric, else by accuracy or loss; "" if not evaluated."""
    own = (task.primary,) if task is not None else ("perplexity",)
    for name in (*own, "accuracy", "loss", "objective"):
        if np.isfinite(row.get(name, np.nan)):
            return f"{name} {row[name]:.3f}" if name == "accuracy" else f"{name} {row[name]:.4g}"
    return ""


def to_target(
    rounds: Columns, target: float | None, metric: str = "accuracy", higher_is_better: bool = True
) -> dict[str, float | int | None]:
    """Return rounds, simulated seconds and bytes until the metric on the test set first reaches ``target``.

    ``bytes_to_target`` are those that clients sent, ``total_bytes_to_target`` also those that they were sent.
    """
    costs = {
        "rounds_to_target": rounds["round"],
        "seconds_to_target": rounds["clock"],
        "bytes_to_target": rounds["bytes_up"],
        "total_bytes_to_target": rounds["bytes_up"] + rounds["bytes_down"],
    }
    values, hit = rounds.get(metric, np.empty(0)), np.empty(0, int)
    if target is not None:
        hit = np.flatnonzero(values >= target if higher_is_better else values <= target)
    return {name: column[hit[0]].item() if hit.size else None for name, column in costs.items()}


def reason_to_end(
    experiment: Mapping[str, Any], task: Mapping[str, Any] | None, row: Mapping[str, Any], best: int
) -> str | None:
    """Return why a run ends with this round before its last: "target", "patience", "time", or None, if it does not.

    ``row`` is the round's, ``best`` the first round with the best value of the task's metric so far, 0 before any.
    """
    round = int(row["round"])
    if task is None or round % experiment["evaluate_every"] or round >= experiment["rounds"]:
        return None
    target, patience, seconds = experiment["target"], experiment["patience"], experiment["stop_after"]
    sign, value = 1 if task["higher_is_better"] else -1, float(row.get(task["primary"], np.nan))
    if experiment["stop_at_target"] and target is not None and sign * value >= sign * target:
        return "target"
    if patience is not None and round - best >= patience:
        return "patience"
    return "time" if seconds is not None and row["clock"] >= seconds else None


def ended_early(rounds: Columns, experiment: Mapping[str, Any], task: Mapping[str, Any] | None) -> str | None:
    """Return why a run with these rows has ended before its last round: as ``reason_to_end``; None, if it has not."""
    none = dict.fromkeys(("patience", "stop_after"))  # older runs have neither
    known = {"stop_at_target": False, **none, "evaluate_every": 1, **experiment}
    if not rounds["round"].size or not may_end_early(known):
        return None
    metric, higher = primary_of(rounds, task)
    values = rounds.get(metric, np.full(rounds["round"].size, np.nan))
    seen = np.flatnonzero(np.isfinite(values))
    best = rounds["round"][seen[(np.argmax if higher else np.argmin)(values[seen])]] if seen.size else 0
    return reason_to_end(known, task, {name: column[-1] for name, column in rounds.items()}, int(best))


def may_end_early(experiment: Mapping[str, Any]) -> bool:
    """Return whether something other than its number of rounds may end a run."""
    return bool(experiment["stop_at_target"] or experiment["patience"] or experiment["stop_after"])


def primary_of(rounds: Columns, task: Mapping[str, Any] | None) -> tuple[str, bool]:
    """Return the metric by which a run is judged, and whether higher is better; runs of 0.1 do not name it."""
    if task is not None:
        return str(task["primary"]), bool(task["higher_is_better"])
    return ("accuracy", True) if np.isfinite(rounds["accuracy"]).any() else ("loss", False)


def summarise(rounds: Columns, target: float | None, task: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the numbers of ``fedweave run --json`` that come from the rows alone; ``task`` is the manifest's."""
    metric, higher = primary_of(rounds, task)
    values = rounds.get(metric, np.empty(0))
    seen = np.flatnonzero(np.isfinite(values))
    scores = values[seen].tolist()
    known = np.flatnonzero(np.isfinite(rounds["accuracy"]))
    accuracy = rounds["accuracy"][known].tolist()
    last_seen = known if known.size else seen  # a regression has no accuracy: then the last round counts
    loss = rounds["loss"][last_seen[-1] if last_seen.size else -1].item() if rounds["loss"].size else np.nan
    last = {
        c: rounds[c][-1].item() if rounds[c].size else 0 for c in ("clock", "wall_seconds", "bytes_up", "bytes_down")
    }
    value = scores[-1] if scores else None
    return {
        **({metric: value} if metric not in ("accuracy", "loss") else {}),  # which have rules of their own below
        "rounds": int(rounds["round"].size),
        "metric": metric,
        "higher_is_better": higher,
        "value": value,
        "best": (max if higher else min)(scores, default=None),
        "best_round": int(rounds["round"][seen[(np.argmax if higher else np.argmin)(scores)]]) if scores else None,
        "diverged": diverged(rounds, metric),
        "accuracy": accuracy[-1] if accuracy else None,
        "best_accuracy": max(accuracy, default=None),
        "loss": loss if np.isfinite(loss) else None,  # None after divergence
        **to_target(rounds, target, metric, higher),
        "simulated_seconds": last["clock"],
        "wall_seconds": last["wall_seconds"],
        "bytes_up": last["bytes_up"],
        "bytes_down": last["bytes_down"],
        "refused": int(rounds["refused"].sum()),
        "refused_rounds": int(np.count_nonzero(rounds["refused"])),
        "abandoned": int(rounds["abandoned"].sum()),
        **{name: _last(rounds[name]) for name in LATEST if name in rounds},
        **({"stalled_since": stalled_since(rounds["round"], rounds["stalled"] == 1)} if "stalled" in rounds else {}),
    }


def worst_client(scores: Columns, higher_is_better: bool) -> dict[str, Any]:
    """Return which client the last evaluation of the clients found worst, and how many others did as badly."""
    rounds = scores.get("round", np.empty(0))
    last = np.flatnonzero(rounds == rounds.max(initial=0))
    values = scores["value"][last] if last.size else np.empty(0)
    if not last.size or np.isnan(values).any():
        return {}
    at = (np.argmin if higher_is_better else np.argmax)(values)
    facts = {name: scores[name][last[at]].item() for name in ("client", "name", "test_samples") if name in scores}
    return {"worst_client": {**facts, "others": int((values == values[at]).sum()) - 1}}


def diverged(rounds: Columns, metric: str) -> bool:
    """Return whether the last model is of no use: its last round refused every answer, or its loss is not finite."""
    refused, received = (rounds.get(name, np.empty(0))[-1:].any() for name in ("refused", "received"))
    seen = np.flatnonzero(np.isfinite(rounds.get(metric, np.empty(0))))
    return bool((refused and not received) or (seen.size and not np.isfinite(rounds["loss"][seen[-1]])))


def _last(values: Array) -> float | None:
    """Return the last value that is known; None if there is none, or it is infinite."""
    known = values[~np.isnan(values)]
    return known[-1].item() if known.size and np.isfinite(known[-1]) else None


def stalled_since(rounds: Array, stalled: Array) -> int | None:
    """Return the round from which on the aggregator said that training has stalled, to the very end; None if not so.

    A few such rounds at the end may be chance; they count from ``STALLED_ROUNDS`` on.
    """
    since = int(np.flatnonzero(~stalled).max(initial=-1)) + 1
    return int(rounds[since]) if stalled.size - since >= STALLED_ROUNDS else None
