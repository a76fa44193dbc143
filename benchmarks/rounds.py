"""Seconds per round against a bare eager PyTorch loop that takes the same steps: both sides in one run, alternating.

The workloads are those of works.py. The bare loop is given its best number of threads (1 or 2, whichever has the lower
median) and the clients that fedweave has just sampled; a turn is one round of each; the figure is the median over turns
of the ratio fedweave / bare. Use: python benchmarks/rounds.py [--turns 7] [--work W1 --work W8]

--against-peers: W1 and W2 against other libraries too, in one run; see peers.py.

--samplers: what practical importance sampling and practical DELTA cost beside uniform sampling, scores, local variances
and weights included, in W1 and in one run. They draw without replacement here, so that all sides train as many clients;
a turn is one round of each, in another order every turn.

--split: where the time of a round goes, in milliseconds. Of the main process by the clock: plan (draw, assignment),
messages (packing, sending, receiving), rows (putting updates in their places), absorb (admission, sums, step), waiting
for workers, and the rest; and its processor time. Of the workers, processor time: the kernels, whose share is measured
by training the same clients in one process, and everything else (unpickling, batches, copies, answers).

--pacing: asynchronous rounds against synchronous ones in a world with heavy-tailed seconds, W1: as many clients train
in a round of either, but those of an asynchronous one began with several versions of the model. A turn is one round of
each; with one worker processor time is told as well. Then the server's work per absorb, without training and in
processor time, with 10⁵ of 2·10⁵ clients under way, 1000 landing.

--lazy: W1 with the images in a lazy data set that returns stored ones, against the same images as arrays; turns alike.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
from peers import against_peers
from whole_run import Clock
from works import WORKS, bare_loop, environment, fedweave_round, made_data, seconds

from fedweave import methods
from fedweave import round as round_module
from fedweave.aggregate import InverseProbability
from fedweave.core.records import Assignment, Population, Replies
from fedweave.engine.pool import mailbox, processes
from fedweave.engine.pool.processes import Workers
from fedweave.engine.simulator import Simulator
from fedweave.local.compiled.kernels import Kernels
from fedweave.local.quadratic import Quadratics, QuadraticTrainer
from fedweave.method import Method
from fedweave.pacing import Buffered
from fedweave.round import first_state, run_round
from fedweave.sample import PracticalDelta, PracticalIS
from fedweave.tables.spool import Spool


def measure(name: str, turns: int, workers: int) -> dict[str, Any]:
    """Return medians over ``turns`` of the bare loop, of fedweave, and of their ratio."""
    work = WORKS[name]
    x, y = made_data(work)
    bare, rows = bare_loop(work, x, y), list[tuple[float, ...]]()
    with Workers(workers) as processes:
        ours = fedweave_round(work, x, y, processes)
        cohort = np.arange(work.sampled)

        def one_round() -> None:
            nonlocal cohort
            cohort = ours()

        for _ in range(turns + 2):  # the first two warm up
            # Not ours after two threads: OpenMP's second one spins on for a while, on a core that ours would use.
            rows.append((seconds(one_round, 1), seconds(bare, 2, cohort), seconds(bare, 1, cohort)))
    mine, two, one = np.array(rows[2:]).T
    best = one if np.median(one) < np.median(two) else two  # the better setting, not the luckier turn
    ratio = mine / best
    return {
        "work": name,
        "turns": turns,
        "workers": workers,
        "bare_1_thread_s": float(np.median(one)),
        "bare_2_threads_s": float(np.median(two)),
        "fedweave_s": float(np.median(mine)),
        "ratio": float(np.median(ratio)),
        "ratio_range": [float(ratio.min()), float(ratio.max())],
        "aim": work.aim,
    }


def table(figures: list[dict[str, Any]]) -> str:
    """Return the figures of all workloads, readable."""
    lines = [f"{'':4}{'bare, 1 thread':>16}{'2 threads':>12}{'fedweave':>12}{'ratio':>8}{'range':>15}{'aim':>7}"]
    for f in figures:
        times = [f"{f[side] * 1e3:.1f} ms" for side in ("bare_1_thread_s", "bare_2_threads_s", "fedweave_s")]
        low, high = f["ratio_range"]
        lines.append(
            f"{f['work']:4}{times[0]:>16}{times[1]:>12}{times[2]:>12}{f['ratio']:>8.3f}"
            f"{f'{low:.3f}-{high:.3f}':>15}{f['aim'] or '-':>7}"
        )
    return "\n".join(lines)


def samplers(turns: int, workers: int) -> dict[str, Any]:
    """Return medians over ``turns`` of rounds by uniform, practical IS and practical DELTA sampling, and ratios."""
    k, weigh = WORKS["W1"].sampled, InverseProbability()
    sides = {
        "uniform": {"method": methods.fedavg(k)},
        "practical_is": {"method": Method(PracticalIS(k, replacement=False), aggregator=weigh)},
        "practical_delta": {"method": Method(PracticalDelta(k, replacement=False), aggregator=weigh)},
    }
    return contest(sides, turns, workers)


def lazy(turns: int, workers: int) -> dict[str, Any]:
    """Return medians over ``turns`` of rounds on arrays and on lazy items, and ratios."""
    return contest({"arrays": {}, "lazy": {"lazy": True}}, turns, workers)


PARTS: list[tuple[Any, str, str]] = [  # what a function of the main process is for
    (round_module, "plan", "plan"),
    (round_module, "absorb", "absorb"),
    (processes, "pack", "messages"),
    (processes, "packed", "messages"),
    (processes, "wait", "waiting"),
    (mailbox.Mailbox, "post", "messages"),
    (mailbox.Mailbox, "receive", "messages"),
    (Spool, "put", "rows"),
]


def split(name: str, turns: int, workers: int) -> dict[str, Any]:
    """Return milliseconds of the parts of a round, means over ``turns`` rounds."""
    work = WORKS[name]
    x, y = made_data(work)
    spent = _kernel_seconds(name, turns)
    with Workers(workers) as pool, ExitStack() as stack:
        ours = fedweave_round(work, x, y, pool)
        for _ in range(3):
            seconds(ours, 1)
        clock = Clock(time.time())
        for owner, function, part in PARTS:
            plain = getattr(owner, function)
            setattr(owner, function, clock.timed(plain, part))
            stack.callback(setattr, owner, function, plain)
        helpers = psutil.Process().children(recursive=True)
        clock.turn("rest")
        clock.parts.clear()
        before, here = _processor(helpers), time.process_time()
        for _ in range(turns):
            seconds(ours, 1)
        clock.turn("end")
        main, theirs = time.process_time() - here, _processor(helpers) - before
    parts = {f"{part}_ms": 1e3 * value / turns for part, value in clock.parts.items()}
    parts |= {"round_ms": sum(parts.values()), "main_processor_ms": 1e3 * main / turns}
    parts |= {"workers_processor_ms": 1e3 * theirs / turns, "workers_kernels_ms": 1e3 * spent}
    return {"work": name, "turns": turns, "workers": workers} | {n: round(v, 2) for n, v in parts.items()}


def _kernel_seconds(name: str, turns: int) -> float:
    """Return processor seconds of a round that are in the compiled kernels, without workers."""
    work, plain, spent = WORKS[name], Kernels.__call__, 0.0
    ours = fedweave_round(work, *made_data(work), Workers(1))

    def timed(self: Kernels, block: Any, lr: float) -> Any:
        nonlocal spent
        begin = time.thread_time()
        found = plain(self, block, lr)
        spent += time.thread_time() - begin
        return found

    seconds(ours, 1)
    Kernels.__call__ = timed
    try:
        for _ in range(turns):
            seconds(ours, 1)
    finally:
        Kernels.__call__ = plain
    return spent / turns


def _processor(helpers: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in helpers)


def pacing(turns: int, workers: int) -> dict[str, Any]:
    """Return medians over ``turns`` of synchronous and asynchronous rounds, ratios, and the server's work."""
    work = WORKS["W1"]
    latency, k = np.random.default_rng(0).lognormal(size=work.clients), work.sampled
    method = methods.fedavg(k)
    sides = {
        "synchronous": {"method": method, "latency": latency},
        "asynchronous": {"method": replace(method, pacing=Buffered(3 * k, k)), "latency": latency},
    }
    return contest(sides, turns, workers) | crowd(turns)


