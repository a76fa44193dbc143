"""Messages of any size arrive as they were sent, through shared memory or without it."""

import os
import pickle
import threading
from multiprocessing.connection import Pipe

import numpy as np
import pytest

from fedweave.engine.pool import mailbox
from fedweave.engine.pool.mailbox import LARGE, Mailbox


def messages():
    rng = np.random.default_rng(0)
    large = rng.standard_normal((LARGE // 16, 5))
    yield "small", {"a": np.arange(3), "b": None}
    yield "large", large
    yield "several, and an empty one", [large, np.zeros((0, 9)), large.astype(np.float32), np.arange(5), b"x" * LARGE]
    yield "in the order of Fortran, and not in one piece", (np.asfortranarray(large), large[::2, ::3])
    yield "smaller than the one before", large[:-100]
    yield "several times", [large, large]
    yield "text and objects", (np.array(["a" * LARGE]), np.array([None, "b"], object))


def talk(shared, monkeypatch):
    """Return two ends of a pipe."""
    if not shared:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    ours, theirs = Pipe()
    here, there = Mailbox.opened(ours), []
    joining = threading.Thread(target=lambda: there.append(Mailbox.joined(theirs)))
    joining.start()
    here.send(None)
    joining.join()
    there[0].receive()
    return here, there[0]


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_sent_arrives(shared, monkeypatch):
    here, there = talk(shared, monkeypatch)
    monkeypatch.setattr(mailbox.os, "pwrite", slow(os.pwrite))  # as the system does with gigabytes
    for what, message in messages():
        for sender, receiver in ((here, there), (there, here)):
            sending = threading.Thread(target=sender.send, args=(message,))  # which a full pipe may hold up
            sending.start()
            head, contents = receiver.receive()
            sending.join()
            np.testing.assert_equal(pickle.loads(head, buffers=contents), message, what)
    here.close()
    there.close()


def slow(write):
    return lambda file, content, begin: write(file, content[:1000], begin)


def test_what_was_received_stays_when_the_next_one_comes(monkeypatch):
    here, there = talk(True, monkeypatch)
    found = []
    for value in range(3):
        here.send(np.full(LARGE, value))
        head, contents = there.receive()
        found.append(pickle.loads(head, buffers=contents))
        found[-1][0] += 10  # it is the receiver's own
    assert [(int(a[0]), int(a[1])) for a in found] == [(10, 0), (11, 1), (12, 2)]
    here.close()
    there.close()
