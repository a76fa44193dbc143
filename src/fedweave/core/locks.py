"""A lock between the threads of a process that a fork of the process finds free."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager


class ThreadLock:
    """A reentrant lock; the threads that might hold it do not exist in a fork, so there it is a new one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the lock; a thread that forks meanwhile releases in the child what it took in the parent."""
        with self._lock:
            yield
