"""What admission costs: checks of a round's answers as a share of that round, on the workload W1 of rounds.py.

Both in one run, alternating; the figure is the median over turns. Use: python benchmarks/admission.py [--turns 7]
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
from works import WORKS, fedweave_round, made_data, seconds

from fedweave.core.records import Cohort, Replies
from fedweave.engine.pool.processes import Workers
from fedweave.local.torch.flat_module import FlatModule
from fedweave.models import build
from fedweave.round.admission import admit


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    work = WORKS["W1"]
    layout = FlatModule(build(work.model, (1, 28, 28), 10)).layout
    k, some = work.sampled, np.ones(work.sampled)
    rows = np.random.default_rng(0).standard_normal((k, layout.dim), dtype=np.float32)
    replies, cohort = (
        Replies(
            received=some > 0, updates=rows, steps=some, loss=some, first_gradient=some, seconds=some, bytes_up=some
        ),
        Cohort(ids=np.arange(k), count=some, expected=some),
    )
    x, y = made_data(work)
    shares = []
    with Workers(2) as workers:
        one_round = fedweave_round(work, x, y, workers)
        for _ in range(2):
            one_round()
        for _ in range(turns):
            begin = time.perf_counter()
            admit(replies, cohort, layout, max_length_ratio=1000.0)
            checked = time.perf_counter() - begin
            shares.append((checked, seconds(one_round, 1)))
    admission, whole = np.array(shares).T
    found = {"admission_ms": 1e3 * np.median(admission), "round_ms": 1e3 * np.median(whole)}
    print(json.dumps({**found, "share": float(np.median(admission / whole))}))


if __name__ == "__main__":
    main()
