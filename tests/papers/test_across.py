"""The items beyond/methods: combined methods, labels that go with links, budgets in simulated time, tuning."""

import numpy as np
import pytest

from fedweave import aggregate, sample, upload
from fedweave.papers.beyond import across, tuning
from fedweave.papers.beyond.sorted_labels import SortedDirichlet
from fedweave.papers.common.record import Record
from fedweave.papers.common.reproduction import Limits


def _record(clock, accuracy, worst=0.5):
    n = len(clock)
    rounds = {"round": np.arange(1, n + 1), "clock": np.array(clock, float), "accuracy": np.array(accuracy, float)}
    rounds |= {"bytes_up": 1e6 * np.arange(1, n + 1), "bytes_down": 2e6 * np.arange(1, n + 1)}
    return Record(rounds | {"device_seconds": np.full(n, 5.0)}, values={"client_worst_decile": worst})


def test_combined_methods_have_the_parts_of_both():
    topk = across.method_of("fedbuff_topk")
    assert topk.pacing.overlaps
    assert isinstance(topk.upload, upload.ErrorFeedback)
    aware = across.method_of("fedaware_acs")
    assert isinstance(aware.sampler, sample.FirstEveryone)
    assert isinstance(aware.sampler.sampler, sample.ACS)
    assert isinstance(aware.aggregator, aggregate.Aware)
    assert {across.method_of(arm).name for arm in across.ARMS} == set(across.ARMS)


def test_low_digits_are_on_the_first_clients():
    data = across.samples("smoke")
    shares = SortedDirichlet(across.CLIENTS, across.ALPHA).split(data, np.random.default_rng(0))
    means = [data.y[own].mean() for own in shares.train]
    assert means == sorted(means)
    assert sorted(np.concatenate(shares.train)) == list(range(len(data.y)))
    for own, test in zip(shares.train, shares.test, strict=True):  # test samples went along
        assert set(data.test_y[test]) <= set(data.y[own])


def test_rounds_after_the_budget_do_not_count():
    run = across.within_budget(100.0)(_record([40, 60, 98, 99, 130], [0.5, np.nan, 0.6, 0.8, 0.9]))
    assert run.rounds["clock"].tolist() == [40, 98, 99]
    assert run.rounds["accuracy"] == pytest.approx([0.5, 0.6, 0.7])  # the last two within five seconds
    assert run.rounds[across.BYTES].tolist() == [3, 9, 12]
    assert run.rounds[across.DEVICE].tolist() == [5, 15, 20]


def test_measures_by_hand():
    seconds = across.WORLDS["lossy"].seconds
    target = across.target_of("lossy")
    run = _record([0.2 * seconds, 0.5 * seconds, 0.95 * seconds, 2 * seconds], [0.1, target + 0.01, 0.99, 0.2])
    measures = across.measures("lossy")
    found = {name: measure.of(run) for name, measure in measures.items()}
    assert list(found.values()) == pytest.approx([0.99, 0.5, 2, 0.5 * seconds, 6, 10])
    never = _record([0.2 * seconds, 2 * seconds], [0.1, 0.99])
    assert np.isnan(measures["seconds to the target"].of(never))
    assert measures["seconds to the target"].end(never) == pytest.approx(0.4 * seconds)


def test_the_accuracy_halfway_sets_the_target():
    run = _record([10, 48, 50, 60, 99], [0.1, 0.6, 0.7, 0.9, 0.9])
    assert tuning.accuracy_halfway(run, 100.0) == pytest.approx(0.65)  # 48 and 50, within five seconds


def test_tuning_tries_the_same_rates_for_every_method(monkeypatch):
    """The arms are two, and a run's score is a function of its rate: one peak inside the grid, one beyond its edge."""
    peaks = {"fedavg": 0.1, "fedbuff": 0.9}

    def work(arm, seed):
        score = 0.8 - abs(np.log(arm.lr / peaks[arm.method.name])) / 10 + (seed - 1001) * 0.03
        assert arm.validation == 0.2
        return _record([arm.stop_after * share for share in (0.4, 0.5, 1)], [score / 2, score, score])

    monkeypatch.setattr(across, "ARMS", dict.fromkeys(peaks, ""))
    monkeypatch.setattr(tuning, "STUDIES", [across.replace(s, work=work) for s in across.STUDIES])
    monkeypatch.setattr(
        tuning, "run_kept", run_all := lambda work, calls, limits: {k: work(*c) for k, c in calls.items()}
    )
    monkeypatch.setattr("fedweave.papers.common.reproduction.run_kept", run_all)
    found = tuning.tune("lossy", Limits(), "smoke")
    assert found["rates"] == {"fedavg": 0.1, "fedbuff": 0.9}
    assert all(list(scores) == ["0.03", "0.1", "0.3", "0.9", "2.7"] for scores in found["scores"].values())
    assert found["target"] == 0.81  # 0.815, the mean of 0.8 and 0.83
    assert found["seeds"] == [1001, 1002]


def test_what_was_tuned_is_what_is_run():
    assert set(across.tuned()) <= set(across.WORLDS)
    for name, found in across.tuned().items():
        assert set(found["rates"]) == set(found["scores"]) == set(across.ARMS)
        grids = {tuple(scores) for scores in found["scores"].values()}
        assert len(grids) == 1, "the same trials for every method"
        for arm, experiment in across.arms(name)("smoke").items():
            scores = {float(rate): score for rate, score in found["scores"][arm].items()}
            assert experiment.lr == max(scores, key=scores.__getitem__)
