"""The worlds have the papers' numbers, and are pure functions of clients, round and seed."""

import dataclasses

import numpy as np
import pytest

from fedweave.core.records import Population
from fedweave.core.settings import BadInput
from fedweave.system import Dynamic, HybridPlus, Latency, Static, Uniform
from fedweave.system.worlds import steps_of
from worlds import equal_clients

WORLDS = [Uniform(), Static(), Dynamic(), HybridPlus(), Latency(), Static.figure4(), Dynamic.figure4()]


def base(n=20, samples=None):
    samples = np.full(n, 50) if samples is None else np.asarray(samples)
    batch_size = np.minimum(20, samples)
    return equal_clients(samples.size, weight=samples / samples.sum(), samples=samples, steps=7, batch_size=batch_size)


def same(a, b):
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(Population))


@pytest.mark.parametrize(
    ("epochs", "samples", "batch_size", "steps"),
    [
        (1, 60, 20, 3),
        (1, 61, 20, 4),  # the last, partial batch is a step
        (1, 1, 20, 1),
        (5, 41, 20, 15),  # five passes of three steps
        (0.5, 80, 20, 2),
        (0.25, 61, 20, 1),
        (0.6, 100, 20, 3),
        (1.4, 100, 20, 7),
        (0.01, 60, 20, 1),  # at least one
        (2, 10, 10, 2),
    ],
)
def test_steps_of_so_many_passes(epochs, samples, batch_size, steps):
    found = steps_of(np.array([epochs]), np.array([samples]), np.array([batch_size]))
    assert found.tolist() == [steps]
    assert found.dtype == np.int64


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_world_is_a_pure_function_that_leaves_data_alone(world):
    clients = base()
    kept = base()
    once = world.population(clients, 3, 11)
    world.population(clients, 4, 11)
    assert same(world.population(base(), 3, 11), once)
    assert same(clients, kept)
    for untouched in ("weight", "samples", "available"):
        assert np.array_equal(getattr(once, untouched), getattr(kept, untouched))
    assert once.steps.dtype == np.int64
    assert once.steps.min() >= 1
    assert once.latency.min() > 0
    assert once.loss_rate.min() >= 0
    assert once.loss_rate.max() < 1


def test_uniform_changes_only_the_seconds():
    found = Uniform(seconds=2.5).population(base(), 1, 0)
    assert same(dataclasses.replace(found, latency=np.ones(20)), base())
    assert found.latency.tolist() == [2.5] * 20


@pytest.mark.parametrize("round", [1, 2, 100])
def test_static_has_the_numbers_of_the_paper(round):
    """FedACS I.3.1: T = 1, 3, …, 39 and 1 − q = 0.60, 0.62, …, 0.98 for 20 clients, the same every round."""
    found = Static().population(base(), round, seed=round)
    assert found.steps.tolist() == list(range(1, 40, 2))
    assert np.allclose(1 - found.loss_rate, [0.60 + 0.02 * i for i in range(20)], rtol=0, atol=1e-15)
    assert np.allclose(found.latency, [0.1 * t for t in range(1, 40, 2)], rtol=1e-15)
    assert found.batch_size.tolist() == [20] * 20


def test_static_figure_4_rises_in_both():
    found = Static.figure4().population(base(30), 1, 0)
    assert found.steps.tolist() == list(range(1, 31))
    assert np.allclose(found.loss_rate, [0.01 * i for i in range(1, 31)], rtol=0, atol=1e-15)


def test_work_in_epochs_counts_passes():
    found = Static(work=(1, 4), unit="epochs").population(base(samples=[50, 10, 41, 20]), 1, 0)
    assert found.steps.tolist() == [3, 2, 9, 4]  # 1, 2, 3, 4 passes of 3, 1, 3, 1 steps


@pytest.mark.parametrize(
    ("world", "slow_loss", "fast_loss"),
    [(Dynamic(), (0.4, 0.5), (0.0, 0.1)), (Dynamic.figure4(), (0.2, 0.4), (0.0, 0.2))],
    ids=["default", "figure4"],
)
def test_dynamic_halves_keep_to_their_ranges_and_reach_their_ends(world, slow_loss, fast_loss):
    drawn = [world.population(base(), r, 5) for r in range(1, 201)]
    steps, loss = (np.stack([getattr(p, f) for p in drawn]) for f in ("steps", "loss_rate"))
    assert set(np.unique(steps[:, :10])) == set(range(1, 11))
    assert set(np.unique(steps[:, 10:])) == set(range(20, 31))
    for half, (low, high) in ((loss[:, :10], slow_loss), (loss[:, 10:], fast_loss)):
        assert low <= half.min() < low + 0.01
        assert high - 0.01 < half.max() <= high
        assert abs(half.mean() - (low + high) / 2) < 0.01
    assert np.allclose(np.stack([p.latency for p in drawn]), 0.1 * steps)


