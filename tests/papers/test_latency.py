"""The latency paper's figures and table in small: arithmetic with its claims, trainings with their prices."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import fedweave as fw
from fedweave.core.settings import BadInput
from fedweave.papers import earlier
from fedweave.papers.latency import estimated_alpha as latency_alpha
from fedweave.papers.latency import estimators as latency_weights
from fedweave.papers.latency import planning as latency
from fedweave.papers.latency import table as latency_table
from fedweave.papers.latency import training as latency_training
from fedweave.papers.latency.training import Job, TrainingSize, Trajectory, clock, measure_costs, smooth, target_of
from fedweave.theory import expected_round_seconds

TINY = TrainingSize(seeds=1, rounds=3, trial=1, per_client=20, test=50, batch=20)


@pytest.fixture(scope="module")
def embedded():
    whole = fw.data.load("mnist5k")
    return replace(whole, x=whole.x[::5], y=whole.y[::5], test_x=whole.test_x[::10], test_y=whole.test_y[::10])


@pytest.fixture(scope="module")
def kept():
    """Return what trains, each walk once for all tests, with the jobs asked for since the last look."""
    once, asked = cache(latency_training.train_once), []

    def train_once(*job):
        asked.append(job)
        return once(*job)

    train_once.shared = True
    return train_once, asked


@pytest.fixture(autouse=True)
def here(monkeypatch, embedded, kept):
    """Work on the digits that are embedded instead of on Fashion-MNIST."""
    for module in (latency_alpha, latency_training, latency_weights):
        monkeypatch.setattr(module, "train_once", kept[0])
    monkeypatch.setattr(latency_training, "EPOCHS", 1)
    latency_training._samples.cache_clear()

    def load(name):
        if name == "fashion_mnist":
            return embedded
        raise BadInput(f"{name} needs files, which are missing")

    monkeypatch.setattr(latency_training, "_whole", load)
    for module in (latency_alpha, latency_table, latency_weights):
        monkeypatch.setattr(module, "SIZES", dict.fromkeys(("smoke", "laptop"), TINY))
    yield
    latency_training._samples.cache_clear()


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(latency, "RATIOS", {"smoke": (0.1, 1.0)})
    monkeypatch.setattr(latency, "REPETITIONS", {"smoke": 2})


def test_the_loss_is_a_mean_of_five_rounds():
    assert smooth(np.array([7.0, 5.0, 3.0])).tolist() == [7, 6, 5]
    assert smooth(np.arange(12.0))[4:].tolist() == np.arange(2.0, 10.0).tolist()


@pytest.mark.usefixtures("few")
def test_figure2_round_latency_and_rounds():
    outcome = earlier.reproduce("latency/fig2", "smoke")
    assert [claim.verdict for claim in outcome.claims] == ["confirmed"] * 4, outcome.claims
    same = [r for r in outcome.rows if (r["clients"], r["M/N"], r["varied"]) == (10, 1.0, "C")]
    assert len({round(r["round_seconds / C order"], 6) for r in same}) == 1


@pytest.mark.usefixtures("few")
def test_figure3_nobody_is_faster_than_the_optimum():
    outcome = earlier.reproduce("latency/fig3", "smoke")
    verdicts = {claim.text: claim.verdict for claim in outcome.claims}
    assert verdicts["ours is the smallest, on every instance"] == "confirmed"
    assert verdicts["heavy tails promise more (beyond the paper)"] == "confirmed"
    assert all(r["uniform, % more"] > 0 and r["norm, % more"] > 0 for r in outcome.rows)


def test_one_cell_of_the_figures_by_hand():
    """M/N = 0.5 of two clients is one draw: A = Σ p δ, and norm selection is p ∝ √B."""
    found = latency.solve_instance("uniform gaps", 2, 0.5, 10.0, 1.0, 3)
    rng = np.random.default_rng([2, 3])
    B, delta = 10 * (1 - rng.random(2)), np.cumsum(1 - rng.random(2))
    p = np.sqrt(B) / np.sqrt(B).sum()
    norm = (p @ delta) * np.ceil((1 + (B / p).sum()) ** 2 * 1e6)
    assert found["round_seconds"] == pytest.approx(found["p"] @ delta)
    assert found["norm"] == pytest.approx(norm / found["total"] - 1)


def trajectory(asked, loss, **changes):
    latency = {"uniform": np.array([1.0, 2.0, 3.0]), "log-normal": np.array([5.0, 1.0, 1.0])}
    third = np.full(3, 1 / 3)
    done = Trajectory(
        [np.array(ids) for ids in asked], np.array(loss), np.array(loss), third, latency, third, None, None
    )
    return done._replace(**changes)


def test_the_time_of_a_training_is_that_of_its_slowest_clients():
    one = trajectory([[0], [0, 2], [1]], [3.0, 2.0, 1.0])
    assert clock(one, "uniform").tolist() == [1, 4, 6]
    assert clock(one, "log-normal").tolist() == [5, 10, 11]


def test_prices_and_predictions_by_hand():
    """Target 2: ours has it after two rounds, the others after three; laws cost what the theory's functions say."""
    law, square, alpha = np.array([0.5, 0.4, 0.1]), np.array([1.0, 4.0, 9.0]), 2.0
    ours = trajectory([[0], [0], [0, 1]], [3.0, 1.0, 0.5], law=law, square=square, alpha=alpha)  # means 3, 2, 1.5
    others = {m: trajectory([[2], [1], [2]], [3.0, 2.0, 1.0]) for m in ("uniform", "ratio")}  # means 3, 2.5, 2
    norm = trajectory([[2], [1], [2]], [3.0, 2.0, 1.0], square=square, alpha=alpha)
    trajectories = {"ours": ours, **others, "norm": norm}
    study = {("dir", world, 0): trajectories for world in latency_training.WORLDS}
    assert target_of(study, "dir", 0) == 2.0
    costs = measure_costs(trajectories, "uniform", 2.0, TINY, per_round=2)
    assert (costs["ours"].seconds, costs["ours"].rounds) == (2.0, 2)
    assert (costs["uniform"].seconds, costs["uniform"].rounds) == (8.0, 3)
    assert costs["ours"].round_seconds == 1.5, "the trial has another law"
    assert costs["uniform"].round_seconds == pytest.approx(8 / 3)
    delta, factor = np.array([1.0, 2.0, 3.0]), square / 9
    for name, p in {"ours": law, "uniform": np.full(3, 1 / 3), "norm": np.array([1, 2, 3]) / 6}.items():
        A, R = expected_round_seconds(p, delta, 2), alpha + (factor / p).sum() / 2
        assert costs[name].predicted_round == pytest.approx(A)
        assert costs[name].predicted_cost == pytest.approx(A * R**2)


