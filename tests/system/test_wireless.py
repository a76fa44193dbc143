"""Wireless worlds: seconds from cycles, bytes and rates; the same clients every round unless links fade."""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
from fedweave.core.settings import BadInput
from fedweave.system import Shannon, Wireless
from fedweave.system.wireless import compute_seconds, shannon_rate
from worlds import equal_clients

ONE = np.ones(5)
BASE = equal_clients(
    5,
    samples=np.array([10, 20, 25, 40, 7]),
    steps=np.array([3, 6, 9, 12, 3]),
    batch_size=np.array([10, 10, 10, 20, 3]),
    model_bytes=np.array([400, 400, 800, 800, 100]),
)


def test_samples_of_all_passes_count():
    """3 passes of 10; 3 of 20; 3 of 25, whose last batch is 5; 6 of 40; 1 of 7."""
    seconds = compute_seconds(BASE, 1e6 * ONE, np.array([1, 2, 1, 4, 1]) * 1e9)
    assert np.allclose(seconds, [0.030, 0.030, 0.075, 0.060, 0.007])


def test_shannon_by_hand():
    assert shannon_rate(1e6, 0.3, 2.0, 0.2) == pytest.approx(2e6)
    assert shannon_rate(1.0, 7.0, 1.0, 1.0) == pytest.approx(3.0)


@pytest.mark.parametrize("world", [Wireless(), Shannon()])
def test_a_participation_is_download_compute_and_upload(world):
    p = world.population(BASE, 1, 0)
    bits = 8 * BASE.model_bytes
    compute = p.latency - bits / p.up_rate - bits / p.down_rate
    assert (compute > 0).all()
    longer = world.population(replace(BASE, steps=2 * BASE.steps), 1, 0)
    assert np.allclose(longer.latency - p.latency, compute), "twice the samples, twice the cycles"
    larger = world.population(replace(BASE, model_bytes=2 * BASE.model_bytes), 1, 0)
    assert np.allclose(larger.latency - p.latency, bits / p.up_rate + bits / p.down_rate)
    again = world.population(BASE, 9, 0)
    assert np.array_equal(again.latency, p.latency)
    assert not np.array_equal(world.population(BASE, 1, 1).up_rate, p.up_rate)
    fading = replace(world, fading=True)
    one, two = fading.population(BASE, 1, 0), fading.population(BASE, 2, 0)
    assert not np.array_equal(one.up_rate, two.up_rate)
    spent = [q.latency - bits / q.up_rate - bits / q.down_rate for q in (one, two)]
    assert np.allclose(*spent), "links fade, processors do not"


def test_table_4_is_the_default():
    p = Wireless().population(
        replace(BASE, **{f: np.resize(getattr(BASE, f), 4000) for f in BASE.__dict__ if getattr(BASE, f) is not None}),
        1,
        0,
    )
    for rate, (low, high) in ((p.up_rate, (1e3, 5e3)), (p.down_rate, (4e4, 2e5))):
        assert low <= rate.min() < 1.01 * low + 1
        assert 0.99 * high < rate.max() <= high
        assert rate.mean() == pytest.approx((low + high) / 2, rel=0.03)


def test_what_is_wrong_is_said():
    with pytest.raises(BadInput, match="needs the size of the model"):
        Wireless().population(replace(BASE, model_bytes=None), 1, 0)
    with pytest.raises(BadInput, match="low end first"):
        Wireless(up_rate=(5.0, 1.0))


def test_more_bytes_take_longer(tiny):
    world = {"system": Wireless(), "rounds": 2}
    once, twice = (fw.run(tiny(m, **world)) for m in (fw.methods.feddyn(6), fw.methods.scaffold(6)))
    assert (twice.rounds["seconds"] > 1.8 * once.rounds["seconds"]).all(), "SCAFFOLD sends two vectors each way"
