"""Verdicts on claims: what simulation, arithmetic and the protocol say they must be."""

from dataclasses import replace

import numpy as np
import pytest

from fedweave.papers.common.judge import Values, judge, settle
from fedweave.papers.common.ledger import Claim

CLAIM = Claim(id="delta/x", item="delta/x", where="", claim="", measure="m", kind="greater", ours="a", others=("b",))


def verdict(claim, fidelity="published", settled=True, ratio=False, censored=(), **by_arm):
    values = Values({arm: np.array(v, float) for arm, v in by_arm.items()}, ratio, censored)
    found = judge(claim, values, fidelity)
    return settle([found])[0].verdict if settled else found


UP, DOWN, NOISE = [1.0, 1.2, 0.9, 1.1, 1.0], [0.0, 0.1, -0.1, 0.05, 0.0], [5.0, -4.0, 3.0, -6.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "margin", "a", "b", "expected"),
    [
        ("greater", 0.0, UP, DOWN, "confirmed"),
        ("greater", 0.0, DOWN, UP, "contradicted"),
        ("greater", 0.0, NOISE, DOWN, "undecided"),
        ("less", 0.0, DOWN, UP, "confirmed"),
        ("less", 0.0, UP, DOWN, "contradicted"),
        ("equal", 0.3, DOWN, [0.0] * 5, "confirmed"),
        ("equal", 0.3, UP, DOWN, "contradicted"),
        ("equal", 0.3, NOISE, DOWN, "undecided"),
        ("greater", 0.3, DOWN, [0.0] * 5, "contradicted"),  # equality is shown
        ("greater", 0.0, DOWN, [0.0] * 5, "undecided"),
    ],
)
def test_verdicts(kind, margin, a, b, expected):
    assert verdict(replace(CLAIM, kind=kind, margin=margin), a=a, b=b) == expected


@pytest.mark.parametrize(("kind", "value"), [("above", 0.5), ("below", 1.5)])
def test_a_measure_lies_above_or_below_a_number(kind, value):
    claim = replace(CLAIM, kind=kind, value=value, others=())
    other = replace(claim, value=2 - value)
    assert verdict(claim, a=UP) == verdict(claim, "exact", a=UP) == "confirmed"
    assert verdict(other, a=UP) == verdict(other, "exact", a=UP) == "contradicted"
    assert verdict(claim, a=NOISE) == "undecided"
    found = verdict(claim, settled=False, a=UP)
    assert found.difference == pytest.approx(np.mean(UP) - value)


def test_a_claim_about_every_instance_says_in_how_many_it_holds():
    found = verdict(CLAIM, "exact", settled=False, a=[1.0, 2.0, 3.0], b=[0.5, 2.5, 1.0])
    assert found.verdict == "contradicted"
    assert found.evidence == "a 1 to 3, b 0.5 to 2.5; holds in 2 of 3 instances"
    alike = verdict(CLAIM, "exact", settled=False, a=[1.0, 1.0], b=[2.0, 2.0])
    assert (alike.verdict, alike.evidence) == ("contradicted", "a 1, b 2")
    never = verdict(replace(CLAIM, kind="below", value=0.0, others=()), "exact", settled=False, a=[1.0, 2.0])
    assert never.evidence == "a 1 to 2; holds in none of 2 instances"
    rising = replace(CLAIM, kind="rising", ours="", others=("a", "b"))
    assert verdict(rising, "exact", settled=False, a=[1, 4], b=[3, 3]).evidence.endswith("holds in 1 of 2 instances")


def test_ours_must_beat_every_other_and_one_better_one_contradicts():
    claim = replace(CLAIM, others=("b", "c"))
    assert verdict(claim, a=UP, b=DOWN, c=DOWN) == "confirmed"
    assert verdict(claim, a=UP, b=DOWN, c=UP) == "undecided"
    assert verdict(claim, a=UP, b=DOWN, c=[v + 1 for v in UP]) == "contradicted"