def crowd(turns: int, clients: int = 200_000, under_way: int = 100_000, buffer: int = 1000) -> dict[str, Any]:
    """Return the processor milliseconds of the server per absorb, all but training, with so many under way."""
    rng, method = np.random.default_rng(0), methods.fedbuff(under_way, buffer).widened
    weight = np.full(clients, 1 / clients)
    world = Population(
        weight=weight,
        samples=np.full(clients, 10),
        steps=np.full(clients, 5),
        batch_size=np.full(clients, 10),
        loss_rate=np.zeros(clients),
        latency=rng.lognormal(size=clients),
        available=np.ones(clients, bool),
    )
    engine = Simulator(QuadraticTrainer(Quadratics.random(clients, 10), method.solver, 0, weight))
    state, train, training, taken = first_state(method, np.zeros(10), world, 10), engine.train, [0.0], list[float]()

    def timed(assignment: Assignment) -> Replies:
        begin = time.process_time()
        replies = train(assignment)
        training[0] += time.process_time() - begin
        return replies

    engine.train = timed
    for _ in range(turns + 2):
        begin, training[0] = time.process_time(), 0.0
        state, _ = run_round(method, state, world, engine, 0.05, 0)
        taken.append(time.process_time() - begin - training[0])
    return {"under_way": under_way, "landing": buffer, "server_ms": float(np.median(taken[2:]) * 1e3)}