def test_ratios_over_seeds():
    ratio = latency_table.Ratio.of([2.0, 2.0, 2.0])
    assert (ratio.mean, ratio.error, ratio.above_one) == (pytest.approx(2), pytest.approx(1), True)
    assert not latency_table.Ratio.of([4.0, 0.3, 1.1]).above_one
    assert not latency_table.Ratio.of([4.0]).above_one, "one seed proves nothing"


def test_table1_trains_once_and_prices_twice(kept):
    kept[1].clear()
    study = latency_training.run_study("fashion_mnist", ("dir",), TINY, None)
    assert [(job.method, job.world) for job, _ in kept[1]] == [
        ("ours", "uniform"), ("ours", "log-normal"), ("uniform", None), ("norm", None), ("ratio", None),
    ]  # fmt: skip
    two = [study["dir", world, 0] for world in latency_training.WORLDS]
    for method in ("uniform", "norm", "ratio"):
        assert two[0][method] is two[1][method]
    assert two[0]["ours"] is not two[1]["ours"]
    assert not np.allclose(two[0]["ours"].law, two[1]["ours"].law)
    for one in two:
        assert np.array_equal(one["ours"].asked[0], one["norm"].asked[0]), "the trial is the same for all who have one"
        assert np.allclose(one["ours"].square, one["norm"].square)
        norm = one["norm"].weight * np.sqrt(one["norm"].square)
        assert not np.allclose(one["norm"].law, norm / norm.sum(), atol=1e-3), "it goes on learning after the trial"