def test_what_is_infinite_with_one_or_two_seeds_is_left_out():
    assert verdict(CLAIM, settled=False, a=[3.0], b=[2.0]).evidence == "difference 1, 1 seed"
    found = verdict(CLAIM, settled=False, ratio=True, a=[1e200, 1e-200], b=[1.0, 1.0]).evidence
    assert found == "ratio 1×, 2 seeds"
    assert "(" in verdict(CLAIM, settled=False, a=[3.0, 4.0], b=[2.0, 2.0]).evidence


def test_trends_are_tested_seed_by_seed():
    rng = np.random.default_rng(0)
    arms = {str(k): rng.normal(k, 0.1, 5) for k in range(4)}
    assert verdict(replace(CLAIM, kind="rising", others=("0", "1", "2", "3")), **arms) == "confirmed"
    assert verdict(replace(CLAIM, kind="falling", others=("0", "1", "2", "3")), **arms) == "contradicted"
    noise = {str(k): rng.normal(0, 1, 5) for k in range(4)}
    assert verdict(replace(CLAIM, kind="rising", others=("0", "1", "2", "3")), **noise) == "undecided"


def test_factors_are_compared_as_ratios():
    """Ours takes half the time of theirs: faster, even by a factor of 1.5, but not of 2.5."""
    theirs = np.array([100.0, 120, 90, 110, 105])
    ours = theirs / np.array([2.0, 2.1, 1.9, 2.05, 1.95])
    claim = replace(CLAIM, kind="less")
    assert verdict(claim, ratio=True, a=ours, b=theirs) == "confirmed"
    assert verdict(replace(claim, factor=1.5), ratio=True, a=ours, b=theirs) == "confirmed"
    assert verdict(replace(claim, factor=2.5), ratio=True, a=ours, b=theirs) == "contradicted"
    found = verdict(claim, settled=False, ratio=True, a=ours, b=theirs)
    assert found.difference == pytest.approx(1 / np.exp(np.log([2.0, 2.1, 1.9, 2.05, 1.95]).mean()))
    assert found.interval[0] < found.difference < found.interval[1]
    half = replace(claim, kind="equal", factor=0.5, margin=0.1)
    assert verdict(half, ratio=True, a=ours, b=theirs) == "confirmed"
    assert verdict(replace(half, factor=0.7), ratio=True, a=ours, b=theirs) == "contradicted"
    for named in (half, replace(claim, factor=1.5)):  # the ratio is shown, not that of the ratio to the factor
        assert verdict(named, settled=False, ratio=True, a=ours, b=theirs).difference == pytest.approx(found.difference)


def test_differences_are_compared_with_the_lead_that_is_claimed():
    """Ours is better by about one: by more than 0.5, but not by more than 1.5."""
    assert verdict(replace(CLAIM, value=0.5), a=UP, b=DOWN) == "confirmed"
    assert verdict(replace(CLAIM, value=1.5), a=UP, b=DOWN) == "contradicted"
    less = replace(CLAIM, kind="less")
    assert verdict(replace(less, value=0.5), a=DOWN, b=UP) == "confirmed"
    assert verdict(replace(less, value=1.5), a=DOWN, b=UP) == "contradicted"


def test_times_that_nobody_reached_show_no_equality():
    claim = replace(CLAIM, kind="less", margin=0.1)
    never = [101.0] * 5
    assert verdict(claim, ratio=True, censored="ab", a=never, b=never) == "undecided"
    assert verdict(claim, ratio=True, a=never, b=never) == "contradicted"
    half = replace(CLAIM, kind="equal", factor=0.5, margin=0.1)
    assert verdict(half, ratio=True, censored="b", a=never, b=never) == "undecided"  # b may take twice as long
    assert verdict(half, ratio=True, censored="c", a=never, b=never, c=never) == "contradicted"  # c is not compared
    twice = replace(claim, margin=0.0, factor=2.0)  # faster by a factor of two than someone who never arrived?
    assert verdict(twice, ratio=True, censored="b", a=[90.0] * 5, b=never) == "undecided"
    assert verdict(twice, ratio=True, censored="b", a=[40.0] * 5, b=never) == "confirmed"


