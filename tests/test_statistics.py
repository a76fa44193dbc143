"""Verdicts over seeds: against scipy's tests, published tables, exact enumeration and simulation."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedweave.statistics import Difference, benjamini_hochberg, censored, holm, paired_difference


@pytest.mark.parametrize("n", [2, 3, 5, 10, 40])
def test_interval_and_p_values_are_those_of_scipys_paired_t_test(n: int):
    rng = np.random.default_rng(n)
    a, b = rng.normal(1, 2, n), rng.normal(0, 1, n)
    ours, theirs = paired_difference(a, b), stats.ttest_rel(a, b)
    assert ours.interval == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    _, above = stats.ttest_rel(a, b, alternative="greater")
    _, below = stats.ttest_rel(a, b, alternative="less")
    _, beyond = stats.ttest_1samp(a - b, 0.3, alternative="greater")
    assert (ours.p_above(), ours.p_below(), ours.p_above(0.3)) == pytest.approx((above, below, beyond))
    assert paired_difference(a, b, higher_is_better=False).mean == pytest.approx(-ours.mean)


def test_the_smallest_detectable_difference_is_found_that_often():
    """Simulated: with the true deviation known, eight of ten experiments of this effect have an interval above zero."""
    rng = np.random.default_rng(0)
    for n in (3, 5, 10):
        effect = Difference(0.0, 1.0, n).detectable
        found = [paired_difference(draw, np.zeros(n)).p_above() <= 0.025 for draw in rng.normal(effect, 1, (4000, n))]
        assert np.mean(found) == pytest.approx(0.8, abs=0.03)


def test_equivalence_is_two_one_sided_tests():
    """The classical form: equal within the margin if and only if the 90 % interval lies inside it."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        d = paired_difference(rng.normal(0, 1, 8), np.zeros(8))
        half = stats.t.ppf(0.95, 7) * d.error
        low, high = d.mean - half, d.mean + half
        assert (d.p_equal(1.0) <= 0.05) == (low >= -1 and high <= 1)


def test_equal_methods_are_rarely_called_different():
    """2,000 items in which nothing differs, five seeds each: at most 6 % get a verdict of superiority."""
    rng = np.random.default_rng(2)
    verdicts = [paired_difference(*rng.normal(0.7, 0.05, (2, 5))).verdict(0.01) for _ in range(2000)]
    assert np.mean([v in ("better", "worse") for v in verdicts]) <= 0.06


def test_a_difference_of_two_deviations_is_found_with_five_seeds():
    rng = np.random.default_rng(3)
    verdicts = [paired_difference(rng.normal(2, 1, 5), np.zeros(5)).verdict() for _ in range(2000)]
    assert np.mean([v == "better" for v in verdicts]) >= 0.85


def test_what_is_far_within_the_margin_is_called_equal_and_nothing_else_is():
    rng = np.random.default_rng(4)
    same = [paired_difference(*rng.normal(0, 0.1, (2, 10))).verdict(1.0) for _ in range(200)]
    apart = [paired_difference(rng.normal(1, 0.3, 10), np.zeros(10)).p_equal(1.0) <= 0.05 for _ in range(2000)]
    assert same.count("equal") >= 180
    assert np.mean(apart) <= 0.06  # at the margin itself, at most the level


def test_one_seed_decides_nothing():
    alone = paired_difference([1.0], [0.0])
    assert alone.verdict(10.0) == "undecided"
    assert alone.interval == (-np.inf, np.inf)
    assert alone.detectable == np.inf


def test_missing_seeds_and_bad_shapes():
    d = paired_difference([1, np.nan, 3], [0, 5, 1])
    assert (d.mean, d.seeds) == (1.5, 2)
    assert paired_difference([np.nan], [1.0]).verdict() == "undecided"
    with pytest.raises(ValueError, match="one number per seed"):
        paired_difference([1, 2], [1])


def test_the_same_difference_for_every_seed_is_certain():
    assert paired_difference([2, 3, 4], [1, 2, 3]).verdict() == "better"
    assert paired_difference([2, 3, 4], [2, 3, 4]).verdict(0.1) == "equal"
    assert paired_difference([2, 3, 4], [2, 3, 4]).verdict() == "undecided"


def test_runs_that_never_arrive_count_as_later_than_the_end():
    assert censored([3, None, np.nan, np.inf, 10], 11).tolist() == [3, 11, 11, 11, 10]


def _closed_holm(p: list[float], level: float) -> list[bool]:
    """Holm is the closed Bonferroni test: reject i if every subset with i has a p value below level / its size."""
    m = len(p)
    subsets = [[k for k in range(m) if bits[k]] for bits in product((0, 1), repeat=m) if any(bits)]
    return [all(min(p[k] for k in s) <= level / len(s) for s in subsets if i in s) for i in range(m)]


def test_holm_is_the_closed_bonferroni_test():
    rng = np.random.default_rng(5)
    for _ in range(100):
        p = (rng.random(5) ** 3).tolist()
        assert [q <= 0.05 for q in holm(p)] == _closed_holm(p, 0.05)
    assert holm([]) == []


def test_benjamini_hochberg_is_scipys():
    rng = np.random.default_rng(6)
    for _ in range(50):
        p = rng.random(7) ** 2
        assert benjamini_hochberg(p.tolist()) == pytest.approx(stats.false_discovery_control(p).tolist())
    assert benjamini_hochberg([]) == []
