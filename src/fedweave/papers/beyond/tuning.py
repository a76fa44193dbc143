"""Tune the learning rates of ``beyond/methods``: ``python -m fedweave.papers.beyond.tuning [WORLD ...]``.

It writes ledger/tuned.json: the score of every trial, the best rate of each method, and the target that follows from
FedAvg's best trials. Trials are kept, so that an interrupted tuning continues where it was.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import numpy as np

from fedweave.papers.beyond.across import LR, STUDIES, TUNED, WORLDS, arms, within_budget
from fedweave.papers.common.record import Record
from fedweave.papers.common.reproduction import (
    TUNING_SEEDS,
    Limits,
    OutOfTime,
    run_kept,
    tuning_scores,
    tuning_trial,
)


def tune(name: str, limits: Limits, scale: Any = "laptop") -> dict[str, Any]:
    """Return rates, target and the score of every trial in a world."""
    study = next(s for s in STUDIES if s.name.endswith(f"/{name}"))
    untuned = arms(name, {})(scale)
    scores = tuning_scores(study, untuned, limits)
    best = {arm: max(found, key=found.__getitem__) for arm, found in scores.items()}
    trial = tuning_trial(untuned["fedavg"], best["fedavg"])
    found = run_kept(study.work, {("tune", "fedavg", seed): (trial, seed) for seed in TUNING_SEEDS}, limits)
    seconds = float(trial.stop_after)
    halfway = np.mean([accuracy_halfway(record, seconds) for record in found.values()])
    return {
        "target": math.floor(100 * halfway) / 100,
        "rates": {arm: float(f"{LR * factor:.3g}") for arm, factor in best.items()},
        "seeds": list(TUNING_SEEDS),
        "scores": {arm: {f"{LR * f:.3g}": round(s, 4) for f, s in each.items()} for arm, each in scores.items()},
    }


def accuracy_halfway(record: Record, seconds: float) -> float:
    """Return the steady accuracy at half of the budget."""
    rounds = within_budget(seconds)(record).rounds
    return float(rounds["accuracy"][np.searchsorted(rounds["clock"], seconds / 2, side="right") - 1])


def main(names: list[str], minutes: float = float("inf")) -> None:
    """Tune worlds and write what was found; after so many minutes no further trial begins."""
    deadline = time.monotonic() + 60 * minutes
    known = json.loads(TUNED.read_text(encoding="utf-8")) if TUNED.is_file() else {}
    for name in names or list(WORLDS):
        try:
            known[name] = tune(name, Limits(deadline))
        except OutOfTime as e:
            sys.stderr.write(f"{name}: {e}, and kept. The same command continues.\n")
            continue
        TUNED.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if not word.startswith("--minutes=")]
    limit = [float(word.removeprefix("--minutes=")) for word in sys.argv[1:] if word not in given]
    main(given, *limit)
