"""FedDD's figures: they run at the smallest scale, say what they did, and judge as they should."""

from dataclasses import replace

import numpy as np
import pytest

from fedweave.data import load
from fedweave.papers import ITEMS, reproduce
from fedweave.papers import feddd as paper
from fedweave.papers.feddd import claims, setup, variants
from fedweave.papers.feddd.setup import FedDDSetup, budget_methods
from fedweave.papers.feddd.single import subset_with_share
from fedweave.runs.results import Result


@pytest.fixture(scope="module")
def mnist5k():
    return load("mnist5k")


@pytest.fixture(autouse=True)
def here(monkeypatch, mnist5k):
    """Read the data once."""
    monkeypatch.setattr("fedweave.papers.common.scale.load", lambda name: mnist5k)
    monkeypatch.setitem(setup.SIZES, "smoke", replace(setup.SIZES["smoke"], seeds=1))


METHODS = ["fedavg", "feddd", "fedcs", "oort", "feddd_acs"]


def test_every_item_is_there():
    listed = {item.split("/")[1] for item in ITEMS if item.startswith("feddd/")}
    assert listed == {name for name, made in vars(paper).items() if name.startswith("fig") and callable(made)}


def test_the_comparison_under_one_budget_at_the_smallest_scale():
    outcome = reproduce("feddd/fig6/mnist")
    assert [r["method"] for r in outcome.rows] == METHODS
    assert {c.verdict for c in outcome.claims} == {"not run at this scale"}
    sent_share = {r["method"]: float(r["sent"]) for r in outcome.rows}
    assert sent_share["fedavg"] == 1
    assert sent_share["fedcs"] <= 0.61
    assert sent_share["oort"] <= 0.61
    assert 0.6 <= sent_share["feddd"] <= 0.75, "the first of four rounds is whole"
    rounds = {r["method"]: float(r["round, s"]) for r in outcome.rows}
    assert rounds["feddd"] < 0.7 * rounds["fedavg"]


def test_rare_classes_are_still_heard_by_feddd_and_not_by_fedcs():
    """Coverage needs no training: at a budget of 20 % FedCS never hears most owners, FedDD hears all."""
    outcome = reproduce("feddd/fig21/mnist")
    heard = {r["method"]: [float(v) for v in r["owners heard, 0 1 2"].split()] for r in outcome.rows}
    assert heard["feddd"] == [1, 1, 1]
    assert max(heard["fedcs"]) < 0.7


def runs(accuracy, seconds):
    """Two seeds that rise evenly to an accuracy in ten rounds."""
    rounds = {
        "accuracy": np.linspace(0.1, accuracy, 10),
        "clock": seconds * np.arange(1.0, 11),
        "round": np.arange(1, 11),
        "bytes_up": np.arange(1, 11) * 60,
        "seconds": np.full(10, seconds),
    }
    made = Result({}, {"model": {"fleet_bytes": 100}}, rounds, {}, {"method": "x"})
    lower = {**rounds, "accuracy": rounds["accuracy"] - 0.01}
    return [made, replace(made, rounds=lower)]


def test_times_are_relative_to_fedavg_and_never_is_never():
    reference, fast, weak = runs(0.8, 10), runs(0.8, 4), runs(0.3, 1)
    assert np.allclose(claims.relative_times(fast, reference, 0.5), 0.4)
    assert np.isinf(claims.relative_times(weak, reference, 0.5)).all()
    assert claims.format_time(weak, reference, 0.5) == "—"
    assert claims.format_time(fast, reference, 0.5).startswith("0.40")
    assert claims.sent_share(fast) == pytest.approx(0.6)
    found = {"fedavg": reference, "feddd": fast, "fedcs": weak}
    assert claims.judge_time("x", "feddd", found, "laptop", ["fedavg", "fedcs"]).verdict == "confirmed"
    assert claims.judge_time("x", "fedcs", found, "laptop", ["fedavg"]).verdict == "not confirmed"


def test_a_label_gets_its_share():
    data = FedDDSetup("mnist", "smoke", None).samples
    some = subset_with_share(data, 2, 0.1, 100)
    counts = np.bincount(some.y, minlength=10)
    assert counts[2] == 10
    assert counts.sum() == 100
    assert np.ptp(np.delete(counts, 2)) <= 1


def test_variants_run_and_methods_share_one_budget():
    assert FedDDSetup("mnist", "smoke", None, rounds=0.5).size.rounds == 2
    assert budget_methods(10, 0.2)["feddd"].upload.keep == budget_methods(10, 0.2)["fedcs"].sampler.keep == 0.2
    outcome = variants._periods("feddd/fig19", "mnist", ["iid"], ["b"], "smoke", None)
    assert [r["method"] for r in outcome.rows] == ["h = 1", "h = 5", "h = 10", "h = 20", "h = 10, then 1"]
    assert "(1.0, 0.85, 0.7, 0.6, 0.5)" in outcome.notes[0]
