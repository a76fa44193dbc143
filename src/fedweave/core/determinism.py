"""The server's arithmetic, the same on every machine."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from fedweave.core.locks import ThreadLock


@contextmanager
def deterministic(controller: ThreadpoolController | None = None) -> Generator[None]:
    """Compute the server's side with one BLAS thread, as the workers do: sums in another order are other bits."""
    overflow = np.errstate(over="ignore", invalid="ignore")  # divergence is reported, not warned of
    blas = (controller or ThreadpoolController()).select(user_api="blas")
    _limits.begin(blas)
    try:
        with overflow:
            yield
    finally:
        _limits.end()


class _Limits:
    """The number of BLAS threads belongs to the process: runs in several threads share the limit, the last lifts it."""

    def __init__(self) -> None:
        self._lock, self._runs = ThreadLock(), 0
        self._limited: list[tuple[ThreadpoolController, Any]] = []  # more than one if a library was loaded later

    def begin(self, blas: ThreadpoolController) -> None:
        with self._lock.held():
            if any(library["num_threads"] != 1 for library in blas.info()):
                _take_control(blas)
                self._limited.append((blas, blas.limit(limits=1)))
            self._runs += 1

    def end(self) -> None:
        with self._lock.held():
            self._runs -= 1
            while self._limited and not self._runs:
                blas, limit = self._limited.pop()
                _take_control(blas)
                limit.restore_original_limits()
                _take_control(blas)  # and leave it to whoever comes next


def _take_control(blas: ThreadpoolController) -> None:
    """Let this thread set the limit: newer versions of threadpoolctl ignore all threads but the first that did."""
    for library in blas.lib_controllers:
        getattr(library, "clear_controlling_thread", lambda force: None)(force=True)


_limits = _Limits()
