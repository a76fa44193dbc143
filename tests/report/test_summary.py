"""Comparison rows against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fedweave.report import compare_rows
from fedweave.report.paired import paired_cells
from fedweave.report.summary import best, clearly_better, final_class_accuracy
from report.fabricate import tiny

# 10 simulated seconds, 1000 bytes and 0.5 wall seconds per round; target 0.8
AVG_LATE = tiny("fedavg", [0.1, 0.5, 0.8, 0.9], seed=0)  # there in round 3
AVG_SOON = tiny("fedavg", [0.1, 0.8, 0.7, 0.7], seed=1)  # there in round 2
YOGI_CUT = tiny("fedyogi", [0.8, 0.9], seed=0, planned=4)  # there in round 1, then interrupted
YOGI_MISS = tiny("fedyogi", [0.5, 0.5, 0.5, 0.5], seed=1)  # never


def test_mean_and_sample_deviation_over_seeds():
    (row,) = compare_rows([AVG_LATE, AVG_SOON])
    assert row["accuracy"] == pytest.approx(0.8)
    assert row["accuracy_std"] == pytest.approx(0.2 / math.sqrt(2))  # two values 0.9 and 0.7, n - 1
    assert row["best_accuracy"] == pytest.approx(0.85)
    assert row["loss"] == pytest.approx(0.2)
    assert (row["rounds_to_target"], row["seconds_to_target"], row["bytes_to_target"]) == (2.5, 25.0, 2500.0)
    assert row["total_bytes_to_target"] == 7500.0  # 1000 up and 2000 down per round
    assert (row["simulated_seconds"], row["bytes_up"], row["wall_seconds"]) == (40.0, 4000.0, 2.0)
    assert row["bytes_down"] == 8000.0
    assert (row["seeds"], row["reached"], row["reached_of"], row["unfinished"]) == (2, 2, "2 of 2", 0)


def test_costs_to_the_target_are_over_the_seeds_that_reached_it():
    avg, yogi = compare_rows([AVG_LATE, YOGI_CUT, AVG_SOON, YOGI_MISS])
    assert [avg["method"], yogi["method"]] == ["fedavg", "fedyogi"]
    assert yogi["reached_of"] == "1 of 2"
    assert (yogi["seconds_to_target"], yogi["seconds_to_target_std"]) == (10.0, None)
    assert yogi["time_ratio"] == pytest.approx(10 / 25)
    assert yogi["note"] == "over the seeds that reached the target"
    assert (avg["baseline"], avg["time_ratio"], avg["note"]) == ("fedavg", 1.0, None)


def test_runs_of_different_lengths():
    (yogi,) = compare_rows([YOGI_CUT, YOGI_MISS])
    assert (yogi["rounds_min"], yogi["rounds_max"], yogi["unfinished"]) == (2, 4, 1)
    assert yogi["simulated_seconds"] == pytest.approx(30.0)  # 20 and 40
    assert yogi["accuracy"] == pytest.approx(0.7)  # 0.9 and 0.5


def test_one_seed_has_no_deviation():
    (row,) = compare_rows([AVG_LATE])
    assert row["accuracy"] == pytest.approx(0.9)
    assert all(row[key] is None for key in row if key.endswith("_std"))


def test_never_reached_has_no_ratio_and_says_so():
    avg, slow = compare_rows([AVG_SOON, tiny("scaffold", [0.1, 0.2])])
    assert avg["time_ratio"] == 1.0
    assert (slow["time_ratio"], slow["reached_of"]) == (None, "0 of 1")
    assert slow["note"] == "scaffold never reached the target"
    avg, quick = compare_rows([tiny("fedavg", [0.1]), tiny("fedyogi", [0.9])])
    assert (quick["time_ratio"], quick["note"]) == (None, "fedavg never reached the target")


def test_the_baseline_is_fedavg_wherever_it_stands_or_the_first_method():
    rows = compare_rows([tiny("oort", [0.9]), tiny("fedavg", [0.1, 0.9])])
    assert {row["baseline"] for row in rows} == {"fedavg"}
    assert [row["time_ratio"] for row in rows] == [0.5, 1.0]
    rows = compare_rows([tiny("oort", [0.1, 0.9]), tiny("feddd", [0.9])])
    assert [row["time_ratio"] for row in rows] == [1.0, 0.5]


def test_no_target():
    (row,) = compare_rows([tiny("fedavg", [0.1, 0.9], target=None)])
    assert (row["reached"], row["reached_of"], row["time_ratio"]) == (None, None, None)
    assert row["note"] == "no target set"


def test_regression_has_a_loss_and_no_accuracy():
    blank = [math.nan, math.nan, math.nan]
    runs = [tiny("fedavg", blank, seed=s, target=None, loss=np.array([3, 2, 1 + s])) for s in (0, 1)]
    (row,) = compare_rows(runs)
    assert (row["accuracy"], row["best_accuracy"]) == (None, None)
    assert row["loss"] == pytest.approx(1.5)


def test_rows_are_plain_json():
    rows = compare_rows([AVG_LATE, AVG_SOON, YOGI_CUT, YOGI_MISS])
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_no_runs():
    assert compare_rows([]) == []


def test_the_lucky_seed_of_a_failing_method_is_not_best():
    rows = compare_rows([AVG_LATE, AVG_SOON, YOGI_CUT, YOGI_MISS])
    assert best(rows, "seconds_to_target") is rows[0]
    assert best(rows, "accuracy") is rows[0]
    assert best(rows[:1], "accuracy") is None


def test_clearly_better_is_decided_seed_by_seed():
    """What all seeds agree in is clear, however much the seeds differ; one seed, or none in common, shows nothing."""

    def row(*values: float | None, first: int = 0) -> dict[str, Any]:
        return {"by_seed": {"value": dict(enumerate(values, first))}}

    assert clearly_better(row(0.9, 0.5, 0.7), row(0.8, 0.41, 0.59), "value")
    assert not clearly_better(row(0.9, 0.5, 0.7), row(0.8, 0.6, 0.6), "value")
    assert not clearly_better(row(0.9), row(0.1), "value")
    assert not clearly_better(row(0.9, 0.9), row(0.1, 0.1, first=5), "value")
    assert not clearly_better(row(0.9, None), row(0.1, 0.1), "value")
    assert clearly_better(row(0.1, 0.5), row(0.2, 0.6), "value", lower=True)


def test_paired_differences_are_scipys_intervals_with_a_verdict():
    values = {"fedavg": [0.80, 0.82, 0.79], "fedyogi": [0.85, 0.86, 0.845], "fedprox": [0.801, 0.8195, 0.7905]}
    runs = [tiny(name, [0.1, v], seed=s) for name, several in values.items() for s, v in enumerate(several)]
    first, *others = compare_rows(runs)
    assert first["paired"] is None
    for row in others:
        paired, mine = row["paired"], values[row["method"]]
        low, high = ttest_rel(mine, values["fedavg"]).confidence_interval(0.95)
        assert (paired["low"], paired["high"]) == pytest.approx((low, high))
        assert paired["difference"] == pytest.approx(np.mean(mine) - np.mean(values["fedavg"]))
        assert paired["baseline"] == "fedavg"
    assert [row["paired"]["verdict"] for row in others] == ["better", "equal"]
    close = [tiny(name, [0.1, v], seed=s) for s in range(3) for name, v in (("a", 0.8), ("b", 0.796 + 0.0001 * s))]
    (paired,) = (row["paired"] for row in compare_rows(close)[1:])
    assert paired["verdict"] == "worse", "better and worse come before equal"
    assert paired_cells(paired)[2] == "worse, but within ± 0.80 points"
    assert paired_cells(others[0]["paired"])[2] == "better"
    alone = compare_rows([runs[0], runs[3]])[1]["paired"]
    assert (alone["verdict"], alone["low"], alone["detectable"]) == ("undecided", None, None)


def test_costs_to_the_target_are_compared_seed_by_seed():
    """Rounds to the target 4, 5, 7 beside 2, 2, 3, at 10 s, 1000 bytes up and 2000 down per round."""
    rounds = {"fedavg": [4, 5, 7], "fedyogi": [2, 2, 3]}
    runs = [
        tiny(name, [0.1] * (n - 1) + [0.85] * (8 - n), seed=s) for name, ns in rounds.items() for s, n in enumerate(ns)
    ]
    first, yogi = compare_rows(runs)
    assert first["paired_costs"] == {}
    low, high = ttest_rel(rounds["fedyogi"], rounds["fedavg"]).confidence_interval(0.95)
    per_round = {"rounds": 1, "seconds": 10, "bytes": 1000, "total_bytes": 3000}
    for name, cost in per_round.items():
        paired = yogi["paired_costs"][f"{name}_to_target"]
        assert paired["difference"] == pytest.approx(-3 * cost)
        assert (paired["low"], paired["high"]) == pytest.approx((low * cost, high * cost))
        assert (paired["verdict"], paired["baseline"], paired["seeds"]) == ("better", "fedavg", 3)
    assert high < 0


def test_who_misses_the_target_is_not_compared_in_its_cost():
    """The one seed of fedyogi that got there was quick."""
    _, yogi = compare_rows([AVG_LATE, AVG_SOON, YOGI_CUT, YOGI_MISS])
    assert yogi["paired_costs"] == {}
    _, avg = compare_rows([YOGI_CUT, YOGI_MISS, AVG_LATE, AVG_SOON])
    assert avg["paired_costs"] == {}
    none = compare_rows([tiny(name, [0.1, 0.9], target=None) for name in ("a", "b")])
    assert [row["paired_costs"] for row in none] == [{}, {}]


def test_final_class_accuracy_takes_the_last_evaluated_round():
    nan = math.nan
    a = tiny("fedavg", [0.1, 0.2, 0.3], class_accuracy=np.array([[0, 0], [0.4, nan], [nan, nan]]))
    b = tiny("fedavg", [0.1, 0.2, 0.3], class_accuracy=np.array([[0, 0], [0, 0], [0.6, 0.8]]))
    both = final_class_accuracy([a, b])
    assert both is not None
    assert np.allclose(both, [0.5, 0.8])
    assert final_class_accuracy([tiny("fedavg", [0.1])]) is None
    assert final_class_accuracy([tiny("fedavg", [0.1], class_accuracy=np.empty((1, 0)))]) is None
