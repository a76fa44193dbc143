"""Robust aggregation against definitions written another way, and against clients that send anything."""

from dataclasses import replace

import numpy as np
import pytest

import worlds
from fedweave import methods
from fedweave.aggregate import Anonymous, InverseProbability, Mean, Robust, Scaffold, Varp
from fedweave.aggregate.robust import clip_rows, trim_rows
from fedweave.core.records import Cohort, Replies, View
from fedweave.core.settings import BadInput


def answers(updates: np.ndarray, received: np.ndarray | None = None) -> tuple[View, Cohort, Replies]:
    """Return a round in which equal clients 0 … k − 1 send these rows."""
    k, dim = updates.shape
    view = worlds.view(worlds.equal_clients(k), dim)
    return view, worlds.cohort(np.arange(k)), worlds.replies(updates, received)


def direction(aggregator, updates, received=None):
    happened = answers(updates, received)
    return aggregator.combine(aggregator.init(happened[0].population, updates.shape[1]), *happened)[0]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 10])
def test_half_trimmed_is_the_median(k):
    U = np.random.default_rng(k).standard_normal((k, 50))
    for inner in (Mean(), Anonymous(), InverseProbability()):
        np.testing.assert_allclose(direction(Robust(inner, trim=0.5), U), np.median(U, axis=0), rtol=1e-12)


@pytest.mark.parametrize(("k", "share"), [(5, 0.2), (10, 0.1), (10, 0.25), (9, 0.4)])
def test_trimmed_mean_is_scipys(k, share):
    from scipy.stats import trim_mean

    U = np.random.default_rng(k).standard_normal((k, 40))
    np.testing.assert_allclose(direction(Robust(Mean(), trim=share), U), trim_mean(U, share, axis=0), rtol=1e-12)


def test_ties_and_pieces_of_columns():
    U = np.random.default_rng(0).integers(0, 3, (6, 70_000)).astype(np.float32)  # more than one piece, many ties
    from scipy.stats import trim_mean

    np.testing.assert_allclose(direction(Robust(Mean(), trim=0.34), U), trim_mean(U, 0.34, axis=0), rtol=1e-6)


def test_clipping_shortens_and_never_lengthens():
    U = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    np.testing.assert_allclose(clip_rows(U, 1.0), [[0.6, 0.8], [0.3, 0.4], [0, 0]])
    np.testing.assert_allclose(clip_rows(U, "median"), [[0.3, 0.4], [0.3, 0.4], [0, 0]])
    assert clip_rows(U[:0], "median").shape == (0, 2)


def test_what_is_off_changes_nothing():
    U = np.random.default_rng(1).standard_normal((5, 9)).astype(np.float32)
    assert (direction(Robust(Mean()), U) == direction(Mean(), U)).all()
    assert trim_rows(U, 0.1) is U  # a tenth of five is nobody


@pytest.mark.parametrize("trim", [0.3, 0.5])
def test_the_minority_cannot_move_it_far(trim):
    """With at most the trimmed share hostile, every coordinate stays within the range of the honest."""
    rng = np.random.default_rng(2)
    for hostile in (-1e30, 1e30):  # what is not finite is refused by name before it gets here
        U = rng.standard_normal((10, 20))
        U[:3] = hostile
        d = direction(Robust(Mean(), trim=trim), U)
        assert (d >= U[3:].min(axis=0)).all()
        assert (d <= U[3:].max(axis=0)).all()


def test_lost_replies_do_not_count():
    U = np.random.default_rng(3).standard_normal((6, 8))
    received = np.array([True, False, True, True, False, True])
    np.testing.assert_allclose(direction(Robust(Mean(), trim=0.5), U, received), np.median(U[received], axis=0))
    assert (direction(Robust(Mean(), "median", 0.5), U, np.zeros(6, bool)) == 0).all()


def test_memories_work_behind_the_guard_and_control_variates_are_refused():
    U = np.random.default_rng(4).standard_normal((6, 8)).astype(np.float32)
    np.testing.assert_allclose(direction(Robust(Varp(), trim=0.5), U), np.median(U, axis=0), rtol=1e-5)
    with pytest.raises(BadInput, match="one bad client would still spoil it"):
        Robust(Scaffold())


def test_calibration_needs_an_unclipped_guard():
    view, *_ = answers(np.zeros((4, 2)))
    view = replace(view, effort_of=lambda steps: steps * 1.0)
    law = np.full(4, 0.5)
    assert Robust(Mean(), trim=0.2).step_length(view, law) == Mean().step_length(view, law)
    assert np.isnan(Robust(Mean(), clip=1.0).step_length(view, law))
    assert methods.fedavg_median(3).aggregator == Robust(Mean(), trim=0.5)