def test_a_factor_over_one_who_never_arrived_needs_the_time_that_it_was_observed():
    """Theirs ended after 10 s; that it counts as later than all others, 100 s, shows no factor."""
    ours, theirs = np.full(5, 8.0), np.full(5, 100.0)
    ahead = replace(CLAIM, kind="less")
    for bound, factor, expected in ((10.0, 1.0, "confirmed"), (10.0, 2.0, "undecided"), (20.0, 2.0, "confirmed")):
        values = Values({"a": ours, "b": theirs}, ratio=True, censored="b", bounds={"b": np.full(5, bound)})
        assert settle([judge(replace(ahead, factor=factor), values, "published")])[0].verdict == expected


def test_too_few_seeds_and_toy_sizes_decide_less():
    assert verdict(CLAIM, a=UP[:4], b=DOWN[:4]) == "undecided"
    assert verdict(CLAIM, "toy", a=UP, b=DOWN) == "confirmed"
    assert verdict(CLAIM, "toy", a=DOWN, b=UP) == "undecided"
    assert (
        "does not hold at toy scale"
        in settle([judge(CLAIM, Values({"a": np.array(DOWN), "b": np.array(UP)}), "toy")])[0].evidence
    )


def test_arithmetic_needs_no_seeds():
    assert verdict(CLAIM, "exact", a=[1.0], b=[0.5]) == "confirmed"
    assert verdict(CLAIM, "exact", a=[1.0], b=[1.5]) == "contradicted"
    value = replace(CLAIM, kind="value", value=0.5, margin=1e-9, others=())
    assert verdict(value, "exact", a=[0.5]) == "confirmed"
    assert verdict(replace(value, value=0.6), "exact", a=[0.5]) == "contradicted"
    holds = replace(CLAIM, kind="holds", others=())
    assert verdict(holds, "exact", a=[1, 1]) == "confirmed"
    assert verdict(holds, "exact", a=[1, 0]) == "contradicted"
    rising = replace(CLAIM, kind="rising", ours="", others=("a", "b"))
    assert verdict(rising, "exact", a=[1, 2], b=[3, 4]) == "confirmed"
    assert verdict(rising, "exact", a=[1, 4], b=[3, 3]) == "contradicted"


@pytest.mark.parametrize(("kind", "sign"), [("rising", 1), ("falling", -1)])
def test_what_arithmetic_says_to_rise_or_fall_does_so_at_every_step(kind, sign):
    """1, 3, 2, 4 rises on the whole, but not from its second value to its third; nor does a step of nothing count."""
    claim = replace(CLAIM, kind=kind, ours="", others=("a", "b", "c", "d"))

    def along(*numbers):
        return verdict(claim, "exact", **{arm: [sign * v] for arm, v in zip("abcd", numbers, strict=True)})

    assert along(1, 2, 3, 4) == "confirmed"
    assert along(1, 3, 2, 4) == along(1, 2, 2, 4) == along(4, 3, 2, 1) == "contradicted"


def test_what_was_not_measured_is_not_run():
    assert judge(CLAIM, None, "published").verdict == "not run"
    assert judge(CLAIM, Values({"a": np.ones(5)}), "published").verdict == "not run"


def test_two_thousand_items_in_which_nothing_differs():
    """Three methods of the same law, five seeds: at most 6 % are said to be better or worse."""
    rng = np.random.default_rng(1)
    claim, wrong = replace(CLAIM, others=("b", "c")), 0
    for _ in range(2000):
        common = rng.normal(0.7, 0.05, 5)  # what a seed gives to all methods
        values = Values({arm: common + rng.normal(0, 0.01, 5) for arm in "abc"})
        found = judge(claim, values, "published")
        wrong += min(found.p_right, found.p_wrong) <= 0.05
    assert wrong / 2000 <= 0.06


def test_a_true_difference_of_two_deviations_is_found():
    rng = np.random.default_rng(2)
    found = [
        judge(CLAIM, Values({"a": d, "b": np.zeros(5)}), "published").p_right <= 0.05
        for d in rng.normal(2, 1, (2000, 5))
    ]
    assert np.mean(found) >= 0.85


