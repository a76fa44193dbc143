"""A model to a worker and an update back: arrays in memory that both processes map, against pickles in a pipe.

Both sides in one run, alternating; a turn is one array there and as large a one back. Seconds are processor time of
both processes, since waiting for a core is no cost of a message; the figure is the median over turns of the ratio
beside / pickles, for arrays around ``fedweave.engine.pool.messages.LARGE`` and as large as a ResNet-18. Linux only.
Use: python benchmarks/messages.py [--turns 15]
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import numpy as np
from works import environment

from fedweave.engine.pool import messages

SIZES = [2**14, 2**16, 2**18, 2**20, 2**22, 44_700_000]  # bytes
LARGE = messages.LARGE


def received(link: Connection) -> float:
    """Read the array that the other end sent; return the processor seconds that it has taken so far."""
    body, arrays = messages.receive(link)
    array, there = pickle.loads(body, buffers=arrays)
    array.sum()
    return there


def serve(link: Connection) -> None:
    """Answer every array with another one and the processor seconds that this process has taken so far."""
    while True:
        try:
            body, arrays = messages.receive(link)
        except EOFError:
            os._exit(0)
        array, messages.LARGE = pickle.loads(body, buffers=arrays)
        messages.send(link, messages.pack((array + 1, sum(os.times()[:2]))))


def main() -> None:
    """Measure and print one JSON object per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    turns = parser.parse_args().turns
    print(json.dumps(environment()), flush=True)
    ours, theirs = Pipe()
    if not os.fork():
        ours.close()
        serve(theirs)
    theirs.close()
    for size in SIZES:
        array = np.ones(size // 4, np.float32)
        several = max(1, 2**24 // size)  # so that a turn is longer than the clock's tick
        taken: dict[str, list[float]] = {"beside": [], "pickles": []}
        for turn in range(turns + 1):  # the first warms up
            for side in list(taken)[:: 1 if turn % 2 else -1]:
                messages.LARGE = 1 if side == "beside" else sys.maxsize
                taken[side].append(_seconds(ours, array, several))
        beside, pickles = (np.array(values[1:]) for values in taken.values())
        figures = {
            "bytes": size,
            "goes_beside": size >= LARGE,
            "beside_ms": 1e3 * float(np.median(beside)),
            "pickles_ms": 1e3 * float(np.median(pickles)),
            "ratio": float(np.median(beside / pickles)),
        }
        print(json.dumps(figures), flush=True)


def _seconds(link: Connection, array: np.ndarray, several: int) -> float:
    """Return the processor seconds of both processes for one array there and one back, the mean over ``several``."""
    before = sum(os.times()[:2]) + _there(link)
    for _ in range(several):
        messages.send(link, messages.pack((array, messages.LARGE)))
        received(link)
    return (sum(os.times()[:2]) + _there(link) - before) / several


def _there(link: Connection) -> float:
    messages.send(link, messages.pack((np.zeros(1), messages.LARGE)))
    return received(link)


if __name__ == "__main__":
    main()
