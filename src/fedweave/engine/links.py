"""The simulated links: whose answer arrives, how long it takes, and who is the next to land."""

from __future__ import annotations

import numpy as np

from fedweave.core.flights import ARRIVES, Ended, Flights
from fedweave.core.randomness import Stream, borrow
from fedweave.core.records import Array, Assignment, Population
from fedweave.round.memories import bytes_down


def draw_arrivals(seed: int, dispatch: int, ids: Array, population: Population) -> Array:
    """Return which answers arrive (k,) bool.

    One draw per client and dispatch, so that the outcome does not depend on the rest of the cohort.
    """
    fate = borrow(seed, dispatch, Stream.LINK).random(population.size)
    return fate[ids] >= population.loss_rate[ids]


def participation_seconds(assignment: Assignment, up: Array, down: Array | None) -> Array:
    """Return the seconds (k,) of participations with so many bytes; where rates are known bytes take time (FedDD).

    ``latency`` is that of a whole model both ways: what is saved or added beside it is counted (eqs 9 and 11).
    """
    p, ids = assignment.population, assignment.cohort.ids
    latency = p.latency[ids]
    if p.up_rate is None or p.down_rate is None or p.model_bytes is None:
        return latency
    whole = p.model_bytes[ids]
    bits = 8 * (up - whole) / p.up_rate[ids] + 8 * (bytes_down(assignment, down) - whole) / p.down_rate[ids]
    return latency + bits


def next_landing(flights: Flights, enough: float, until: float) -> Ended:
    """Return which flights have ended when so many draws have landed or the first is lost, or at ``until``.

    All due times are known, so that the landings of a round are found together. Equal ones land together.
    """
    due, lost = flights.due, flights.fate != ARRIVES
    end = until
    if np.isfinite(enough):
        arriving, first_loss = due[~lost], float(due[lost].min(initial=np.inf))
        end = min(until, first_loss, _time_of_landing(arriving, flights.drawn[~lost], int(enough)))
        if not np.isfinite(end):  # too few are under way
            end = float(due.max())
    rows = due <= end
    return Ended(rows, rows & lost, end)


def _time_of_landing(due: Array, count: Array, draws: int) -> float:
    """Return when so many draws have landed; infinite if they never have."""
    if due.size > draws:  # sort no more than are needed: each row is a draw at least
        some = due <= np.partition(due, draws - 1)[draws - 1]
        due, count = due[some], count[some]
    order = np.argsort(due, kind="stable")
    landed = count[order].cumsum()
    return float(due[order[np.searchsorted(landed, draws)]]) if landed.size and landed[-1] >= draws else np.inf