def test_an_odd_client_is_a_fast_one():
    found = Dynamic().population(base(5), 1, 0)
    assert (found.steps < 15).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("world", [Dynamic(), HybridPlus()], ids=str)
def test_worlds_that_are_redrawn_differ_by_round_and_seed(world):
    there = world.population(base(), 1, 0)
    assert not np.array_equal(there.steps, world.population(base(), 2, 0).steps)
    assert not np.array_equal(there.steps, world.population(base(), 1, 1).steps)


def test_hybrid_plus_keeps_to_its_ranges_down_to_one_sample():
    samples = np.array([1, 9, 10, 11, 12, 200])
    sizes, epochs = [], []
    for r in range(1, 301):
        found = HybridPlus().population(base(samples=samples), r, 3)
        sizes.append(found.batch_size)
        epochs.append(found.steps / np.ceil(samples / found.batch_size))
        assert np.allclose(found.latency, 0.1 * found.steps)
    sizes, epochs = np.array(sizes), np.array(epochs)
    assert [set(column) for column in sizes[:, :5].T] == [{1}, {9}, {10}, {10}, {10, 11}]
    assert (sizes[:, 5].min(), sizes[:, 5].max()) <= (12, 199)
    assert sizes[:, 5].min() >= 10
    assert sizes[:, 5].max() > 190
    assert set(np.unique(epochs)) == {2.0, 3.0, 4.0, 5.0}


def test_latency_belongs_to_the_client_not_to_the_round():
    first = Latency().population(base(10_000), 1, 7)
    assert same(first, Latency().population(base(10_000), 50, 7))
    assert not np.array_equal(first.latency, Latency().population(base(10_000), 1, 8).latency)
    assert 0 < first.latency.min() < 0.01
    assert 0.99 < first.latency.max() <= 1
    assert abs(first.latency.mean() - 0.5) < 0.02
    far = Latency(seconds=(2, 5)).population(base(10_000), 1, 7).latency
    assert np.allclose(far, 2 + 3 * first.latency)


def test_log_normal_latencies_have_the_same_mean_and_a_heavy_tail():
    """exp(σz − σ²/2) has mean 1 and median exp(−σ²/2); a tenth lies above the median times exp(1.2816 σ)."""
    for sigma in (0.5, 1.0):
        found = Latency(seconds=(2, 5), law="lognormal", sigma=sigma).population(base(50_000), 9, 7).latency
        over = (found - 2) / 3
        assert found.min() > 2
        assert abs(over.mean() - 0.5) < 4 * over.std() / np.sqrt(50_000)
        assert abs(np.median(over) / (0.5 * np.exp(-(sigma**2) / 2)) - 1) < 0.02
        assert abs((over > np.median(over) * np.exp(1.2816 * sigma)).mean() - 0.1) < 0.006
    world = Latency.heavy_tailed()
    assert same(world.population(base(100), 1, 7), world.population(base(100), 50, 7))
    assert not np.array_equal(world.population(base(9), 1, 7).latency, world.population(base(9), 1, 8).latency)


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        (Dynamic, {"slow_work": (10, 1)}, "'slow_work' parameter of Dynamic must be a range"),
        (Dynamic, {"fast_loss": (0.2, 0.1)}, "'fast_loss' parameter of Dynamic must be a range"),
        (Dynamic, {"slow_loss": (0.2, 1.0)}, "'slow_loss.1' parameter of Dynamic must be less than 1"),
        (HybridPlus, {"epochs": (5, 2)}, "'epochs' parameter of HybridPlus must be a range"),
        (Latency, {"seconds": (3, 1)}, "'seconds' parameter of Latency must be a range"),
        (Latency, {"law": "normal"}, "'law' parameter of Latency must be 'uniform' or 'lognormal'"),
        (Latency, {"sigma": 0}, "'sigma' parameter of Latency must be greater than 0"),
        (Static, {"work": (0, 3)}, "'work.0' parameter of Static must be greater than 0"),
        (Static, {"unit": "hours"}, "'unit' parameter of Static must be 'steps' or 'epochs'"),
        (Uniform, {"seconds": 0}, "'seconds' parameter of Uniform must be greater than 0"),
    ],
)
def test_impossible_worlds_are_refused(make, given, words):
    with pytest.raises(BadInput, match=words):
        make(**given)