def test_many_secondary_claims_are_corrected_together():
    """Of 40 claims about nothing, Benjamini and Hochberg's correction lets some through in at most 5 % of families."""
    rng = np.random.default_rng(3)
    families = 200
    some = 0
    for _ in range(families):
        claims = [
            judge(replace(CLAIM, id=f"delta/{i}"), Values({"a": d, "b": np.zeros(5)}), "published")
            for i, d in enumerate(rng.normal(0, 1, (40, 5)))
        ]
        some += any(j.verdict != "undecided" for j in settle(claims))
    assert some / families <= 0.08


def test_primary_claims_are_corrected_as_five_whatever_was_run():
    primary = replace(CLAIM, primary=True)
    found = judge(primary, Values({"a": np.array([1.0, 1.5, 0.4, 1.3, 0.2]), "b": np.zeros(5)}), "published")
    assert 0.01 < found.p_right <= 0.05
    assert settle([found])[0].verdict == "undecided"  # 5 p > 0.05
    assert (
        settle([judge(CLAIM, Values({"a": np.array([1.0, 1.5, 0.4, 1.3, 0.2]), "b": np.zeros(5)}), "published")])[
            0
        ].verdict
        == "confirmed"
    )


def test_a_lead_within_the_margin_is_a_lead_where_it_is_shown():
    """Superiority is claimed: a difference that is surely positive confirms it, however small beside the margin."""
    small = [0.10, 0.11, 0.09, 0.10, 0.105]
    assert verdict(replace(CLAIM, margin=0.3), a=small, b=[0.0] * 5) == "confirmed"
    assert verdict(replace(CLAIM, margin=0.3), a=[0.01, -0.01, 0.0, 0.02, -0.02], b=[0.0] * 5) == "contradicted"


def test_our_own_claims_and_those_without_seeds_do_not_ease_the_papers():
    """A claim of p = 0.04 among many of p = 0: beyond the paper, or with too few seeds, they are no help to it."""
    weak = [1.0, 1.5, 0.3, 1.3, 0.12]

    def family(**changes):
        helpers = [replace(CLAIM, id=f"delta/h{i}", **changes) for i in range(20)]
        noise = [replace(CLAIM, id=f"delta/n{i}") for i in range(5)]
        claims = [(CLAIM, weak), *((h, UP) for h in helpers), *((n, NOISE) for n in noise)]
        judged = [judge(c, Values({"a": np.array(a), "b": np.zeros(5)}), "published") for c, a in claims]
        return settle(judged)[0].verdict

    assert 0.02 < verdict(CLAIM, settled=False, a=weak, b=[0.0] * 5).p_right <= 0.05
    assert family() == "confirmed"
    assert family(beyond=True) == "undecided"
    assert family(seeds=10) == "undecided"


def test_equality_with_one_that_is_beaten_contradicts_nothing():
    """Ours surely beats b, by little, and is noisy against c: that decides nothing."""
    claim = replace(CLAIM, others=("b", "c"), margin=0.01)
    lead = np.array([0.0010, 0.0011, 0.0009, 0.0010, 0.00105])
    assert verdict(claim, a=lead, b=np.zeros(5), c=np.array([0.2, -0.3, 0.1, 0.3, -0.25])) == "undecided"


def test_runs_that_gave_no_number_are_not_left_out():
    rival = [0.0, np.nan, 0.0, 0.1, np.nan, 0.0, 0.1, 0.0, 0.0, 0.1]
    assert verdict(CLAIM, a=UP * 2, b=rival) == "undecided"
    assert verdict(CLAIM, "exact", a=[1.0], b=[np.nan]) == "undecided"


@pytest.mark.parametrize(("kind", "factor"), [("below", 1.0), ("above", 1.0), ("less", 0.5)])
def test_a_time_that_was_not_reached_decides_nothing_about_numbers(kind, factor):
    claim = replace(CLAIM, kind=kind, value=400.0, factor=factor, others=("b",) if kind == "less" else ())
    times = {"a": [301.0] * 5, "b": [301.0] * 5}
    assert verdict(claim, ratio=True, censored=["a"], **times) == "undecided"


def test_the_difference_is_shown_with_the_lead_that_is_claimed():
    found = verdict(replace(CLAIM, value=0.5), settled=False, a=[1.0, 1.02, 1.01], b=[0.0, 0.0, 0.0])
    assert found.difference == pytest.approx(1.01)
