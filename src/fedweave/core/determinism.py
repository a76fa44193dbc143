"""The server's arithmetic, the same on every machine."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
from threadpoolctl import ThreadpoolController


@contextmanager
def deterministic(controller: ThreadpoolController | None = None) -> Generator[None]:
    """Compute the server's side with one BLAS thread, as the workers do: sums in another order are other bits."""
    overflow = np.errstate(over="ignore", invalid="ignore")  # divergence is reported, not warned of
    with (controller or ThreadpoolController()).limit(limits=1, user_api="blas"), overflow:
        yield
