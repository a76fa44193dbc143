"""What torch has once for all threads of a process: how many of them compute, and the generator of layers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch

from fedweave.core.locks import ThreadLock


@contextmanager
def one_thread() -> Generator[None]:
    """Build and train with one thread, as the workers do.

    Another number of threads would give other bits, and torch's threads do not survive a fork of the process.
    """
    before = torch.get_num_threads()
    if before == 1:  # perhaps because another thread trains, and puts back what new threads will find
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_generator = ThreadLock()


@contextmanager
def drawing_from(rng: np.random.Generator) -> Generator[None]:
    """Seed torch's generator, from which all layers draw, and put it back; other threads wait for their turn."""
    # Where there is no accelerator, torch would note down the seed for each kind of one, with the whole call stack.
    seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    with _generator.held(), torch.random.fork_rng(devices=[]):
        seed(int(rng.integers(2**63)))
        yield
