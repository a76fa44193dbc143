"""The latency paper's studies: what they measure, by hand; the printed numbers; plans recomputed from a run's rows."""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
from fedweave import papers
from fedweave.papers.common.record import Record, run_experiment
from fedweave.papers.common.study import Measure
from fedweave.papers.latency import beyond, studies
from fedweave.papers.latency.planning import Fleets, solve, solve_instance
from fedweave.papers.latency.setup import BENCHMARKS, SELECTIONS, SIZES, arms, rounds_of, sampler, selection, settings
from fedweave.theory import expected_round_seconds, rounds_needed


def run(loss, seconds, accuracy=None):
    """Return a record of these rounds."""
    loss = np.array(loss, float)
    columns = {"round": np.arange(1, loss.size + 1), "clock": np.cumsum(seconds), "objective": loss, "loss": loss[::-1]}
    return Record({**columns, "accuracy": loss if accuracy is None else np.array(accuracy, float)})


def test_seconds_to_the_lowest_loss_that_all_reach():
    """Means of up to five rounds: ours 3 2 1.5, uniform 3 2.5 2 — the target is 2, reached after 2 and 3 rounds."""
    runs = {"ours": run([3, 1, 0.5], [1, 1, 2]), "uniform": run([3, 2, 1], [3, 2, 3])}
    assert studies.loss_of(runs["ours"]).tolist() == [3, 2, 1.5]
    assert studies.loss_of(run(range(12), np.ones(12)))[4:].tolist() == list(range(2, 10))
    assert studies.common_target(runs) == 2
    assert studies.to_common()(runs) == {"ours": 2, "uniform": 8}
    assert studies.to_common("round")(runs) == {"ours": 2, "uniform": 3}
    assert studies.relative_to("ours")(runs) == {"ours": 1, "uniform": 4}
    assert studies.relative_to("uniform", inverse=True)(runs) == {"ours": 4, "uniform": 1}
    assert studies.reached(runs["ours"], 1.5) == 4
    assert np.isnan(studies.reached(runs["uniform"], 1.9))


def test_settings_have_targets_of_their_own():
    runs = {
        "ours, dir": run([3, 1], [1, 1]), "uniform, dir": run([3, 1], [2, 2]),
        "ours, iid": run([3, 2, 1], [1, 1, 1]), "uniform, iid": run([3, 2, 1], [1, 1, 1]),
    }  # fmt: skip
    assert studies.relative_to("ours")(runs) == {"ours, dir": 1, "uniform, dir": 2, "ours, iid": 1, "uniform, iid": 1}


def test_equal_time_is_the_end_of_the_shortest_run():
    runs = {"ours": run([4, 3, 2, 1], [1, 1, 1, 1]), "uniform": run([4, 2], [1, 2])}
    assert studies.at_equal_time("objective")(runs) == {"ours": 3, "uniform": 3}
    assert studies.jitter(run([1] * 4, np.ones(4), [9, 0, 0.2, 0.1])) == pytest.approx(0.1)


def test_a_joint_measure_sees_the_runs_of_a_seed_together():
    records = {"a": [run([1], [1]), run([5], [1])], "b": [run([3], [1]), run([2], [1])]}
    joint = Measure(lambda runs: {arm: r.rounds["objective"][0] == min(x.rounds["objective"][0] for x in runs.values())
                                  for arm, r in runs.items()}, joint=True)  # fmt: skip
    assert {arm: v.tolist() for arm, v in joint.numbers(records).items()} == {"a": [1, 0], "b": [0, 1]}


def test_one_instance_of_the_figures_by_hand():
    """M/N = 0.5 of two clients is one draw: A = Σ p δ, and norm selection is p ∝ √B."""
    found = solve_instance(Fleets(2, (0.5,), 1, B_order=10.0), 0.5, 3)
    rng = np.random.default_rng([2, 3])
    B, delta = 10 * (1 - rng.random(2)), np.cumsum(1 - rng.random(2))
    p = np.sqrt(B) / np.sqrt(B).sum()
    norm = (p @ delta) * np.ceil((1 + (B / p).sum()) ** 2 * 1e6)
    assert found.plan.round_seconds == pytest.approx(found.plan.probability @ delta)
    assert found.excess[1] == pytest.approx(norm / found.plan.total_seconds - 1)
    assert 0 < found.change < 0.05


def test_the_figures_numbers_are_means_over_repetitions():
    """Two instances at one ratio, costs by the theory's functions; the next seed has other instances."""
    fleets = Fleets(10, (0.5,), 2, C_order=10.0)
    found = {k: v[0] for k, v in solve(fleets, 1).rounds.items()}
    one, two = (solve_instance(fleets, 0.5, r) for r in (2, 3))
    delta = [10 * np.cumsum((1 - np.random.default_rng([10, r]).random(20))[10:]) for r in (2, 3)]
    A = [expected_round_seconds(s.plan.probability, d, 5) for s, d in zip((one, two), delta, strict=True)]
    assert found["round latency"] == pytest.approx(np.mean(A) / 10)
    total = [s.plan.total_seconds for s in (one, two)]
    assert (found["total"], found["deviation"]) == pytest.approx(
        (np.mean(total), abs(total[0] - total[1]) / np.sqrt(2))
    )
    assert found["norm"] == pytest.approx(50 * (one.excess[1] + two.excess[1]))
    assert found["change"] < 1e-6, "C changes nothing where δ_1 is a gap too"


