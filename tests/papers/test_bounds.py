"""The papers' bounds beside what the library measures on quadratics: never below it, and not far above."""

import numpy as np
import pytest

from fedweave.papers.common.bounds import points_up_to, running_mean
from fedweave.papers.delta.theory import measure_bound as delta
from fedweave.papers.fedacs.theory import measure_bound as fedacs
from fedweave.papers.fedaware.theory import measure_bound as fedaware
from fedweave.papers.feddd.theory import measure_bound as feddd
from fedweave.papers.latency.theory import measure_bound as latency


@pytest.mark.parametrize(
    ("measure", "loosest"),  # the largest ratio of bound and measurement at the last point
    [
        (lambda: fedacs("fedavg"), 8),
        (lambda: fedacs("fedacs"), 6),  # bounds do not get smaller with the number of draws, nor with the noise of one
        (lambda: fedaware(seeds=2, rounds=256), 10),
        (latency, 3),
        (lambda: delta("importance"), 6),
        (lambda: delta("delta"), 6),
        (lambda: feddd(rounds=64, seeds=2), 1.1),
        (lambda: feddd(refresh=5, rounds=64, seeds=2), 4),
    ],
    ids=["fedavg", "fedacs", "fedaware", "latency", "importance", "delta", "feddd", "feddd h=5"],
)
def test_what_is_measured_stays_below_a_bound_that_says_something(measure, loosest):
    found = measure()
    mean = found.measured.mean(0)
    assert found.measured.shape == (len(found.measured), found.x.size)
    assert found.bound.shape == found.x.shape
    assert (mean <= found.bound).all()
    assert found.bound[-1] < loosest * mean[-1]
    assert (np.diff(found.bound) < 0).all(), "more rounds say more"


def test_fedavg_stays_at_the_limit_of_theorem_2_and_fedacs_does_not():
    """χ² κ² = (Ω₂ − Ω₁)² of optima 2 ± 1: Ω ∝ (1.4, 10)."""
    limit = (8.6 / 11.4) ** 2
    ours, others = (fedacs(name, rounds=(100, 1600)).measured.mean(0) for name in ("fedacs", "fedavg"))
    assert others[-1] == pytest.approx(limit, rel=0.1)
    assert ours[-1] < limit / 2
    assert ours[-1] == pytest.approx(ours[0] / 4, rel=0.3), "∝ 1/√R"


def test_points_and_running_means():
    assert points_up_to(10).tolist() == [1, 2, 4, 8, 10]
    assert points_up_to(8).tolist() == [1, 2, 4, 8]
    assert running_mean(np.array([2.0, 4, 6, 8]), np.array([1, 2, 4])).tolist() == [2, 3, 5]
