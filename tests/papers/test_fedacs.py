"""FedACS's figures at smoke scale: the claims that do not need more."""

from itertools import product

import numpy as np
import pytest

import fedweave as fw
from fedweave.core.settings import BadInput
from fedweave.papers import earlier
from fedweave.papers.common.scale import reduce_data
from fedweave.papers.common.training import run_and_measure
from fedweave.papers.fedacs.images import NAMES


def test_figure4_only_fedacs_reaches_the_optimum():
    outcome = earlier.reproduce("fedacs/fig4", "smoke")
    assert {claim.verdict for claim in outcome.claims} == {"confirmed"}
    found = [(row["world"], row["method"]) for row in outcome.rows]
    assert sorted(found) == sorted(product(*(set(column) for column in zip(*found, strict=True)))), "all with all, once"


def test_figure7_settles_on_the_closed_forms():
    outcome = earlier.reproduce("fedacs/fig7", "smoke")
    landing = [claim for claim in outcome.claims if "closed-form" in claim.text]
    assert [claim.verdict for claim in landing] == ["confirmed", "confirmed"]
    closed = {row["method"]: row["closed_form"] for row in outcome.rows if row["world"] == "static"}
    assert closed["fedacs"] < closed["fednova"] < closed["c-a-fedavg"] < closed["fedavg"]
    assert closed["fedvarp"] == pytest.approx(closed["c-a-fedavg"])
    assert closed["os"] == pytest.approx(closed["fedavg"])


def test_an_unknown_item_names_the_nearest():
    with pytest.raises(BadInput, match="fedacs/fig7"):
        earlier.reproduce("fedacs/fig77")


def test_table1_on_mnist_runs_every_method_and_does_not_judge_at_this_scale():
    outcome = earlier.reproduce("fedacs/table1/mnist", "smoke")
    assert [row["method"] for row in outcome.rows] == [*NAMES, "fedacs_measured"]
    assert [row["paper"] for row in outcome.rows[:7]] == ["68", "93", "84", "115", "99", "—", "72"]
    assert {claim.verdict for claim in outcome.claims} == {"not run at this scale"}
    slow, fast = (float(v) for v in outcome.rows[1]["steps, halves"].split("/"))
    assert fast > 2 * slow


def test_data_that_is_not_there_is_said_and_costs_nothing_else(monkeypatch):
    def missing(name, *_):
        raise BadInput(f"{name} needs files.")

    monkeypatch.setattr("fedweave.papers.common.scale.load", missing)
    outcome = earlier.reproduce("fedacs/table5", "smoke")
    assert not outcome.rows
    assert [claim.verdict for claim in outcome.claims] == ["not run at this scale"] * 3
    assert all("cifar10 needs files" in claim.evidence for claim in outcome.claims)


def test_learned_links_come_close_to_known_ones():
    outcome = earlier.reproduce("fedacs/links", "smoke")
    assert [claim.verdict for claim in outcome.claims] == ["confirmed", "confirmed"]
    away = {(row["world"], row["method"]): row["averaged"] for row in outcome.rows}
    for world in ("static", "dynamic"):
        assert away[world, "fedacs, known"] < away[world, "fedavg"] / 2
        assert away[world, "fedacs, estimated"] < away[world, "fedavg"] / 2


def test_effort_is_tried_with_both_deals():
    outcome = earlier.reproduce("fedacs/effort", "smoke")
    assert [row["deal"] for row in outcome.rows] == ["same"] * 5 + ["different"] * 5


def test_a_trajectory_is_that_of_the_plain_run(tiny):
    experiment = tiny(fw.methods.fedacs(3), calibrate=True)
    trajectory, result = run_and_measure(experiment), fw.run(experiment)
    assert np.array_equal(trajectory.accuracy, result.rounds["accuracy"])
    assert np.allclose(trajectory.device_seconds, np.cumsum(result.rounds["device_seconds"]))
    assert trajectory.steps_done == result.clients["steps"].sum()
    assert trajectory.answers.sum() == result.rounds["received"].sum()
    assert trajectory.last(2) == pytest.approx(result.rounds["accuracy"][-2:].mean())
    best = result.rounds["accuracy"].max()
    assert trajectory.rounds_to(best) == result.rounds["accuracy"].argmax() + 1
    assert np.isnan(trajectory.rounds_to(1.1))


def test_smaller_data_keeps_the_classes_even_and_the_light(digits):
    small = reduce_data(digits, 100, 50, pool=2)
    assert np.array_equal(np.bincount(small.y), np.full(10, 10))
    assert small.shape == (1, 4, 4)
    whole = reduce_data(digits, 100, 50)
    assert np.allclose(small.x.mean((1, 2, 3)), whole.x.mean((1, 2, 3)), atol=0.5)  # rounding to whole pixels