def test_table1_has_the_papers_numbers_and_says_what_it_cannot_run():
    outcome = earlier.reproduce("latency/table1", "laptop")
    keys = [(r["data"], r["setting"], r["latencies"], r["method"]) for r in outcome.rows]
    assert len(set(keys)) == len(keys)
    paper = {(r["data"], r["setting"], r["method"]): r["paper ratio"] for r in outcome.rows if r["paper"]}
    assert paper["fashion", "dir", "uniform"] == pytest.approx(3.07, abs=0.01)
    assert paper["fashion", "dir", "norm"] == pytest.approx(1.56, abs=0.01)
    assert paper["fashion", "dir", "ratio"] == pytest.approx(2.90, abs=0.01)
    assert paper["letters", "class", "uniform"] == pytest.approx(2.70, abs=0.01)
    mine = [r for r in outcome.rows if r["data"] == "fashion"]
    assert all(r["ratio"] == 1 for r in mine if r["method"] == "ours")
    assert all(r["seconds"] > 0 and r["A(p)"] > 0 and r["predicted"] >= 1 - 1e-9 for r in mine)
    assert all(r["seconds"] is None for r in outcome.rows if r["data"] == "letters")
    (missing,) = [c for c in outcome.claims if c.text.startswith("emnist_letters")]
    assert (missing.verdict, missing.evidence) == (
        "not run at this scale", "emnist_letters needs files, which are missing",
    )  # fmt: skip
    assert {c.verdict for c in outcome.claims} == {"not run at this scale"}, "one seed is not evidence"


def test_figures_4_to_6_and_the_estimators_run():
    outcome = earlier.reproduce("latency/fig5", "smoke")
    assert all(0 < r["loss at 100 %"] < 10 for r in outcome.rows)
    assert {c.verdict for c in outcome.claims} == {"not run at this scale"}
    outcome = earlier.reproduce("latency/alpha", "smoke")
    share = {(r["setting"], r["boldness"]): r["α"] for r in outcome.rows}
    assert share["iid", "10"] == pytest.approx(10)
    seconds = {(r["setting"], r["boldness"]): r["A(p)"] for r in outcome.rows}
    assert seconds["dir", "10"] < seconds["dir", "1"], "a bolder plan has shorter rounds"
    outcome = earlier.reproduce("latency/weights", "smoke")
    total = {(r["law"], r["estimator"]): r["deviation of the weights' total"] for r in outcome.rows}
    assert total["ratio", "updates"] == pytest.approx(0, abs=1e-7)
    assert total["uniform", "updates"] > 0.05


def test_without_the_data_everything_says_so(monkeypatch):
    def load(name):
        raise BadInput(f"{name} is not here")

    monkeypatch.setattr(latency_training, "_whole", load)
    for item in ("table1", "fig4", "fig6", "alpha", "weights"):
        outcome = earlier.reproduce(f"latency/{item}", "laptop")
        assert outcome.rows
        assert {c.verdict for c in outcome.claims} == {"not run at this scale"}
        assert all("is not here" in c.evidence for c in outcome.claims)


def test_the_paper_scale_is_the_papers():
    assert latency_training.BENCHMARKS["fashion_mnist"][:3] == (10, 5, 5)
    assert latency_training.BENCHMARKS["emnist_letters"][:3] == (40, 10, 13)
    method = latency_training.paper_method("ours", 5, 7)
    assert method.sampler == fw.sample.LatencyOptimal(5, trial=7)
    assert method.solver == fw.solvers.Adam()
    assert replace(method, name="x").aggregator == fw.aggregate.InverseProbability()
    assert Job("fashion_mnist", "iid", "ours", "uniform", 0) != Job("fashion_mnist", "iid", "ours", "log-normal", 0)
