"""A pool of Ray actors: what the worker processes do, on the CPUs of a Ray cluster.

The data set is put into Ray's object store once, from where the actors of a machine map one copy, and the model once
for all calls of a ``map``. Both belong to the main process, so they outlive any other machine. A call whose actor is
lost is done by another one: it is a pure function of its arguments, so the bits are the same. Ray is imported when a
run joins it: what is solved in closed form starts nothing.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from threading import Lock
from typing import Any, Literal

from threadpoolctl import threadpool_limits

from fedweave.core.records import Array
from fedweave.core.settings import BadInput, brief
from fedweave.engine.pool.protocol import Build, Call, WorkerDied
from fedweave.engine.pool.ray_cluster import about_here, check_machine, connected, leave
from fedweave.engine.pool.shared_data import SHARED, contiguous
from fedweave.engine.pool.worker import Answer, Serving, answered, packed, result_of
from fedweave.local.client_data import ClientData

START_SECONDS = 300.0  # how long to wait for the first actor: the CPUs of a cluster may be busy with other work
MOST_DEATHS = 3  # actors that may be lost at one call, or at their start, before it is no accident
MOST_COLUMNS = 16  # kept in the object store for later runs


class Actor:
    """A training process of a Ray cluster."""

    def __init__(self) -> None:
        threadpool_limits(1)
        self._serving = Serving()

    def about(self) -> Answer:
        """Say where this is, and with what."""
        return True, about_here()

    def load(self, build: bytes, data: ClientData) -> Answer:
        """Make the trainer ``build(data)``; its columns are references into the object store."""
        import ray

        columns = dict(zip(SHARED, ray.get([getattr(data, name) for name in SHARED]), strict=True))
        return answered(self._serving.load, build, data._replace(**columns))

    def call(self, x: Array, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
        """Do one call of a ``map``."""
        return answered(self._serving.call, x, work, arguments)


class Columns:
    """The columns of data sets in the object store, each once for all runs and threads that use it."""

    def __init__(self) -> None:
        self._lock, self._stored = Lock(), dict[int, tuple[Any, Any]]()  # with the column, so that its id stays its own

    def put(self, ray: Any, column: Any, plain: Any) -> Any:
        """Return the reference to a column, stored in its ``plain`` form."""
        with self._lock:
            if id(column) not in self._stored:
                if len(self._stored) >= MOST_COLUMNS:
                    self._stored.clear()
                self._stored[id(column)] = column, ray.put(plain)
            return self._stored[id(column)][1]


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
        self._columns = Columns()
        self._given: tuple[Any, ...] = ()  # references to the pickled ``build`` and to the data
        self._actors: list[Any] = []
        self._unknown: dict[Any, Any] = {}  # actors that have not yet said where they are, with what will tell it
        self._node: dict[Any, str] = {}  # where the others are
        self._coming: dict[Any, Any] = {}  # the actors that are starting, loading or asked for a sign of life
        self._free: list[Any] = []
        self._stillborn = 0  # actors that were lost before they had a trainer
        self._stopped = False

    def __str__(self) -> str:
        if self.count is None:
            return "a Ray actor per CPU"
        return f"{self.count} Ray actors" if self.count > 1 else "one Ray actor"

    @property
    def joined(self) -> bool:
        """Whether the cluster is known."""
        return self._ray is not None

    def join(self) -> None:
        """Join the cluster that is there, or start one, and find out how many actors it has room for."""
        if self.joined:
            return
        self._ray, self._ours = connected(self.count)
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        self.count = self.count or max(cpus, 1)
        if self.count > cpus:
            raise BadInput(
                f"{self} were asked for, of one CPU each. The Ray cluster has {cpus}. Use fewer 'workers', or 'auto'."
            )

    def lanes(self, most: int) -> list[RayActors]:
        """Divide the actors among up to ``most`` pools, which train different things at the same time."""
        self.join()
        room = int(self._ray.available_resources().get("CPU", 0)) + len(self._actors)  # others may use the cluster too
        total, found = max(min(self.count or 1, room), 1), list[RayActors]()
        for count in divide(total, min(most, total)):
            found.append(lane := RayActors(count))
            lane._ray, lane._columns = self._ray, self._columns
        return found

    def stop(self) -> None:
        """End a pool that another thread is using, there as if by Ctrl-C."""
        self._stopped, ray = True, self._ray
        for actor in list(self._actors):
            ray.kill(actor)

    def load(self, build: Build, data: ClientData, pieces: int) -> bool:
        """Give every actor the trainer ``build(data)``; no more actors than a round has ``pieces``."""
        blob = packed(build)
        self.join()
        plain = contiguous(data)  # else copied in every process, not shared
        stored = {name: self._columns.put(self._ray, getattr(data, name), plain[name]) for name in SHARED}
        self._given = (self._ray.put(blob), self._ray.put(data._replace(**stored)))
        self._free, self._coming = [], {actor.load.remote(*self._given): actor for actor in self._actors}
        self._stillborn = 0
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
        model, todo = self._ray.put(x), deque(range(len(calls)))
        doing, deaths = dict[Any, tuple[int, Any]](), Counter[int]()

        def hand_out() -> None:
            while todo and self._free:
                actor, i = self._free.pop(), todo.popleft()
                doing[actor.call.remote(model, *calls[i])] = i, actor

        while todo or doing:
            self._hire(len(todo) + len(doing))
            hand_out()
            answer = self._next([*doing, *self._coming] if todo else list(doing), None if doing else START_SECONDS)
            if answer in self._coming:
                self._welcome(answer)
                continue
            i, actor = doing.pop(answer)
            try:
                result = self._result(answer)
            except _Lost as death:
                deaths[i] += 1
                if deaths[i] == MOST_DEATHS:
                    raise WorkerDied(
                        f"{MOST_DEATHS} Ray actors have died at the same work, which often means out of memory. "
                        f"The last one: {death}"
                    ) from death
                self._lose(actor)
                warnings.warn(f"A Ray actor was lost; another one does its work. {death}", stacklevel=2)
                todo.appendleft(i)
                continue
            self._free.append(actor)
            hand_out()  # before the result is taken, which may take a while
            yield i, result

    def _hire(self, pieces: int) -> None:
        """Start actors until there is one for each piece, or as many as were planned."""
        missing = min(self.count or 1, pieces) - len(self._actors)
        if missing <= 0 or self._stillborn >= MOST_DEATHS:
            return
        make = self._ray.remote(num_cpus=1)(Actor)
        for _ in range(missing):
            self._actors.append(actor := make.remote())
            self._unknown[actor] = actor.about.remote()
            self._coming[actor.load.remote(*self._given)] = actor

    def _welcome(self, answer: Any) -> None:
        """Take an actor that is ready, or give it up."""
        actor = self._coming.pop(answer)
        try:
            if actor in self._unknown:
                about = self._result(self._unknown[actor])
                check_machine(about)
                self._node[actor] = about["node"]
            self._result(answer)
        except _Lost as death:
            self._stillborn += actor in self._unknown
            self._lose(actor)
            if not self._actors and self._stillborn >= MOST_DEATHS:
                raise WorkerDied(
                    "No Ray actor could be started: its machine may have no fedweave to import, or too little memory. "
                    f"The last one: {death}"
                ) from death
        else:
            self._unknown.pop(actor, None)
            self._free.append(actor)

    def _lose(self, actor: Any) -> None:
        """Give an actor up, and ask those of its machine that are free for a sign of life before they get work."""
        self._ray.kill(actor)
        self._actors.remove(actor)
        self._unknown.pop(actor, None)
        node = self._node.pop(actor, None)
        for other in [free for free in self._free if self._node[free] == node]:
            self._free.remove(other)
            self._coming[other.about.remote()] = other

    def _next(self, answers: list[Any], seconds: float | None) -> Any:
        if self._stopped:
            raise KeyboardInterrupt
        ready = self._ray.wait(answers, num_returns=1, timeout=seconds)[0] if answers else ()
        if not ready:
            raise NoRoom(
                f"No Ray actor has started within {seconds:.0f} s: other work may hold the cluster's CPUs, or its "
                "machines are gone. `ray status` shows it."
            )
        return ready[0]

    def _result(self, answer: Any) -> Any:
        errors = self._ray.exceptions
        lost = errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError, errors.OutOfMemoryError
        try:
            arrived = self._ray.get(answer)
        except errors.RayError as e:
            if self._stopped:
                raise KeyboardInterrupt from None
            if isinstance(e, (*lost, errors.WorkerCrashedError)):
                raise _Lost(_reason(e)) from e
            raise WorkerDied(f"A Ray actor could not do its work: {_reason(e)}") from e
        return result_of(arrived)

    def __exit__(self, *_: object) -> None:
        self._end()
        if self._ours:
            leave(self._ray)
        self._ray, self._ours, self._columns = None, False, Columns()

    def _end(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors, self._coming, self._free, self._given, self.holds = [], {}, [], (), None
        self._unknown, self._node = {}, {}


class NoRoom(WorkerDied):
    """No actor could be had in good time."""


def divide(total: int, lanes: int) -> list[int]:
    """Divide a number of actors among lanes, each at least one."""
    return [max(total // lanes + (n < total % lanes), 1) for n in range(lanes)]


class _Lost(Exception):  # noqa: N818 - it says what happened
    """An actor, its machine or its answer is gone; the words are Ray's."""


def _reason(error: Exception) -> str:
    """Return the part of Ray's words that says what happened, in one line."""
    said = str(error).strip().splitlines() or [type(error).__name__]
    return brief(said[-1].strip().split(" Some common causes", 1)[0], 300)
