"""The simulated links: whose answer arrives, and how long it takes."""

from __future__ import annotations

from fedweave.core.randomness import Stream, borrow
from fedweave.core.records import Array, Assignment, Population, Replies
from fedweave.round.memories import bytes_down


def draw_arrivals(seed: int, round: int, ids: Array, population: Population) -> Array:
    """Return which answers arrive (k,) bool.

    One draw per client and round, so that the outcome does not depend on the rest of the cohort.
    """
    fate = borrow(seed, round, Stream.LINK).random(population.size)
    return fate[ids] >= population.loss_rate[ids]


def add_transfer_time(replies: Replies, assignment: Assignment) -> Replies:
    """Return the replies with the seconds that their bytes take, where the rates are known (FedDD eqs 9 and 11).

    ``latency`` is that of a whole model both ways: what is saved or added beside it is counted.
    """
    p, ids = assignment.population, assignment.cohort.ids
    if p.up_rate is None or p.down_rate is None or p.model_bytes is None:
        return replies
    up, down, whole = replies.bytes_up, bytes_down(assignment, replies), p.model_bytes[ids]
    bits = 8 * (up - whole) / p.up_rate[ids] + 8 * (down - whole) / p.down_rate[ids]
    return replies._replace(seconds=p.latency[ids] + bits)
