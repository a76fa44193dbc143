"""Rounds that overlap: who is asked while others are still under way, and whose answers a round absorbs.

One absorb is one round. Clients are drawn at its beginning and, where the pacing refills, whenever an answer is lost;
each draw event has a number of its own, by which worlds and randomness go. A client is trained when it lands, from the
version of the model that it was sent: so what is under way is a few numbers for each client and the versions that are
still in use, and an interruption costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedweave.core.flights import ARRIVES, LATE, LOST, NO_FLIGHTS, STALE, Flights, Landing, Sent, flights_of
from fedweave.core.records import Array, Assignment, Cohort, Population, Replies, ServerState, State
from fedweave.core.roles import OverlappingEngine, Pacing, Prober
from fedweave.core.settings import BadInput
from fedweave.method import Method
from fedweave.round.memories import bytes_down, client_context
from fedweave.round.plan import plan, view_of
from fedweave.round.read_only import read_only_record
from fedweave.round.rules import NO_RULES, Rules, without_quarantined

World = Callable[[int], Population]


class Window(NamedTuple):
    """What a round absorbs, and how things stand when it does."""

    assignment: Assignment
    clock: float
    flights: State


def gather(
    method: Method,
    state: ServerState,
    world: World,
    engine: OverlappingEngine,
    lr: float,
    seed: int,
    rules: Rules = NO_RULES,
) -> Window:
    """Fill the free seats and wait until the pacing absorbs; lost and given-up answers are rows of the cohort too."""
    pacing, clock, number = method.pacing, state.clock, int(state.flights["dispatches"])
    air, ended = _without_stale(flights_of(state.flights), state, pacing)
    landed = probed = 0
    while True:
        number += 1
        seats, busy = pacing.seats(air.under_way + landed), np.concatenate([air.client, ended.client])
        population = world(number)
        asking = method if seats is None else method.asking(seats)
        asked = plan(asking, state, _without(population, busy), engine, lr, seed, rules=rules, number=number)
        _check_draws(asked, asking, seats)
        new = _departing(asked, engine.send(asked), state.round, clock, pacing)
        air, probed = air.joined(new), probed + asked.cohort.probed
        if not air.client.size:
            break
        over = engine.wait(air, pacing.enough() - landed, _closing(pacing, clock, new, air))
        clock, down = over.clock, air.take(over.rows)
        fate = np.where(over.lost[over.rows] & (down.fate == ARRIVES), LOST, down.fate)
        ended, air = ended.joined(down._replace(fate=fate)), air.take(~over.rows)
        landed += int(down.drawn[fate == ARRIVES].sum())
        if not (pacing.refills and over.lost.any()) or landed >= pacing.enough():
            break
    rows = ended.take(np.argsort(ended.client))
    population = without_quarantined(population, state.refusals, rules)
    assignment = _assignment(method, state, asked, rows, air, population, probed)
    return Window(assignment, clock, _left(state, air, number, asked.context.broadcast))


def with_staleness(method: Method, state: ServerState, assignment: Assignment, replies: Replies) -> Replies:
    """Return the replies with each one's staleness and learning rate, and its drift if the aggregator needs that."""
    landing = assignment.landing
    assert landing is not None
    replies = replies._replace(staleness=state.round - landing.flights.version)
    if (landing.flights.lr != assignment.lr).any():
        replies = replies._replace(lr=landing.flights.lr)
    if not method.aggregator.needs_drift or not replies.received.any():
        return replies
    rows = np.flatnonzero(replies.received)
    drift = np.zeros_like(replies.updates)
    drift[rows] = landing.models(rows) - state.x
    return replies._replace(drift=drift)


def under_way(
    method: Method, state: ServerState, population: Population, prober: Prober, seed: int
) -> list[Assignment]:
    """Return what was asked of those who are under way, dispatch by dispatch, for a server that has to ask again."""
    flights, found = flights_of(state.flights), list[Assignment]()
    context = client_context(method, state)
    for number in np.unique(flights.dispatch).tolist():
        rows = flights.take(flights.dispatch == number)
        versions, budget = rows.version[:1], None if np.isnan(rows.budget).all() else rows.budget
        sent = None if context.broadcast is None else _models(state, versions, "broadcast", context.broadcast)
        view = view_of(method, state, _as_asked(population, rows, 0), prober, float(rows.lr[0]), seed, context)
        view = replace(view, x=_models(state, versions, "x", state.x))
        cohort = Cohort(ids=rows.client, count=rows.drawn, expected=rows.expected)
        found.append(Assignment(view, cohort, context._replace(broadcast=sent, budget=budget), number))
    return found


def _without_stale(flights: Flights, state: ServerState, pacing: Pacing) -> tuple[Flights, Flights]:
    """Return who stays under way, and those that are given up because too many versions have followed theirs."""
    old = state.round - flights.version > pacing.most_staleness
    if not old.any():
        return flights, NO_FLIGHTS
    dropped = flights.take(old)
    waited = state.clock - dropped.sent
    return flights.take(~old), dropped._replace(fate=np.full(waited.size, STALE), seconds=waited)


