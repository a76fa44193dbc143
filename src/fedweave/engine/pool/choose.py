"""Which pool an experiment trains with."""

from __future__ import annotations

import os
from typing import Literal

from fedweave.engine.pool.processes import Workers
from fedweave.engine.pool.protocol import Pool
from fedweave.engine.pool.ray import RayActors

PATIENCE_SECONDS = 3.0  # starting workers costs about this much, so that is how long "auto" works alone first


def choose_pool(workers: int | Literal["auto"], device: str, pool: Literal["local", "ray"] = "local") -> Pool:
    """Return the actors of a Ray cluster, or the processes to use: one per core, but none beside a GPU."""
    if pool == "ray":
        return RayActors(workers)
    if device != "cpu" or not Workers.supported:
        return Workers(1)
    if workers != "auto":
        return Workers(workers)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Workers(cores, PATIENCE_SECONDS)
