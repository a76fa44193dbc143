"""A pool of Ray actors: what the worker processes do, on the CPUs of a Ray cluster.

The data set is put into Ray's object store once, from where the actors of a machine map one copy, and the model once
for all calls of a ``map``. Ray is imported when a run joins it: what is solved in closed form starts nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any, Literal

from threadpoolctl import threadpool_limits

from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.engine.pool.protocol import Build, Call, WorkerDied
from fedweave.engine.pool.shared_data import contiguous
from fedweave.engine.pool.worker import Answer, Serving, answered, packed, result_of
from fedweave.local.client_data import ClientData

START_SECONDS = 60.0  # how long to wait for the first actor: the CPUs of a cluster may be busy with other work

# A cluster of our own tells nobody that it is used and listens to this machine alone. Ray has the second as a switch
# for Windows and macOS, where it is the default, and looks at it when it is imported.
ALONE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class Actor:
    """A training process of a Ray cluster."""

    def __init__(self) -> None:
        threadpool_limits(1)
        self._serving = Serving()

    def load(self, build: bytes, data: ClientData) -> Answer:
        """Make the trainer ``build(data)``."""
        return answered(self._serving.load, build, data)

    def call(self, x: Array, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
        """Do one call of a ``map``."""
        return answered(self._serving.call, x, work, arguments)


class RayActors(AbstractContextManager["RayActors"]):
    """Actors that each hold a trainer and do one call at a time; started when first needed, then kept."""

    worthwhile = True  # who asks for Ray gets it at once

    def __init__(self, workers: int | Literal["auto"]):
        """Plan this many actors of one CPU each, or one for every CPU of the cluster."""
        if find_spec("ray") is None:
            raise BadInput("The pool 'ray' needs Ray, which is not installed: pip install 'fedweave[ray]'")
        self.count = None if workers == "auto" else workers  # None until the cluster is known
        self.patience = 0.0
        self.holds: Any = None  # the ``build`` whose trainer they have now
        self._ray: Any = None
        self._ours = False  # whether we joined or started Ray, and so have to leave or end it
        self._given: tuple[Any, ...] = ()  # references to the pickled ``build`` and to the data
        self._actors: list[Any] = []
        self._coming: dict[Any, Any] = {}  # the actors that are still starting or loading, by what they will answer
        self._free: list[Any] = []

    def __str__(self) -> str:
        if self.count is None:
            return "a Ray actor per CPU"
        return f"{self.count} Ray actors" if self.count > 1 else "one Ray actor"

    def load(self, build: Build, data: ClientData, pieces: int) -> bool:
        """Give every actor the trainer ``build(data)``; no more actors than a round has ``pieces``."""
        blob = packed(build)
        self.join()
        self._given = (self._ray.put(blob), self._ray.put(data._replace(**contiguous(data))))  # else copied, not shared
        self._free, self._coming = [], {actor.load.remote(*self._given): actor for actor in self._actors}
        self._hire(pieces)
        self.holds = build
        return True

    def map(self, x: Array, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        """Do each call, with ``x`` in front of its arguments, on whichever actor is free; yield (position, result)."""
        if not self._given:
            raise WorkerDied("The Ray actors have ended.")
        try:
            yield from self._map(x, calls)
        except BaseException:  # the others are still busy with what nobody will ask for
            self._end()
            raise

    def _map(self, x: Array, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        self._hire(len(calls))
        model, todo = self._ray.put(x), deque(enumerate(calls))
        doing: dict[Any, tuple[int | None, Any]] = {}

        def hand_out() -> None:
            while todo and self._free:
                actor, (i, (work, arguments)) = self._free.pop(), todo.popleft()
                doing[actor.call.remote(model, work, arguments)] = i, actor

        hand_out()
        while todo or doing:
            answer = self._next([*doing, *self._coming] if todo else list(doing), None if doing else START_SECONDS)
            result = self._result(answer)
            i, actor = doing.pop(answer, None) or (None, self._coming.pop(answer))
            self._free.append(actor)
            hand_out()  # before the result is taken, which may take a while
            if i is not None:
                yield i, result

    def _hire(self, pieces: int) -> None:
        """Start actors until there is one for each piece, or as many as were planned."""
        make = self._ray.remote(num_cpus=1)(Actor)
        while len(self._actors) < min(self.count or 1, pieces):
            self._actors.append(actor := make.remote())
            self._coming[actor.load.remote(*self._given)] = actor

    def _next(self, answers: list[Any], seconds: float | None) -> Any:
        ready, _ = self._ray.wait(answers, num_returns=1, timeout=seconds)
        if not ready:
            raise WorkerDied(
                f"No Ray actor has started within {seconds:.0f} s: other work may hold the cluster's CPUs. "
                "`ray status` shows it."
            )
        return ready[0]

    def _result(self, answer: Any) -> Any:
        try:
            arrived = self._ray.get(answer)
        except self._ray.exceptions.RayError as e:
            raise WorkerDied(
                "A Ray actor died, and Ray's words above say how. Often it ran out of memory, or its machine has no "
                "fedweave to import."
            ) from e
        return result_of(arrived)

    def join(self) -> None:
        """Join the cluster that is there, or start one, and find out how many actors it has room for."""
        if self._ray is None:
            self._ray, self._ours = _connected(self.count)
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        self.count = self.count or max(cpus, 1)
        if self.count > cpus:
            raise BadInput(
                f"{self} were asked for, of one CPU each. The Ray cluster has {cpus}. Use fewer 'workers', or 'auto'."
            )

    def __exit__(self, *_: object) -> None:
        self._end()
        if self._ours:
            self._ray.shutdown()
        self._ray, self._ours = None, False

    def _end(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors, self._coming, self._free, self._given, self.holds = [], {}, [], (), None


def _connected(cpus: int | None) -> tuple[Any, bool]:
    """Return Ray and whether we connected it: to the cluster of RAY_ADDRESS, or to a new one on this machine."""
    address = os.environ.get("RAY_ADDRESS") or "local"
    with _environment(ALONE if address == "local" else {}), _same_handler(signal.SIGTERM):
        import ray

        if ray.is_initialized():
            return ray, False
        own = {"num_cpus": cpus, "include_dashboard": False} if address == "local" else {}
        try:
            _knock(address)
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (OSError, ValueError) as e:
            raise BadInput(
                f"The Ray cluster at RAY_ADDRESS={address!r} cannot be joined: {e} "
                "If it wants a token, RAY_AUTH_MODE=token is needed here too."
            ) from None
        return ray, True


def _knock(address: str) -> None:
    """Raise an OSError if nobody listens there: Ray itself would try for minutes."""
    if ":" in address:  # and not "auto" or "local"
        host, port = address.removeprefix("ray://").rsplit(":", 1)
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


@contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    """Set environment variables for a while, unless the user has set them."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


@contextmanager
def _same_handler(number: signal.Signals) -> Generator[None]:
    """Keep the handler of a signal: with the one that Ray puts in its place, a run would not say how to go on."""
    if threading.current_thread() is not threading.main_thread():  # where neither we nor Ray can set one
        yield
        return
    before = signal.getsignal(number)
    try:
        yield
    finally:
        signal.signal(number, before)
