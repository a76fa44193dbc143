"""What crosses the pipe to a worker arrives as it was sent, large arrays too, and nothing of it stays."""

import gc
import os
import pickle
import sys
from multiprocessing import Pipe
from threading import Thread

import numpy as np
import pytest

from fedweave.engine.pool import messages
from fedweave.engine.pool.messages import LARGE, pack, receive, send

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere everything goes through the pipe")


def crossed(value, times=1):
    """Return what the other end of a pipe receives, each time that one message is sent."""
    ours, theirs = Pipe()
    message = pack(value)
    sender = Thread(target=lambda: [send(ours, message) for _ in range(times)])
    sender.start()
    found = [pickle.loads(body, buffers=arrays) for body, arrays in (receive(theirs) for _ in range(times))]
    sender.join()
    ours.close(), theirs.close()
    return found


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def mappings():
    with open("/proc/self/maps") as maps:
        return sum("memfd:fedweave" in line for line in maps)


ARRAYS = {
    "small": np.arange(10.0),
    "one byte too small": np.zeros(LARGE - 1, np.uint8),
    "just large": np.arange(LARGE, dtype=np.uint32).astype(np.uint8),
    "float32 matrix": np.random.default_rng(0).standard_normal((3, LARGE // 8), np.float32),
    "columns first": np.asfortranarray(np.random.default_rng(1).standard_normal((LARGE // 2000, 301))),
    "every second": np.arange(LARGE)[::2],
    "booleans": np.arange(LARGE + 1) % 3 == 0,
    "objects": np.array([{"a": 1}, None], object),
}


@pytest.mark.parametrize("large", [LARGE, sys.maxsize])
def test_arrays_arrive_bit_for_bit(large, monkeypatch):
    """With files in memory, and on systems that have none."""
    monkeypatch.setattr(messages, "LARGE", large)
    (found,) = crossed({"text": "and more", **ARRAYS})
    assert found.pop("text") == "and more"
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype, name
        assert np.array_equal(found[name], array), name


def test_large_arrays_are_not_in_the_pickle_and_small_ones_need_no_file():
    large, small = np.ones(LARGE, np.float32), np.ones(100)
    assert len(pack((large, small)).body) < 2000 + small.nbytes
    assert pack(small).file is None


def test_each_receiver_has_a_copy_of_its_own_that_it_may_change():
    x = np.zeros(LARGE)
    first, second = crossed(x, times=2)
    first += 1
    assert second.max() == x.max() == 0
    assert first.min() == 1


def test_nothing_stays_open_once_the_arrays_are_gone():
    before = descriptors(), mappings()
    kept = [crossed(np.full(LARGE, i))[0] for i in range(20)]
    assert [int(array[-1]) for array in kept] == list(range(20))
    assert mappings() == before[1] + 20
    del kept
    assert (descriptors(), mappings()) == before
