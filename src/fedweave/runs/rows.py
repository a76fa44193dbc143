"""A finished round as rows: of the table of rounds, of the table of clients, and of the audit log."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from fedweave.core.records import Array, ServerState
from fedweave.core.vectors import release
from fedweave.round import Round


def round_row(
    before: ServerState,
    after: ServerState,
    happened: Round,
    totals: dict[str, Any],
) -> dict[str, Any]:
    """Return a round's row but for the scores of its model."""
    cohort, replies = happened.cohort, happened.replies
    totals["bytes_up"] += int(replies.bytes_up.sum())
    totals["bytes_down"] += happened.bytes_down
    heard = replies.loss[replies.received]
    return {
        "round": after.round,
        "clock": after.clock,
        "seconds": after.clock - before.clock,
        "device_seconds": float(replies.seconds.sum()),
        "accuracy": np.nan,
        "loss": np.nan,
        "train_loss": float(heard.mean()) if heard.size else np.nan,
        "asked": cohort.ids.size,
        "received": int(replies.received.sum()),
        "refused": len(happened.refused),
        "class_accuracy": np.zeros(0),
        "abandoned": int(bool(happened.abandoned)),
        **totals,
    }


def client_rows(round: int, happened: Round) -> dict[str, Array]:
    cohort, replies = happened.cohort, happened.replies
    none = np.full(cohort.ids.size, np.nan)
    return {
        "round": np.full(cohort.ids.size, round),
        "client": cohort.ids,
        "count": cohort.count,
        "expected": cohort.expected,
        "received": replies.received.astype(int),
        "steps": replies.steps,
        "loss": replies.loss,
        "seconds": replies.seconds,
        "bytes_up": replies.bytes_up,
        "first_gradient": replies.first_gradient,
        "first_loss": none if replies.first_loss is None else replies.first_loss,
    }


def audit_lines(after: ServerState, happened: Round) -> list[dict[str, Any]]:
    """Return what became of each one that was asked, with the digest of what was used, and the model after it all."""
    why = {failure.client: (kind, failure.why) for kind, failure in happened.failures()}
    lines: list[dict[str, Any]] = []
    for row, client in enumerate(happened.cohort.ids.tolist()):
        if happened.replies.received[row]:
            digest = hashlib.sha256(np.ascontiguousarray(happened.replies.updates[row]).data).hexdigest()
            release(happened.replies.updates)
            lines.append({"client": client, "verdict": "accepted", "sha256": digest})
        else:
            verdict, reason = why.get(client, ("lost", ""))
            lines.append({"client": client, "verdict": verdict, "why": reason})
    if happened.abandoned:
        lines.append({"verdict": "abandoned", "why": happened.abandoned})
    return [*lines, {"verdict": "model", "sha256": hashlib.sha256(after.x.tobytes()).hexdigest()}]
