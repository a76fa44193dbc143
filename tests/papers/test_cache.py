"""Kept runs: named by everything that decides them, written as they finish, shared, never believed when damaged."""

import time
from dataclasses import replace
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest

import fedweave as fw
from fedweave import methods, papers
from fedweave.papers.common import cache, parallel, reproduction
from fedweave.papers.common.panels import bars, curves
from fedweave.papers.common.record import Record, best, end_of, last, pack, reached, run_experiment, unpack
from fedweave.papers.common.reproduction import Limits, OutOfTime, reproduce_study, run_kept
from fedweave.papers.common.scale import reduce_data
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.fedaware.setup import cropped_and_mirrored
from fedweave.runs.experiment import load_data


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path))
    return tmp_path


EXPERIMENT = fw.Experiment(methods.fedavg(2), "digits", "iid", rounds=2, model="logistic")
COUNTED: list[int] = []


def counted(arm, seed) -> Record:
    COUNTED.append(seed)
    rng = np.random.default_rng([int(arm), seed])
    return Record({"round": np.arange(1, 4), "loss": rng.random(3)}, values={"arm": arm})


def test_a_record_comes_back_as_it_was():
    record = Record(
        {"a": np.arange(3), "b": np.array([[1.5, np.nan]])}, {"c": np.array([True])}, {"n": 1, "t": "x", "l": [1, None]}
    )
    again = unpack(pack(record))
    for part in ("rounds", "clients"):
        assert list(getattr(again, part)) == list(getattr(record, part))
        for name, column in getattr(record, part).items():
            assert np.array_equal(getattr(again, part)[name], column, equal_nan=column.dtype.kind == "f")
    assert again.values == record.values


@pytest.mark.parametrize(
    "change",
    [
        {"method": methods.fedavg(3)},
        {"method": methods.fedprox(2)},
        {"lr": 0.06},
        {"rounds": 3},
        {"partition": fw.partition.Dirichlet(10, 0.5)},
        {"data": fw.data.load("digits").split(0.3)},
        {"model": "mlp"},
    ],
)  # fmt: skip
def test_whatever_decides_a_run_names_it(change):
    name = cache.name_run(run_experiment, EXPERIMENT, 0)
    assert name == cache.name_run(run_experiment, replace(EXPERIMENT, workers=2), 0)
    assert name != cache.name_run(run_experiment, EXPERIMENT, 1)
    assert name != cache.name_run(counted, EXPERIMENT, 0)
    assert name != cache.name_run(run_experiment, replace(EXPERIMENT, **change), 0)


def test_the_source_of_a_part_names_the_runs_that_use_it(monkeypatch, tmp_path):
    """A changed aggregator renames the runs with it, and no others."""
    from fedweave.aggregate import Robust

    plain, robust = (
        EXPERIMENT,
        replace(EXPERIMENT, method=replace(EXPERIMENT.method, aggregator=Robust(EXPERIMENT.method.aggregator))),
    )
    before = [cache.name_run(run_experiment, e, 0) for e in (plain, robust)]
    real = cache.Path.read_bytes

    def changed(path):
        return real(path) + (b"# changed" if path.name == "robust.py" else b"")

    monkeypatch.setattr(cache.Path, "read_bytes", changed)
    cache._digest_of.cache_clear()
    after = [cache.name_run(run_experiment, e, 0) for e in (plain, robust)]
    cache._digest_of.cache_clear()
    assert after[0] == before[0]
    assert after[1] != before[1]


@pytest.mark.parametrize(
    ("item", "arm", "source", "counts"),
    [
        ("fedaware/fig9/hybrid", "fedaware", "solve/min_norm.py", True),
        ("fedaware/fig9/hybrid", "fedavg", "solve/min_norm.py", False),
        ("fedaware/fig9/hybrid", "fedavg", "theory/fedaware.py", True),  # diversity, which every round measures
        ("fedaware/fig9/hybrid", "fedavg", "methods.py", False),
        ("delta/table2/fashion", "fedpracdelta", "theory/delta.py", True),
        ("delta/bound/theorem3.1", None, "papers/delta/theory.py", True),
        ("delta/bound/theorem3.1", None, "papers/common/bounds.py", True),
        ("fedaware/fig9/hybrid", "fedavg", "report/html.py", False),
    ],
)
def test_all_that_a_run_computes_with_names_it(item, arm, source, counts, monkeypatch):
    study = papers.studies()[item]
    arms = study.arms("smoke")
    part = arms[arm] if arm else next(iter(arms.values()))
    before, real = cache.name_run(study.work, part, 0), cache.Path.read_bytes
    assert (cache.ROOT / source).is_file()
    monkeypatch.setattr(cache.Path, "read_bytes", lambda p: real(p) + b"#" * (p == cache.ROOT / source))
    cache._digest_of.cache_clear()
    after = cache.name_run(study.work, part, 0)
    cache._digest_of.cache_clear()
    assert (after != before) == counts


