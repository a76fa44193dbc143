"""Several runs at the same time on one Ray cluster: each in a thread, with its share of the actors.

The server's side of every run stays in this process, with its folder; only training and evaluation are spread. Runs
share nothing but the data, so they give the bits that they give one after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from fedweave.engine.pool.protocol import Pool
from fedweave.engine.pool.ray import NoRoom, RayActors, divide

Found = TypeVar("Found")


def spread(work: Callable[[str, Pool], Found], names: Sequence[str], pool: Pool, at_once: int | None) -> list[Found]:
    """Return ``work(name, pool)`` of every run, in their order.

    Where the pool is a Ray cluster that was joined, up to ``at_once`` train at the same time, or as many as there are
    free CPUs. ``work`` may be called again for a run that it did not finish, when its actors were lost for good.
    """
    most = min(len(names), at_once or len(names))
    if not isinstance(pool, RayActors) or not pool.joined or most < 2 or len(pools := pool.lanes(most)) < 2:
        return [work(name, pool) for name in names]
    todo, found = deque(names), dict[str, Found]()
    while todo:
        before = len(found)
        try:
            _in_lanes(work, todo, found, pools)
        except NoRoom:
            if len(found) == before:  # else a run has ended, and its actors have left room
                raise
            pools = pool.lanes(most)
    return [found[name] for name in names]


def _in_lanes(
    work: Callable[[str, Pool], Found], todo: deque[str], found: dict[str, Found], pools: Sequence[RayActors]
) -> None:
    """Take the runs one after another in each of several threads, and put down what was found."""

    def lane(pool: RayActors) -> None:
        with pool:
            while todo:
                try:
                    name = todo.popleft()
                except IndexError:  # another thread was faster
                    return
                try:
                    found[name] = work(name, pool)
                except NoRoom:
                    todo.appendleft(name)  # others may have room, now or later
                    raise

    crowded: NoRoom | None = None
    with ThreadPoolExecutor(len(pools)) as threads:
        active = {threads.submit(lane, pool): pool for pool in pools}
        total = sum(pool.count or 1 for pool in pools)
        try:
            for ended in as_completed(list(active)):
                del active[ended]
                for pool, count in zip(active.values(), divide(total, len(active)), strict=True):
                    pool.count = count  # what has become free is shared by those that are left
                try:
                    ended.result()
                except NoRoom as e:
                    crowded = e
        except BaseException:
            todo.clear()
            for pool in active.values():
                pool.stop()
            raise
    if crowded and todo:
        raise crowded