def test_corollary_3_norm_selection_is_optimal_for_equal_latencies():
    B = np.array([1.0, 4.0, 9.0])
    plan = fw.solve.latency_plan(np.ones(3), B, 1.0, 1e-3, [2])
    assert np.allclose(plan.probability, np.sqrt(B) / np.sqrt(B).sum())
    assert plan.rounds == rounds_needed(np.sqrt(B) / 6, B, 2, 1.0, 1e-3)


def test_the_papers_scale_is_the_papers():
    assert BENCHMARKS["fashion_mnist"][:4] == (60_000, 10, 5, 5)
    assert BENCHMARKS["emnist_letters"][:4] == (124_800, 40, 10, 13)
    for data in BENCHMARKS:
        published, laptop = settings(data, "dir")("paper"), settings(data, "dir")("laptop")
        assert (published["epochs"], published["batch"], published["learning rate"]) == (5, 256, 1e-3)
        assert (
            published["steps an epoch"]
            == laptop["steps an epoch"]
            == -(-BENCHMARKS[data].train // published["clients"] // 256)
        )
    assert laptop["training images"] == 12_480
    assert SIZES["laptop"].rounds == 150
    assert selection("ours", "fashion_mnist").sampler == fw.sample.LatencyOptimal(5, trial=5)
    assert all(selection(name, "fashion_mnist").solver == fw.solvers.Adam() for name in SELECTIONS)
    smoke = arms("fashion_mnist", "class")("smoke")["norm"]
    assert (smoke.partition, smoke.system) == (fw.partition.Classes(10, 5), fw.system.Latency())


@pytest.mark.parametrize("data", BENCHMARKS)
def test_published_runs_are_long_enough_for_the_printed_times(data):
    """E max of M uniform draws of N uniform latencies, over 200 fleets, times the rounds."""
    b, rng = BENCHMARKS[data], np.random.default_rng(0)
    law = np.full(b.clients, 1 / b.clients)
    A = np.mean([expected_round_seconds(law, rng.random(b.clients), b.draws) for _ in range(200)])
    for where, seconds in b.seconds.items():
        assert rounds_of(data, where, "paper") * A > max(seconds)


def test_the_printed_ratios():
    """Table I prints seconds and ratios; the ratios follow from the seconds."""
    printed = {
        ("emnist_letters", "iid"): (1.92, 1.71, 1.91), ("emnist_letters", "class"): (2.70, 1.93, 2.71),
        ("emnist_letters", "dir"): (2.94, 2.01, 2.65), ("fashion_mnist", "iid"): (1.59, 1.56, 1.85),
        ("fashion_mnist", "class"): (1.99, 1.78, 1.99), ("fashion_mnist", "dir"): (3.07, 1.56, 2.90),
    }  # fmt: skip
    for (data, where), ratios in printed.items():
        table = papers.studies()[f"latency/table1/{data}/{where}"].published["times ours"]
        assert [table[name] for name in SELECTIONS] == pytest.approx([1, *ratios], abs=0.0051)


@pytest.fixture(scope="module")
def bold():
    """Return a smoke run of ours with α = 10 in units of the data's part."""
    arm = arms("fashion_mnist", "dir")("smoke")["ours"]
    return run_experiment(replace(arm, method=replace(arm.method, sampler=sampler("fashion_mnist", 10.0))), 3)


def test_a_plan_is_recomputed_from_the_rows_of_its_run(bold):
    """The law that the run drew from after its trial, column ``expected``, is that of the rows of the trial."""
    clients, mine = beyond.population(bold), sampler("fashion_mnist", 10.0)
    after = bold.clients["round"] > mine.trial
    trial = {k: v[~after] for k, v in bold.clients.items()}
    (square, latency, alpha), _ = mine.estimates_from(trial, clients)
    plan = fw.solve.latency_plan(latency, clients.weight**2 * square, alpha, 1.0, [5])
    asked = bold.clients["client"][after]
    assert np.allclose(bold.clients["expected"][after], 5 * plan.probability[asked], rtol=1e-6)
    assert np.allclose(bold.clients["seconds"], clients.latency[bold.clients["client"]])
    gain, share = beyond.promise(bold, 10.0)
    assert share == pytest.approx(10)
    A = [expected_round_seconds(p, latency, 5) for p in (np.full(10, 0.1), plan.probability)]
    assert A[1] < A[0]
    assert 1 < gain < 10


def test_the_total_of_a_rounds_weights(bold):
    """√((Σ d²/p − 1)/M) by hand for one draw of two clients: totals 0.8/(0.5) and 0.2/0.5."""
    rows = {"round": [1, 2], "client": [0, 1], "count": [1, 1], "expected": [0.5, 0.5]}
    record = Record({}, {k: np.array(v) for k, v in rows.items()}, {"labels": [[8], [2]], "seed": 0})
    assert beyond.total_deviation(record) == pytest.approx(0.6)
    exact = np.sqrt(((0.8**2 + 0.2**2) / 0.5 - 1) / 1)
    assert exact == pytest.approx(0.6)
    ratio = run_experiment(arms("fashion_mnist", "dir")("smoke")["ratio"], 3)
    assert beyond.total_deviation(ratio) == pytest.approx(0, abs=1e-9)
    assert beyond.total_deviation(bold) > 0.01