@pytest.mark.parametrize(
    "change",
    [
        lambda data: replace(data, group=np.arange(len(data)) % 3),
        lambda data: replace(data, classes=11),
        lambda data: replace(data, transform=cropped_and_mirrored),
    ],
)
def test_all_of_the_data_names_a_run(change):
    plain = replace(EXPERIMENT, data=fw.data.load("digits"))
    name = cache.name_run(run_experiment, plain, 0)
    assert name == cache.name_run(run_experiment, EXPERIMENT, 0)  # by name, or loaded
    assert name != cache.name_run(run_experiment, replace(plain, data=change(plain.data)), 0)


def test_functions_without_a_name_are_refused():
    with pytest.raises(TypeError, match="kept by the names of its functions"):
        cache.name_run(run_experiment, replace(EXPERIMENT, model=lambda: None), 0)


def test_kept_runs_are_not_repeated_and_damaged_ones_are(folder):
    calls = {("paper", "a", s): (1, s) for s in range(3)} | {("paper", "same", s): (1, s) for s in range(3)}
    COUNTED.clear()
    first = run_kept(counted, calls, Limits())
    assert COUNTED == [0, 1, 2]  # and items of the same content are one run
    again = run_kept(counted, calls, Limits())
    assert COUNTED == [0, 1, 2]
    assert all(np.array_equal(first[k].rounds["loss"], again[k].rounds["loss"]) for k in calls)
    broken = sorted(folder.rglob("*.npz"))
    broken[0].write_bytes(broken[0].read_bytes()[:100])
    broken[1].write_bytes(b"")
    broken[2].write_bytes(b"PK\x03\x04 nothing")
    third = run_kept(counted, calls, Limits())
    assert len(COUNTED) == 6
    assert all(np.array_equal(first[k].rounds["loss"], third[k].rounds["loss"]) for k in calls)


def test_a_folder_that_cannot_be_written_only_costs_time(folder, monkeypatch):
    monkeypatch.setenv("FEDWEAVE_CACHE", "/proc/nothing")
    assert run_kept(counted, {("paper", "a", 0): (1, 0)}, Limits())


