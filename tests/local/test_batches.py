"""The batches of a client: every sample once per pass, partial batches exact, at an address of their own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedweave.local.batches import batches
from jobs import jobs_of

PARTS = [np.arange(100, 100 + n) for n in (1, 7, 20, 23)]


def plan(client, steps, size, seed=0, dispatch=1):
    (found,) = batches(seed, jobs_of((client, steps, size), dispatch=dispatch), PARTS)
    return found


@given(st.integers(0, 3), st.integers(1, 30), st.integers(1, 40))
def test_every_pass_shows_every_sample_once(client, steps, size):
    found, part = plan(client, steps, size), PARTS[client]
    seen = [found.where[t, : found.size[t]] for t in range(steps)]
    per_pass = -(-part.size // min(size, part.size))
    for first in range(0, steps - per_pass + 1, per_pass):
        assert sorted(np.concatenate(seen[first : first + per_pass])) == part.tolist()
    assert len(found.where) == len(found.size) == steps
    assert all(b.size for b in seen)


def test_the_last_batch_of_a_pass_is_what_is_left():
    assert plan(3, 10, 5).size.tolist() == [5, 5, 5, 5, 3] * 2


def test_a_batch_larger_than_the_data_is_the_data():
    assert plan(1, 3, 50).size.tolist() == [7, 7, 7]


def test_fewer_steps_are_the_beginning_of_more():
    assert np.array_equal(plan(3, 4, 5).where, plan(3, 12, 5).where[:4])


def test_address_decides():
    one = plan(3, 5, 5)
    assert np.array_equal(one.where, plan(3, 5, 5).where)
    for other in (plan(3, 5, 5, seed=1), plan(3, 5, 5, dispatch=2)):
        assert not np.array_equal(one.where, other.where)


def test_company_does_not_matter():
    each = [(2, 4, 5), (3, 6, 5), (1, 2, 5)]
    jobs = jobs_of(*each)._replace(dispatch=np.array([1, 2, 3]))
    for dispatch, (job, found) in enumerate(zip(each, batches(0, jobs, PARTS), strict=True), 1):
        assert np.array_equal(found.where, plan(*job, dispatch=dispatch).where)