def _without(population: Population, busy: Array) -> Population:
    """Return the population in which these clients cannot be asked: they are under way, or wait to be absorbed."""
    if not busy.size:
        return population
    available = population.available.copy()
    available[busy] = False
    return replace(population, available=available)


def _check_draws(asked: Assignment, method: Method, seats: int | None) -> None:
    draws = int(asked.cohort.count.sum())
    if seats is not None and draws > seats:
        raise BadInput(
            f"{method.sampler} must draw at most {seats} times, for so many seats are free. It drew {draws}."
        )


def _departing(asked: Assignment, sent: Sent, version: int, clock: float, pacing: Pacing) -> Flights:
    """Return a dispatch as flights, with when each one lands or is given up."""
    cohort, p, ids = asked.cohort, asked.population, asked.cohort.ids
    k, budget, limit = ids.size, asked.context.budget, pacing.timeout
    fate, seconds = np.where(sent.arrives, ARRIVES, LOST), sent.seconds
    if limit is not None:
        fate = np.where(sent.arrives & (seconds > limit), LATE, fate)
        seconds = np.where(fate == ARRIVES, seconds, limit)
    return Flights(
        client=ids,
        version=np.full(k, version),
        dispatch=np.full(k, asked.dispatch),
        drawn=cohort.count.astype(np.int64, copy=False),
        expected=cohort.expected.astype(np.float64, copy=False),
        event_draws=np.full(k, cohort.count.sum()),
        sent=np.full(k, clock),
        due=clock + seconds,
        seconds=seconds,
        lr=np.full(k, float(asked.lr)),
        steps=p.steps[ids],
        batch_size=p.batch_size[ids],
        budget=np.full(k, np.nan) if budget is None else budget.astype(np.float64, copy=False),
        latency=p.latency[ids],
        loss_rate=p.loss_rate[ids],
        bytes_up=sent.bytes_up,
        bytes_down=bytes_down(asked, sent.bytes_down),
        fate=fate,
    )


def _closing(pacing: Pacing, clock: float, new: Flights, air: Flights) -> float:
    """Return when the round closes at the latest; if nobody could be asked, at the next landing.

    Answers of which nobody knows when they come do not close it: the engine looks after that (``wait``).
    """
    known, due = ~np.isnan(new.seconds), air.due[~np.isnan(air.due)]
    closing = clock + pacing.closing(np.where(known, new.seconds, np.inf), known & (new.fate == ARRIVES))
    return closing if new.client.size or pacing.refills else min(closing, float(due.min(initial=np.inf)))


def _assignment(
    method: Method,
    state: ServerState,
    asked: Assignment,
    rows: Flights,
    air: Flights,
    population: Population,
    probed: int,
) -> Assignment:
    """Return the rows as one cohort, seen with the present model and what each was asked at its own dispatch."""
    arriving = rows.fate == ARRIVES
    versions = np.unique(rows.version[arriving])
    version = np.where(arriving, np.searchsorted(versions, rows.version), 0) if versions.size > 1 else None
    broadcast = asked.context.broadcast
    landing = Landing(rows, _models(state, versions, "x", asked.x), version, air.client)
    context = asked.context._replace(
        broadcast=None if broadcast is None else _models(state, versions, "broadcast", broadcast),
        budget=None if np.isnan(rows.budget).all() else rows.budget,
    )
    seen = _as_asked(population, rows, asked.dispatch)
    view = replace(asked.view, population=read_only_record(seen) if method.foreign else seen)
    cohort = replace(landing.cohort, probed=probed)
    return Assignment(view, cohort, context, asked.number, landing)


def _models(state: ServerState, versions: Array, name: str, now: Array) -> Array:
    """Return what was sent with these versions: (D,) for one of them, (v, D) for several."""
    if not (versions != state.round).any():
        return now
    table = state.flights[name]
    found = table[versions % table.shape[0]]
    found[versions == state.round] = now
    return found if versions.size > 1 else found[0]


def _as_asked(population: Population, rows: Flights, number: int) -> Population:
    """Return the population with the cohort as it was when each of it was asked."""
    if (rows.dispatch == number).all():
        return population
    changed = {name: getattr(population, name).copy() for name in ("steps", "batch_size", "latency", "loss_rate")}
    for name, values in changed.items():
        values[rows.client] = getattr(rows, name)
    return replace(population, **changed)


def _left(state: ServerState, air: Flights, number: int, broadcast: Array | None) -> State:
    """Return who stays under way as state, with the versions of the model that they began with and no others."""
    tables, slots = dict[str, object](), np.zeros(0, np.int64)
    for name, now in (("x", state.x), ("broadcast", broadcast)):
        if name not in state.flights:
            continue
        table = state.flights[name]
        if air.client.size:
            slots = np.flatnonzero(np.bincount(air.version % table.shape[0]))
            if now is not None and (air.version == state.round).any():
                table = table.replaced(np.array([state.round % table.shape[0]]), now[None])
        tables[name] = table.only(slots)
    return {**air._asdict(), "dispatches": np.array(number), **tables}