def test_a_budget_stops_between_runs_and_keeps_them(monkeypatch, folder):
    calls = {("paper", "a", s): (1, s) for s in range(6)}
    now = iter([0.0, 0.0, 0.0, 5.0])
    monkeypatch.setattr(reproduction, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with pytest.raises(OutOfTime, match="3 of 6"):
        run_kept(counted, calls, Limits(deadline=1.0))
    assert len(list(folder.rglob("*.npz"))) == 3


def test_progress_counts_what_was_kept_and_what_is_done(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path))
    run_kept(counted, {("paper", "a", 0): (1, 0)}, Limits())
    seen = []
    run_kept(
        counted, {("paper", "a", s): (1, s) for s in range(3)}, Limits(on_progress=lambda *done: seen.append(done))
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def study(**changes) -> Study:
    def arms(scale):
        base = replace(EXPERIMENT, rounds=4, lr=0.001, partition=fw.partition.IID(10))
        return {"fedavg": base, "fedprox": replace(base, method=methods.fedprox(2))}

    plain = Study(
        name="delta/x",
        shows="",
        arms=arms,
        seeds={"smoke": 2, "laptop": 2, "paper": 2},
        measures={"accuracy": Measure(last("accuracy"), "%"), "rounds to 99 %": Measure(reached(0.99), end=end_of())},
        panels=(curves("", "accuracy"),),
    )
    return replace(plain, **changes)


def test_tuning_gives_every_method_the_same_trials_on_other_seeds_and_samples(monkeypatch):
    seen = []
    real = reproduction.run_kept

    def watched(work, calls, *rest):
        seen.append(calls)
        return real(work, calls, *rest)

    monkeypatch.setattr(reproduction, "run_kept", watched)
    outcome = reproduce_study(study(), "smoke", Limits(), tune=True)
    *tuning, test = seen
    trials = [arm.split("@")[0] for calls in tuning for _, arm, _ in calls]
    assert trials.count("fedavg") == trials.count("fedprox") >= 6
    assert {seed for calls in tuning for *_, seed in calls}.isdisjoint({seed for *_, seed in test})
    whole = fw.data.load("digits")
    for calls in tuning:
        for experiment, _ in calls.values():
            data = load_data(experiment)
            assert len(data) + len(data.test_y) == len(whole)
            assert not np.array_equal(data.test_x[:5], whole.test_x[:5])
    # the given learning rate is far too small: the grid grows beyond three times it
    lrs = {arm: e.lr for (c, arm, _), (e, _) in test.items() if c == "tuned"}
    assert min(lrs.values()) > 0.003
    tuned, plain = (np.mean(outcome.values("accuracy", c).by_arm["fedavg"]) for c in ("tuned", "paper"))
    assert tuned > plain
    shown = {
        row["method"]: float(row["learning rate"]) for row in outcome.rows() if row["column"] == "every method tuned"
    }
    assert shown == {arm: float(f"{lr:g}") for arm, lr in lrs.items()}


def test_what_is_never_reached_is_censored():
    outcome = reproduce_study(study(), "smoke", Limits())
    values = outcome.values("rounds to 99 %")
    assert values.censored
    assert values.by_arm["fedavg"].tolist() == [5, 5]  # R + 1
    assert outcome.rows()[0]["rounds to 99 %"] == "never"


def timed(arm, seed):
    """Ten rounds that take ``arm[1]`` seconds each and reach an accuracy of ``arm[0]``."""
    accuracy, seconds = arm
    columns = {"round": np.arange(1, 11), "clock": seconds * np.arange(1, 11), "accuracy": np.linspace(0, accuracy, 10)}
    return Record({name: np.asarray(column, float) for name, column in columns.items()})


def test_who_never_arrives_is_later_than_who_does_even_where_its_rounds_are_shorter():
    """The second ends after 10 s without a result: it is not faster than the first, which arrives after 70 s."""
    arms = {"slow": (0.9, 10), "failed": (0.3, 1)}
    measures = {"seconds": Measure(reached(0.6, time="clock"), end=end_of("clock"))}
    outcome = reproduce_study(study(arms=lambda scale: arms, work=timed, measures=measures), "smoke", Limits())
    values = outcome.values("seconds")
    assert values.by_arm["slow"] == pytest.approx([70, 70])
    assert values.by_arm["failed"] == pytest.approx([110, 110])  # one mean round after the last of all
    assert values.bounds["failed"] == pytest.approx([11, 11])  # all that is known: not in ten rounds
    assert set(values.bounds) == set(values.censored) == {"failed"}
    assert outcome.rows()[1]["seconds"] == "never"


def test_a_measure_can_be_taken_against_another_arm():
    arms = {"whole": (0.9, 10), "half": (0.45, 5)}
    share = Measure(lambda r, whole: best()(r) / best()(whole), against=lambda arm: "whole")
    made = study(
        arms=lambda scale: arms,
        work=timed,
        measures={"share": share},
        panels=(bars("", share.of, "", against=share.against),),
    )
    outcome = reproduce_study(made, "smoke", Limits())
    assert outcome.values("share").by_arm["half"].tolist() == [0.5, 0.5]
    assert [row["share"] for row in outcome.rows()] == ["1", "0.5"]
    assert [bar.values.tolist() for bar in outcome.panels()[0].bars] == [[1, 1], [0.5, 0.5]]


def test_reduced_data_does_not_carry_the_whole_to_every_process():
    whole = fw.data.load("mnist5k")
    some = reduce_data(whole, 100, 50)
    assert len(cloudpickle.dumps(some)) < 1.2 * (some.x.nbytes + some.test_x.nbytes) + 10_000


def test_the_cost_is_told_beforehand():
    begin = time.perf_counter()
    seconds = reproduction.estimate_seconds(study(), "smoke")
    assert seconds is not None
    assert 0 < seconds < 100 * (time.perf_counter() - begin)
    reproduce_study(study(), "smoke", Limits())
    assert reproduction.estimate_seconds(study(), "smoke") == 0
    assert reproduction.estimate_seconds(study(arms=lambda scale: {"a": 1}, work=counted), "smoke") is None
    assert parallel.PROCESSES == 1