def contest(sides: dict[str, dict[str, Any]], turns: int, workers: int) -> dict[str, Any]:
    """Return medians over ``turns`` of rounds of W1 with these settings, and ratios to the first."""
    work = WORKS["W1"]
    x, y = made_data(work)
    taken: dict[str, list[float]] = {name: [] for name in sides}
    busy: dict[str, list[float]] = {name: [] for name in sides}
    with ExitStack() as stack:  # each has its own processes: changing hands would cost more than what is measured
        rounds = {
            n: fedweave_round(work, x, y, stack.enter_context(Workers(workers)), **how) for n, how in sides.items()
        }
        for turn in range(turns + 2):  # the first two warm up
            names = list(rounds)
            begins = turn % len(names)
            for name in names[begins:] + names[:begins]:
                begin = time.process_time()
                taken[name].append(seconds(rounds[name], 1))
                busy[name].append(time.process_time() - begin)
    first = next(iter(sides))
    base = np.array(taken[first][2:])
    figures: dict[str, Any] = {"work": "W1", "turns": turns, "workers": workers}
    for name, values in taken.items():
        ratio = np.array(values[2:]) / base
        figures[f"{name}_s"] = float(np.median(values[2:]))
        figures[f"{name}_ratio"] = float(np.median(ratio))
        figures[f"{name}_quartiles"] = np.quantile(ratio, [0.25, 0.75]).round(3).tolist()
        if workers == 1:  # what others do on this machine does not count
            figures[f"{name}_processor_ratio"] = float(np.median(busy[name][2:]) / np.median(busy[first][2:]))
    return figures


def main() -> None:
    """Measure and print one JSON object per workload, then a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKS, action="append", help="only this workload")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--samplers", action="store_true", help="practical samplers against uniform, W1")
    parser.add_argument("--split", action="store_true", help="where the time of a round goes")
    parser.add_argument("--pacing", action="store_true", help="asynchronous against synchronous rounds, W1")
    parser.add_argument("--lazy", action="store_true", help="a lazy data set against arrays, W1")
    parser.add_argument("--against-peers", action="store_true", help="other libraries too, W1 and W2")
    options = parser.parse_args()
    print(json.dumps(environment()), flush=True)
    if options.against_peers:
        against_peers(options.work or ["W1", "W2"], options.turns, options.workers)
        return
    for chosen, side in ((options.samplers, samplers), (options.pacing, pacing), (options.lazy, lazy)):
        if chosen:
            print(json.dumps(side(options.turns, options.workers)), flush=True)
            return
    if options.split:
        for name in options.work or WORKS:
            print(json.dumps(split(name, options.turns, options.workers)), flush=True)
        return
    figures = list[dict[str, Any]]()
    for name in options.work or WORKS:
        figures.append(measure(name, options.turns, options.workers))
        print(json.dumps(figures[-1]), flush=True)
    print(table(figures))


if __name__ == "__main__":
    main()
