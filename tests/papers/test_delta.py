"""DELTA's items at smoke scale: the toy example exactly, runs that are measured rightly, claims that are judged."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave import methods
from fedweave.aggregate import InverseProbability
from fedweave.core.records import ClientContext
from fedweave.core.settings import BadInput
from fedweave.engine.pool.processes import Workers
from fedweave.papers import delta, earlier
from fedweave.papers.delta import claims, combined, images, motivation, regression, setup
from fedweave.papers.delta.setup import BENCHMARKS, Trajectory, largest_weight, run_and_measure
from fedweave.round import run_round
from fedweave.runs.session import prepare

HERE = [i for i in earlier.ITEMS if i.startswith("delta/")]


@pytest.fixture(scope="module")
def mnist5k():
    whole = fw.data.load("mnist5k")
    return replace(whole, x=whole.x[::10], y=whole.y[::10], test_x=whole.test_x[::20], test_y=whole.test_y[::20])


@pytest.fixture
def here(monkeypatch, mnist5k):
    """Run the smallest of runs, on digits that pretend to be the other data sets."""
    group = np.arange(len(mnist5k.y)) % 12
    colour = {"mean": mnist5k.mean * 3, "std": mnist5k.std * 3}

    def load(name):
        if name == "femnist":
            return replace(mnist5k, group=group)
        if name in ("cifar10", "celeba"):
            thrice = {k: np.repeat(getattr(mnist5k, k), 3, axis=1) for k in ("x", "test_x")}
            return replace(mnist5k, **thrice, **colour, group=group)
        return mnist5k

    monkeypatch.setattr(setup, "load", load)
    monkeypatch.setattr(motivation, "load", load)
    small = replace(setup.SMOKE, train=200, test=50, clients=8, per_round=2, batch=32, rounds=2, seeds=2)
    for name, benchmark in BENCHMARKS.items():
        monkeypatch.setitem(
            benchmark.sizes, "smoke", replace(small, train=None) if name in ("femnist", "celeba") else small
        )
    monkeypatch.setitem(motivation.SIZES, "smoke", replace(motivation.SIZES["smoke"], train=200, rounds=5))
    monkeypatch.setitem(regression.SIZES, "smoke", regression.FigureSize(samples=10, rounds=10, seeds=2))


def test_the_toy_example_is_exact():
    outcome = earlier.reproduce("delta/fig3", "smoke")
    distance = {row["method"]: row["distance"] for row in outcome.rows}
    assert distance["feddelta"] == pytest.approx(0.5, abs=1e-12)
    assert distance["fedis"] == pytest.approx(np.sqrt(2), abs=1e-12)
    assert distance["fedavg"] == pytest.approx(np.sqrt(13) / 2, abs=1e-12)
    assert [row["picks"] for row in outcome.rows] == ["1 and 3", "2 and 3", "1 and 2"]
    assert [row["their mean"] for row in outcome.rows] == [row["paper"] for row in outcome.rows]
    assert [c.verdict for c in outcome.claims] == ["confirmed", "confirmed", "not confirmed"]


ALIKE = ("fig11", "fig12", "fig14", "fig14/femnist", "table2", "table2/femnist", "table3/fashion", "table6/fashion")
OWN = ("table2/fashion",)  # has a test of its own below


@pytest.mark.parametrize("item", [i for i in HERE if i.removeprefix("delta/") not in ALIKE + OWN])
def test_every_item_runs_and_judges(item, here):
    seen = []
    outcome = earlier.reproduce(item, "smoke", lambda done, total: seen.append((done, total)))
    assert outcome.item == item
    assert len({tuple(row) for row in outcome.rows}) == 1, "a table has the same columns in every line"
    named = [tuple(v for v in row.values() if isinstance(v, str)) for row in outcome.rows]
    assert len(set(named)) == len(named) > 1, "no line twice"
    assert outcome.claims
    assert outcome.notes
    if item != "delta/fig3":
        assert {c.verdict for c in outcome.claims} == {"not run at this scale"}
        assert seen[-1][0] == seen[-1][1] > 0
    json.dumps(outcome.plain())


def test_every_item_is_known():
    assert {i.split("/")[1] for i in HERE} == {name for names in delta.MODULES.values() for name in names}


def test_table2_has_both_weightings_and_the_papers_numbers(here):
    rows = earlier.reproduce("delta/table2/fashion", "smoke").rows
    both = [("data", n) for n in (*images.NAMES, "fedavg_md")] + [("equal", n) for n in images.NAMES]
    assert [(r["weights"], r["method"]) for r in rows] == both
    assert rows[3]["paper"] == "72.10 ± 0.49"
    assert rows[3]["paper's"] == "322"
    assert rows[8]["paper"] == "—"
    assert {"best − fedavg", "last − fedavg", "rounds", "steps/round", "weight"} <= set(rows[0])


def test_items_say_which_data_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDWEAVE_DATA", str(tmp_path))
    monkeypatch.setenv("FEDWEAVE_OFFLINE", "1")
    for item in ("delta/table2", "delta/table3", "delta/table9", "delta/fig14", "delta/fig15"):
        outcome = earlier.reproduce(item, "smoke")
        assert not outcome.rows
        assert {c.verdict for c in outcome.claims} == {"not run at this scale"}
    with pytest.raises(BadInput, match="delta/table2"):
        earlier.reproduce("delta/tabel2", "smoke")


def trajectory(accuracy, every=2, steps=3.0, largest_weight=0.5):
    rounds = len(accuracy) * every
    one = np.ones(rounds)
    return Trajectory(
        every, np.array(accuracy), np.array(accuracy), steps * one, largest_weight * one, np.ones((rounds, 2))
    )


def test_what_is_read_off_a_course():
    c = trajectory([0.1, 0.5, 0.3, 0.7, 0.6, 0.6, 0.65, 0.7, 0.6, 0.9])
    assert c.best() == pytest.approx((0.9 + 0.7 + 0.7 + 0.65 + 0.6) / 5)
    assert c.best(2, rounds=8) == pytest.approx(0.6)
    assert c.last == 0.9
    assert c.rounds_to(0.7) == 8
    assert np.isnan(c.rounds_to(0.95))
    assert c.rounds_to(0.65, smoothed=5) == 16  # 0.7 0.6 0.6 0.65 0.7
    assert c.steps_to(0.65) == 48
    assert np.isnan(c.steps_to(0.99))


def test_claims_need_a_lead_of_twice_its_error():
    def runs(level, jitter):
        return [trajectory(np.full(10, level) + j) for j in jitter]

    even, one_way = (0.0, 0.01, 0.02), (0.0, 0.01, 0.02)
    clear = {"fedavg": runs(0.5, even), "fedpracdelta": runs(0.6, one_way)}
    assert [c.verdict for c in claims.judge_claims("x", clear, 0.55, "laptop")] == ["confirmed"] * 3
    assert [c.verdict for c in claims.judge_claims("x", clear, 0.55, "smoke")] == ["not run at this scale"] * 3
    unclear = {"fedavg": runs(0.5, even), "fedpracdelta": runs(0.51, (0.1, -0.1, 0.0))}
    assert {c.verdict for c in claims.judge_claims("x", unclear, 0.9, "laptop")} == {"not confirmed"}
    row = claims.table_row("a", clear["fedpracdelta"], ("fedavg", clear["fedavg"]), 0.605, ("1", "2"))
    assert row["best − fedavg"] == "+10.00 ± 0.00"
    assert (row["to"], row["rounds"]) == ("60%", "2 (2/3)")
    assert row["weight"] == "0.5, 0.5"


def test_the_largest_weight_is_that_of_the_aggregator(tiny):
    experiment = tiny(methods.fedpracdelta(3), system=fw.system.Uniform())
    session = prepare(experiment, Workers(1))
    _, happened = run_round(experiment.method, session.start, session.base, session.engine, 0.05, 0)
    cohort, weight = happened.cohort, session.base.weight
    assert largest_weight(experiment.method, happened) == pytest.approx(
        (weight[cohort.ids] * cohort.count / cohort.expected).max()
    )
    assert np.isnan(largest_weight(methods.fedvarp(3), happened))
    found = run_and_measure(replace(experiment, rounds=4, evaluate_every=2))
    assert found.accuracy.size == 2
    assert found.steps.size == found.largest_weight.size == len(found.norms) == 4
    assert (found.norms[:, 0] >= found.norms[:, 1]).all()


def regression_engine(noise=0.0, solver=None):
    data = fw.data.synthetic.regression(4, 30, 10.0, 1.0)
    x, y = data.x[:, 0].reshape(4, 30).astype(float), data.y.reshape(4, 30).astype(float)
    return regression.RegressionEngine(x, y, noise * np.arange(4.0), solver or fw.solvers.SGD(), 0)


def test_the_regressions_gradient_is_that_of_its_loss():
    engine, theta, ids = regression_engine(), np.array([2.0, 0.3]), np.array([0, 2, 3])
    for i, direction in enumerate(np.eye(2)):
        up, down = (engine.losses(theta + s * 1e-6 * direction, ids) for s in (1, -1))
        assert np.allclose(engine.gradients(theta, ids)[:, i], (up - down) / 2e-6, rtol=1e-5)
    assert engine.evaluate(np.array([10.0, 1.0]))["loss"] < 1e-10  # the truth


def test_the_regressions_noise_is_the_clients_own():
    population = worlds.equal_clients(4, steps=5)
    engine, theta, everyone, some = (
        regression_engine(3.0),
        np.array([2.0, 0.3]),
        worlds.cohort(range(4)),
        worlds.cohort([1, 3]),
    )

    def updates(engine, round):
        return engine.rehearse(worlds.assignment(engine, round, theta, everyone, population, 0.001))

    def train(round, lr):
        measure = ClientContext(measure=True)
        return engine.train(worlds.assignment(engine, round, theta, some, population, lr, measure))

    all_of_them = updates(engine, 7)
    replies = train(7, 0.001)
    assert np.array_equal(replies.updates, all_of_them[[1, 3]])  # company changes nothing
    assert not np.array_equal(updates(engine, 8)[1], all_of_them[1])
    quiet = updates(regression_engine(0.0), 7)
    assert np.array_equal(all_of_them[0], quiet[0])  # the first client has no noise
    measured = [train(r, 1e-9).variance for r in range(400)]
    unbiased = np.mean(measured, axis=0) * 5 / 4
    assert np.allclose(unbiased, engine.variances(1, theta, some.ids, population), rtol=0.15)


def test_combinations_are_other_parts_of_the_same_methods():
    arms = combined.varp_methods(5)
    assert arms["fedpracdelta"].sampler == methods.fedpracdelta(5).sampler
    assert arms["fedpracdelta"].aggregator == fw.aggregate.VarpRefreshed()
    assert arms["fedpracdelta, unbiased"].aggregator == fw.aggregate.Varp()
    momentum = combined.with_parts(images.NAMES, **combined.MOMENTUM)(5)
    assert {m.solver.momentum for m in momentum.values()} == {0.9}
    assert momentum["cluster_is"].aggregator == InverseProbability()
