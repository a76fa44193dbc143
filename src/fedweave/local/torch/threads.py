"""How many threads train a client: one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Generator[None]:
    """Build and train with one thread, as the workers do.

    Another number of threads would give other bits, and torch's threads do not survive a fork of the process.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
