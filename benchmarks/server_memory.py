"""Memory of the server: FedAWARE's step over a table of all clients, and a round of many large answers.

FedAWARE's server step with 1,000 clients of 10⁶ parameters and 100 answers: its time and its memory. The step is
``Aware.combine``: mix the answers into the momenta, renew their rows of the Gram matrix, solve for the shortest
combination and combine the momenta; they are nearly orthogonal here, so that every one of them carries weight. The
other side is the least that any such step must do, one pass U @ M.T over the same numbers as one array in memory, with
its better number of threads (1 or all). Both alternate in one process, and the ratio is the median over turns. Peak
memory is that of another process, which has only the table and takes the same steps.

With --answers instead: the peak memory of the process that has the server, over a whole run of one round with 100
answers of 10⁷ parameters, admission by median, measures and audit log included; each in a process of its own. In the
simulator two workers train; the clients of a Flower fleet send random numbers, each when its answer is pulled, in the
server's own process. "memory" is the same with the updates in memory: the digest must be the same. That needs 5 GB of
memory, the others 5 GB of disk in the temporary folder (TMPDIR).

Use: python benchmarks/server_memory.py [ram] [disk]; needs 10 GB of memory, and 5 GB of disk in the temporary folder.
Or:  python benchmarks/server_memory.py --answers 100 [--only simulator memory server strategy] [--methods fedavg …]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np
import psutil
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from threadpoolctl import threadpool_limits
from torch import nn

import fedweave as fw
from fedweave import flower
from fedweave.aggregate import Aware
from fedweave.core.records import Cohort, Layout, Population, Replies, View
from fedweave.engine.machine import processor
from fedweave.fleet.client import identity
from fedweave.fleet.local.grid import LocalGrid
from fedweave.fleet.wire.answer import Answer, answer
from fedweave.fleet.wire.request import read_request
from fedweave.fleet.wire.seal import sealed
from fedweave.fleet.wire.tensors import Tensors
from fedweave.local.torch.flat_module import FlatModule, initial_vector
from fedweave.runs.loop import deterministic
from fedweave.tables import spool
from fedweave.tables.rows import Rows, Where

CLIENTS, DIM, ANSWERS, TURNS, SHIFT = 1_000, 10**6, 100, 3, 977
AWARE = Aware()
GB = 2**30


def numbers(first: int, count: int) -> np.ndarray:
    """Return some rows of the table: not worth waiting for good random numbers, but all different."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((1, DIM), dtype=np.float32)
    return np.concatenate([np.roll(base, SHIFT * i, axis=1) for i in range(first, first + count)])


def filled(where: Where) -> Rows:
    """Return the table, every row written."""
    rows = Rows.zeros(CLIENTS, DIM, where=where)
    for i in range(0, CLIENTS, 10):
        rows = rows.replaced(np.arange(i, i + 10), numbers(i, 10))
    return rows


def started(where: Where) -> dict[str, Any]:
    """Return FedAWARE's state once everyone was heard; shifts of one signal have its autocorrelation as products."""
    signal = np.fft.rfft(numbers(0, 1)[0])
    lag = SHIFT * np.subtract.outer(np.arange(CLIENTS), np.arange(CLIENTS)) % DIM
    gram = np.fft.irfft(np.abs(signal) ** 2, DIM)[lag]
    return {"momentum": filled(where), "gram": gram, "weights": np.zeros(CLIENTS)}


def round_of_answers() -> tuple[View, Cohort, Replies]:
    """Return a round in which 100 clients answer."""
    n, k, one = CLIENTS, ANSWERS, np.ones(CLIENTS)
    population = Population(
        weight=one / n,
        samples=one,
        steps=one.astype(int),
        batch_size=one,
        loss_rate=0 * one,
        latency=one,
        available=one > 0,
    )
    layout = Layout(names=("x",), shapes=((DIM,),), parameters=DIM)
    view = View(
        round=1,
        x=np.zeros(DIM, np.float32),
        population=population,
        layout=layout,
        lr=0.1,
        effort_of=lambda steps: steps,
    )
    ids = np.sort(np.random.default_rng(1).choice(n, k, replace=False))
    some = np.ones(k)
    replies = Replies(
        received=some > 0,
        updates=numbers(n, k),
        steps=some,
        loss=some,
        first_gradient=some,
        seconds=some,
        bytes_up=some,
    )
    return view, Cohort(ids=ids, count=np.ones(k, int), expected=np.full(k, k / n)), replies


def seconds(work: Callable[[], Any]) -> float:
    """Return how long it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def time_of(where: Where) -> dict[str, Any]:
    """Return the step's time over that of one pass."""
    state, happened = started(where), round_of_answers()
    M, U = state["momentum"][np.arange(CLIENTS)], happened[-1].updates
    passes: dict[str, list[float]] = {"1": [], "all": []}
    steps: list[float] = []
    for turn in range(TURNS + 1):  # the first one warms up
        for threads, found in passes.items():
            with threadpool_limits(1, "blas") if threads == "1" else nullcontext():
                found.append(seconds(lambda: U @ M.T))
        with deterministic():
            begin = time.perf_counter()
            _, state = AWARE.combine(state, *happened)
            steps.append(time.perf_counter() - begin)
        print(
            f"  turn {turn}: pass {passes['1'][-1]:.2f} {passes['all'][-1]:.2f} s, step {steps[-1]:.2f} s",
            file=sys.stderr,
        )
    better = min(passes, key=lambda threads: statistics.median(passes[threads][1:]))
    ratios = [s / p for s, p in zip(steps[1:], passes[better][1:], strict=True)]
    return {
        "table": where,
        "pass_seconds": round(statistics.median(passes[better][1:]), 2),
        "pass_threads": better,
        "step_seconds": round(statistics.median(steps[1:]), 2),
        "ratio": round(statistics.median(ratios), 2),
    }


