"""An update that is not finite is refused by name and never averaged; every other one passes as it is."""

import copy

import numpy as np
import pytest

import worlds
from fedweave.core.records import Layout
from fedweave.core.settings import BadInput
from fedweave.round.admission import admit
from fedweave.round.guard import check_cohort
from fedweave.sample import Everyone, PowerOfChoice

LAYOUT = Layout(names=("conv.weight", "bias", "scale"), shapes=((2, 3), (4,), ()), parameters=11)  # D = 6 + 4 + 1
IDS = np.array([2, 5, 9])


def replies(received=(True, True, True)):
    updates = np.arange(33, dtype=np.float32).reshape(3, 11)
    return worlds.replies(updates, received, steps=4, loss=0.5, first_gradient=1.5, seconds=2.0, bytes_up=44)


def cohort():
    return worlds.cohort(IDS, expected=0.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("entry", "where"), [(0, "conv.weight[0, 0]"), (5, "conv.weight[1, 2]"), (7, "bias[1]"), (10, "scale[]")]
)
@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("vector", ["updates", "memory_change"])
def test_a_bad_entry_anywhere_refuses_its_client_alone(bad, entry, where, row, vector):
    before = replies()._replace(memory_change=np.ones((3, 11), np.float32), variance=np.ones(3))
    getattr(before, vector)[row, entry] = bad
    kept = copy.deepcopy(before)
    after, refused = admit(before, cohort(), LAYOUT)
    assert [str(r) for r in refused] == [f"client {IDS[row]}: 1 of 11 values are not finite, first in {where}"]
    others = np.arange(3) != row
    assert after.received.tolist() == others.tolist()
    for name in ("updates", "memory_change"):
        assert not getattr(after, name)[row].any()
        assert np.array_equal(getattr(after, name)[others], getattr(kept, name)[others])
    for field in ("steps", "loss", "seconds", "bytes_up"):
        assert np.array_equal(getattr(after, field), getattr(kept, field))
    for now, then in zip(before, kept, strict=True):
        assert np.array_equal(now, then, equal_nan=True) if isinstance(now, np.ndarray) else now == then, "changed"


def test_every_bad_client_is_named_and_bad_values_are_counted():
    before = replies()
    before.updates[0, [6, 9]] = np.nan, np.inf
    before.updates[2] = np.nan
    after, refused = admit(before, cohort(), LAYOUT)
    assert [str(r) for r in refused] == [
        "client 2: 2 of 11 values are not finite, first in bias[0]",
        "client 9: 11 of 11 values are not finite, first in conv.weight[0, 0]",
    ]
    assert after.received.tolist() == [False, True, False]
    assert after.memory_change is None


def test_huge_but_finite_is_accepted():
    before = replies()
    before.updates[:] = np.float32(3e38)
    before.updates[1] = -np.finfo(np.float32).max
    after, refused = admit(before, cohort(), LAYOUT)
    assert refused == []
    assert after.received.all()
    assert np.array_equal(after.updates, before.updates)


def test_what_was_lost_is_not_refused():
    after, refused = admit(replies((True, False, True)), cohort(), LAYOUT)
    assert refused == []
    assert after.received.tolist() == [True, False, True]


def test_an_empty_cohort_passes():
    after, refused = admit(worlds.replies(np.empty((0, 11), np.float32)), worlds.cohort([]), LAYOUT)
    assert refused == []
    assert after.updates.shape == (0, 11)


FIVE = worlds.equal_clients(5, available=np.array([True, True, True, False, True]))


def odd(ids, **fields):
    """Check a cohort as some sampler might return it."""
    return check_cohort(worlds.cohort(ids, **fields), Everyone(), FIVE)


