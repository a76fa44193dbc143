"""Seconds per round of this checkout over another one: both in one run, alternating, for W1, W2 and quadratics.

W1 and W2 as in rounds.py, in one process; quadratics of 1,000 clients, 10, 100 and 1,000 of them in a round, the bare
round and as `fw.run` does it, with evaluation and records. Each side
is a process of its own that prepares its experiments once; a turn is a few rounds of each side, in another order every
turn; the figure is the median over turns of the ratio this / other, in processor seconds.

Use: python benchmarks/versions.py --against ../another-checkout [--turns 15] [--only quadratics]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from inspect import signature
from pathlib import Path
from typing import Any

ROUNDS = {"W1": 1, "W2": 2, "quadratics 10": 200, "quadratics 100": 100, "quadratics 1000": 40}
ROUNDS |= {"run quadratics 10": 1, "run quadratics 100": 1, "run quadratics 1000": 1}  # each of RUN_ROUNDS
RUN_ROUNDS = 200


def prepare() -> dict[str, Any]:
    """Return for each workload a function that does one more round."""
    import numpy as np

    import fedweave as fw

    try:
        from fedweave.round import run_round
        from fedweave.runs.session import prepare as make_ready
    except ImportError:
        from fedweave.session import prepare as make_ready

        from fedweave.round import run_round
    try:
        from fedweave.engine.pool.processes import Workers
    except ImportError:
        from fedweave.engine.workers import Workers

    rng = np.random.default_rng(0)

    def images(clients: int, samples: int) -> Any:
        n = clients * samples
        x, y = rng.standard_normal((n, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, n)
        group = np.repeat(np.arange(clients), samples)
        return fw.data.from_arrays(x, y, test_x=x[:100], test_y=y[:100], group=group)

    def stepper(**given: Any) -> Any:
        e = fw.Experiment(partition=fw.partition.parse("natural", None), workers=1, **given)
        session = make_ready(e, Workers(1))
        state = session.start

        def step() -> None:
            nonlocal state
            world = session.world(state.round + 1)
            state, _ = run_round(e.method, state, world, session.engine, e.lr, e.seed)

        return step

    quadratics = fw.data.from_arrays(
        rng.standard_normal((1000, 10)),
        np.zeros(1000),
        group=np.arange(1000),
        test_x=np.zeros((1, 10)),
        test_y=np.zeros(1),
    )
    quadratic = {"data": quadratics, "model": "quadratic", "system": fw.system.Dynamic(), "lr": 0.01}

    def whole_run(k: int) -> Any:
        natural = fw.partition.parse("natural", None)
        e = fw.Experiment(method=fw.methods.fedavg(k), partition=natural, rounds=RUN_ROUNDS, workers=1, **quadratic)
        silent = {"progress": False} if "progress" in signature(fw.run).parameters else {}  # 0.1 always is
        return lambda: fw.run(e, **silent)

    return {
        "W1": stepper(method=fw.methods.fedavg(10), data=images(100, 200), model="cnn_small", epochs=2.0),
        "W2": stepper(method=fw.methods.fedavg(50), data=images(1000, 20), model="logistic", epochs=5.0, batch_size=5),
        **{f"quadratics {k}": stepper(method=fw.methods.fedavg(k), **quadratic) for k in (10, 100, 1000)},
        **{f"run quadratics {k}": whole_run(k) for k in (10, 100, 1000)},
    }


def serve() -> None:
    """Do rounds as asked on standard input; answer with their processor seconds."""
    steps = prepare()
    for step in steps.values():
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        step, count = steps[line.strip()], ROUNDS[line.strip()]
        begin = time.process_time()
        for _ in range(count):
            step()
        print((time.process_time() - begin) / count / (RUN_ROUNDS if line.startswith("run") else 1), flush=True)


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout of fedweave")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--only", default="", help="workloads with this word in their names")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.against is None:
        return serve()
    here = Path(__file__).parents[1]
    sides = []
    for checkout in (here, given.against):
        environment = {
            **os.environ,
            "PYTHONPATH": str(checkout / "src"),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        sides.append(subprocess.Popen([sys.executable, __file__], env=environment, **pipes))
    for side in sides:
        assert side.stdout.readline().strip() == "ready", "a side could not be prepared"
    found: dict[str, list[list[float]]] = {name: [] for name in ROUNDS if given.only in name}
    for turn in range(given.turns):
        for name in found:
            seconds = [0.0, 0.0]
            for i in (0, 1) if turn % 2 else (1, 0):
                sides[i].stdin.write(name + "\n")
                sides[i].stdin.flush()
                seconds[i] = float(sides[i].stdout.readline())
            found[name].append(seconds)
    for side in sides:
        side.stdin.close()
        side.wait()
    rows = {}
    for name, turns in found.items():
        ratios = sorted(a / b for a, b in turns)
        rows[name] = {"ratio": ratios[len(ratios) // 2], "milliseconds": 1e3 * min(a for a, _ in turns)}
    if given.json:
        print(json.dumps(rows))
        return None
    for name, row in rows.items():
        print(f"{name:20} this/other {row['ratio']:.3f}   ({row['milliseconds']:.3f} ms a round here at best)")
    return None


if __name__ == "__main__":
    main()