def memory_of(where: Where) -> dict[str, Any]:
    """Return the peak of this process, which must have done nothing else."""
    state, happened = started(where), round_of_answers()
    with deterministic():
        for _ in range(2):
            _, state = AWARE.combine(state, *happened)
    peak, table = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 4 * CLIENTS * DIM
    return {
        "table_gb": round(table / GB, 2),
        "peak_gb": round(peak / GB, 2),
        "beside_the_table_gb": round((peak - (table if where == "ram" else 0)) / GB, 2),
    }


WIDTH = 3125  # of two hidden layers: 10,003,135 parameters on 8×8 images
METHODS = ["fedavg", "fedavg_is", "fednova", "fedacs", "fedacs_private", "fedpracdelta"]
ROUND_AIM = 1.0  # GB


def large() -> nn.Module:
    """Return a network of 10⁷ parameters."""
    hidden = nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(WIDTH, 10))


class PulledGrid(LocalGrid):
    """A fleet in this process whose clients answer when their answers are pulled, as if they came then."""

    def __init__(self, app: ClientApp, clients: int):
        super().__init__(app, clients)
        self._asked = dict[str, Message]()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        named = {f"m{next(self._ids)}": message for message in messages}
        for name, message in named.items():
            setattr(message.metadata, "_message_id", name)  # noqa: B010 - as LocalGrid does
        self._asked |= named
        return list(named)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = [self._asked.pop(name) for name in message_ids if name in self._asked]
        return [reply for m in asked if (reply := self._answered(m, m.metadata.dst_node_id)) is not None]


def fleet() -> ClientApp:
    """Return clients that send an update of random numbers, without training: the server's memory is measured."""
    app, tensors = ClientApp(), Tensors.of_layout(FlatModule(large()).layout)

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        who, of = identity(context)
        return Message(
            RecordDict({"hello": MetricRecord({"client": who, "clients": of, "num-examples": 14})}), reply_to=message
        )

    @app.train()
    def train(message: Message, context: Context) -> Message:
        request, rng = read_request(message.content), np.random.default_rng(identity(context)[0])
        update, about = rng.standard_normal(tensors.layout.dim, np.float32), Answer(samples=14, steps=1, loss=1.0)
        return Message(sealed(answer(about, tensors, update), request.round, request.client), reply_to=message)

    return app


def whole_round(way: str, name: str, answers: int) -> str:
    """Do one round with so many answers, and return a digest of the model after it."""
    method, data = getattr(fw.methods, name)(answers), fw.data.load("digits")
    experiment = fw.Experiment(
        method, data, fw.partition.IID(clients=answers), model=large, rounds=1, steps=1, workers=2, audit=True
    )
    if way == "simulator":
        return fw.run(experiment).summary["digest"]
    if way == "server":
        return flower.run(experiment, PulledGrid(fleet(), answers)).summary["digest"]
    model = large()
    arrays = Tensors.of_layout(FlatModule(model).layout).record(initial_vector(model))
    result = flower.Strategy(method, fraction_evaluate=0.0).start(PulledGrid(fleet(), answers), arrays, num_rounds=1)
    return hashlib.sha256(b"".join(a.data for a in result.arrays.values())).hexdigest()


def peak_of(way: str, name: str, where: str, answers: int) -> dict[str, Any]:
    """Return the peak of this process, which must have done nothing else."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if where == "memory":
        spool.LARGE = 2**62
    before, begin = psutil.Process().memory_info().rss, time.perf_counter()
    digest = whole_round(way, name, answers)
    return {
        "way": way,
        "method": name,
        "updates": where,
        "answers": answers,
        "parameters": FlatModule(large()).layout.dim,
        "python_and_torch_gb": round(before / GB, 2),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB, 2),
        "aim_gb": ROUND_AIM if where == "file" else None,
        "seconds": round(time.perf_counter() - begin, 1),
        "digest": digest[:16],
        "processor": processor(),
    }


def child(*words: object) -> dict[str, Any]:
    """Return what this program prints in another process: on Linux a child's peak begins at its parent's."""
    command = [sys.executable, __file__, *map(str, words)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    """Measure, and print a JSON object for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="ram|disk", help="of FedAWARE's step; both unless given")
    parser.add_argument("--answers", type=int, help="measure a round with so many answers instead")
    parser.add_argument("--only", nargs="*", default=["simulator", "memory", "server", "strategy"])
    parser.add_argument("--methods", nargs="*", default=METHODS, help="of the simulator")
    options = parser.parse_args()
    if options.answers:
        cases = [("simulator", name, "file") for name in options.methods if "simulator" in options.only]
        cases += [("simulator", "fedavg", "memory")] if "memory" in options.only else []
        cases += [(way, "fedavg", "file") for way in ("server", "strategy") if way in options.only]
        for case in cases:
            print(json.dumps(child("peak", *case, options.answers)), flush=True)
        return
    chosen: list[Where] = options.tables or ["ram", "disk"]
    peaks = {where: child("memory", where) for where in chosen}  # before this process grows
    for where in chosen:
        print(json.dumps(time_of(where) | peaks[where]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        print(json.dumps(memory_of(sys.argv[2])))  # pyright: ignore[reportArgumentType]
    elif sys.argv[1:2] == ["peak"]:
        way, name, where, answers = sys.argv[2:]
        print(json.dumps(peak_of(way, name, where, int(answers))))
    else:
        main()