@pytest.mark.parametrize(
    ("cohort", "words"),
    [
        ({"ids": [1, 1]}, "distinct"),
        ({"ids": [3, 1]}, "ascending"),
        ({"ids": [5]}, "0 … 4"),
        ({"ids": [-1]}, "0 … 4"),
        ({"ids": [1, 2], "count": np.ones(3, int)}, "one length"),
        ({"ids": [1], "count": np.zeros(1, int)}, "at least 1"),
        ({"ids": [1], "count": np.full(1, np.nan)}, "whole numbers"),
        ({"ids": [1], "count": np.ones(1)}, "whole numbers"),
        ({"ids": [3]}, "available clients only"),
        ({"ids": [1], "expected": np.full(1, np.nan)}, "law_known"),
        ({"ids": [1], "expected": np.zeros(1)}, "law_known"),
    ],
)
def test_a_cohort_that_makes_no_sense_is_explained(cohort, words):
    with pytest.raises(ValueError, match=words) as caught:
        odd(**cohort)
    assert "Everyone.draw" in str(caught.value)


def test_what_is_no_cohort_is_explained():
    with pytest.raises(ValueError, match="must return a Cohort"):
        check_cohort([1, 2], Everyone(), FIVE)


def test_only_a_sampler_without_a_known_law_may_leave_it_out():
    assert check_cohort(worlds.cohort([1, 4], expected=np.nan), PowerOfChoice(2), FIVE).ids.tolist() == [1, 4]
    with pytest.raises(BadInput, match=r"Everyone\.draw must return positive numbers as expected"):
        odd([1, 4], expected=np.nan)


def lengths(*values):
    """Replies of clients whose updates have these lengths; nan: lost."""
    values = np.array(values)
    received, rows = np.isfinite(values), np.zeros((values.size, 11), np.float32)
    rows[:, 3] = np.where(received, values, 0)
    return worlds.replies(rows, received), worlds.cohort(np.arange(values.size))


def test_an_update_far_longer_than_the_others_is_refused():
    after, refused = admit(*lengths(1, 2, 3, 5000, np.nan), LAYOUT, max_length_ratio=1000)
    assert [str(r) for r in refused] == ["client 3: its update is 2000 times as long as the median, more than 1000"]
    assert after.received.tolist() == [True, True, True, False, False]
    assert (after.updates[3] == 0).all()
    assert after.updates[:3, 3].tolist() == [1, 2, 3]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e34])
def test_lengths_are_compared_at_any_scale(scale):
    _, refused = admit(*lengths(*(scale * np.array([1, 1, 1, 1, 1001]))), LAYOUT, max_length_ratio=1000)
    assert len(refused) == 1
    assert "1001 times as long" in refused[0].why
    assert admit(*lengths(*(scale * np.array([1, 1, 1, 1, 999]))), LAYOUT, max_length_ratio=1000)[1] == []


def test_fewer_than_three_answers_are_compared_only_where_earlier_lengths_are_remembered():
    """Of two the smaller is the measure: a short one does no harm. One that is alone has none."""

    def refused(*values, earlier=None):
        return [r.client for r in admit(*lengths(*values), LAYOUT, max_length_ratio=10, earlier=earlier)[1]]

    assert refused(1, 1e9) == [], "the simulator"
    assert refused(1, 1e9, earlier=[]) == [1]
    assert refused(1, 9, earlier=[]) == []
    assert refused(1e9, np.nan, earlier=[]) == []
    assert refused(1e9, np.nan, earlier=[2.0]) == [0]
    assert refused(1, 30, earlier=[9.0, 8.0, 7.0]) == []
    assert refused(1, 90, earlier=[9.0, 8.0, 7.0]) == [1]
    assert refused(1, 2, 3, earlier=[1e-9] * 9) == [], "three answers have a median of their own"


def test_zeros_are_no_measure():
    assert admit(*lengths(0, 0, 0, 1), LAYOUT, max_length_ratio=10)[1] == []
    assert admit(*lengths(1, 1, 1, 1e9), LAYOUT)[1] == []  # no limit was asked for
