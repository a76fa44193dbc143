"""What is worth knowing of a round beside its accuracy: how much clients disagree, how far the server goes (FedAWARE).

From what the server sees, every round; and from the clients' true gradients, which nobody sees outside a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.core.records import Array, Population, Replies, ServerState, View
from fedweave.core.roles import Aggregator, Engine
from fedweave.core.settings import BadInput, brief
from fedweave.core.vectors import squared_lengths, weighted_sum
from fedweave.method import Method
from fedweave.theory import diversity_ratio

if TYPE_CHECKING:
    from fedweave.round.absorb import Round

TAKEN = (  # columns that runs have
    "round", "clock", "seconds", "device_seconds", "wall_seconds", "accuracy", "loss", "train_loss", "asked",
    "received", "refused", "bytes_up", "bytes_down", "class_accuracy", "abandoned",
    "diversity", "direction_length", "step_length", "objective", "client_mean", "client_std", "client_worst",
    "client_worst_decile", "staleness", "max_staleness",
)  # fmt: skip
AT_A_TIME = 64  # gradients in memory

LABELS = {  # what the columns are, for readers of a report
    "diversity": "Diversity of the answers",
    "surrogate_diversity": "Surrogate diversity of the memories",
    "step_length": "Length of the server's step",
    "true_diversity": "True gradient diversity",
    "gradient_length": "Length of the true gradient",
    "staleness": "Mean staleness of the answers, in rounds",
    "max_staleness": "Largest staleness of the answers, in rounds",
    "sent_share": "Share of the models' bytes that was sent",
}


def of_round(aggregator: Aggregator, after: ServerState, happened: Round) -> dict[str, float]:
    """Return the measures of a round that ended in the state ``after``.

    ``diversity`` is eq. 3 over this round's answers, equally weighted as in the paper's figures; ``direction_length``
    is ‖d‖, ``step_length`` what the server optimiser made of it; ``staleness`` and ``max_staleness`` are those of the
    received answers where rounds overlap; the rest is the aggregator's own.
    """
    view, replies = happened.view, happened.replies
    p = view.layout.parameters  # buffers are no gradients
    measured = {
        "diversity": _diversity(replies.updates[:, :p], replies.received),
        "direction_length": float(np.linalg.norm(happened.direction[:p])),
        "step_length": float(np.linalg.norm(after.x[:p] - view.x[:p])),
        **_staleness(replies),
    }
    measured = {name: value for name, value in measured.items() if not np.isnan(value)}
    return measured | of_aggregator(aggregator, after, view)


def of_aggregator(aggregator: Aggregator, after: ServerState, view: View) -> dict[str, float]:
    """Return what an aggregator measures itself, such as the ε that was spent."""
    found = _checked(aggregator.measure(after.aggregator, view), aggregator)
    return {name: value for name, value in found.items() if not np.isnan(value)}


def _staleness(replies: Replies) -> dict[str, float]:
    if replies.staleness is None or not replies.received.any():
        return {}
    heard = replies.staleness[replies.received]
    return {"staleness": float(heard.mean()), "max_staleness": float(heard.max())}


def of_parts(method: Method, after: ServerState, happened: Round) -> dict[str, float]:
    """Return the measures of a round, those of the upload included."""
    found = method.upload.measure(after.upload)
    return of_round(method.aggregator, after, happened) | _checked(found, method.upload)


def _checked(found: Any, part: Any) -> dict[str, float]:
    """Return what a part measured, or say in one sentence what is wrong with it."""
    who = f"{type(part).__name__}.measure"
    if not isinstance(found, Mapping):
        raise BadInput(f"{who} must return numbers by name. It returned {brief(found)}.")
    for name, value in found.items():
        if not isinstance(name, str) or not name.isidentifier() or name in TAKEN:
            raise BadInput(f"{who} must give its numbers names that are words and not taken. Got {brief(name)}.")
        if not isinstance(value, float | int | np.number):
            raise BadInput(f"{who} must return a number as {name}. It returned {brief(value)}.")
    return dict(found)


def _diversity(updates: Array, received: Array) -> float:
    heard = np.flatnonzero(received)
    if not heard.size:
        return float("nan")
    mean = weighted_sum((received / heard.size).astype(updates.dtype), updates)
    return diversity_ratio(float(np.mean(squared_lengths(updates)[heard])), float(mean @ mean))


def of_clients(scores: Array, higher_is_better: bool) -> dict[str, float]:
    """Return mean, standard deviation, worst value and mean of the worst tenth of the clients' scores (k,).

    The worst tenth is rounded down to whole clients, and has at least one.
    """
    ranked = np.sort(scores) if higher_is_better else -np.sort(-scores)  # the worst first; nan would be the last
    ranked = np.full(scores.size, np.nan) if np.isnan(scores).any() else ranked
    with np.errstate(invalid="ignore"):  # a model that diverged
        return {
            "client_mean": float(ranked.mean()),
            "client_std": float(ranked.std()),
            "client_worst": float(ranked[0]),
            "client_worst_decile": float(ranked[: max(1, scores.size // 10)].mean()),
        }


def of_gradients(engine: Engine, x: Array, population: Population, surrogate: Array | None) -> dict[str, float]:
    """Return eqs 3 and 6 and ‖∇f(x)‖ from every client's gradient on all its data; ``surrogate`` are the weights λ̃."""
    weights = population.weight[None] if surrogate is None else np.stack([population.weight, surrogate])
    sums, square = np.zeros((len(weights), x.size)), 0.0
    for ids in np.array_split(np.arange(population.size), -(-population.size // AT_A_TIME)):
        gradients = engine.gradients(x, ids)
        sums += weights[:, ids] @ gradients
        square += float(population.weight[ids] @ squared_lengths(gradients).astype(np.float64))
    lengths = np.linalg.norm(sums, axis=1)
    found = {"gradient_length": float(lengths[0]), "true_diversity": diversity_ratio(square, float(lengths[0] ** 2))}
    if surrogate is not None:
        found["true_surrogate_diversity"] = diversity_ratio(square, float(lengths[1] ** 2))
    return {name: value for name, value in found.items() if not np.isnan(value)}
