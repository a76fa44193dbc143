"""Sweeps: the grid, what is best on which samples, and going on after any interruption."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
from fedweave import report
from fedweave.core import crash_points
from fedweave.runs import compare as comparing
from fedweave.runs import folders
from fedweave.runs import sweep as sweeping
from fedweave.runs.grid import axes_of, grid_of, places_of
from fedweave.runs.sweep import Plan, Sweep, load_sweep, plan_sweep
from interrupt import StopAfter
from report.fabricate import tiny as fabricated

LRS, MUS = [0.01, 0.1, 0.5], [0, 0.3]
T2 = 0.95 / math.sqrt(
    2 * 0.975 * 0.025
)  # quantile of Student's t, (2p − 1) / √(2p (1 − p)) with two degrees of freedom


@pytest.fixture(scope="module")
def base():
    """Seven clients with quadratic objectives: a run takes a millisecond."""
    return fw.Experiment("fedavg", fw.data.load("quadratics"), "iid", rounds=3, evaluate_every=2, workers=1)


def digests(results):
    return [(r.summary["method"], r.summary["seed"], r.summary["digest"]) for r in results]


def test_every_method_meets_every_point_with_every_seed(base):
    """Against loops of our own, and each run against the experiment that a user would write."""
    mu = fw.methods.fedprox(5).solver
    sweep = fw.sweep(["fedavg", "fedprox"], base, {"lr": LRS, "fedprox:method.solver.mu": MUS}, seeds=2)
    wanted = []
    for seed in (0, 1):
        for lr in LRS:
            wanted.append(("fedavg", seed, {"lr": lr}, replace(base, lr=lr, seed=seed)))
        for lr, m in itertools.product(LRS, MUS):
            method = replace(fw.methods.fedprox(5), solver=replace(mu, mu=m))
            point = {"lr": lr, "method.solver.mu": m}
            wanted.append(("fedprox", seed, point, replace(base, lr=lr, seed=seed, method=method)))
    found = [(r.summary["method"], r.summary["seed"], p) for r, p in zip(sweep.results, sweep.points, strict=True)]
    assert found == [w[:3] for w in wanted]
    alone = [fw.run(replace(e, validation=0)) for *_, e in wanted]
    assert digests(sweep.results) == digests(alone)
    assert len({r.summary["digest"] for r in alone if r.summary["method"] == "fedprox"}) > 6
    assert sweep.tested is None  # the points are the objective itself: there is nothing to hold out


def test_means_and_intervals_are_those_of_students_t(base):
    sweep = fw.sweep(["fedavg"], base, {"lr": LRS}, seeds=3)
    for row, lr in zip(sweep.summary, LRS, strict=True):
        values = [r.rounds["loss"][-1] for r, p in zip(sweep.results, sweep.points, strict=True) if p == {"lr": lr}]
        mean = math.fsum(values) / 3
        half = T2 * math.sqrt(math.fsum((v - mean) ** 2 for v in values) / 2) / math.sqrt(3)
        assert row["point"] == {"lr": lr}
        assert (row["seeds"], row["metric"]) == (3, "loss")
        np.testing.assert_allclose([row["mean"], row["low"], row["high"]], [mean, mean - half, mean + half], rtol=1e-10)
    one = fw.sweep(["fedavg"], base, {"lr": LRS[:1]}).summary[0]
    assert (one["low"], one["high"]) == (None, None)


def made(*runs):
    """Return a sweep of runs that are given by method, point and the accuracies of one seed."""
    return Sweep([fabricated(m, values) for m, _, values in runs], [point for _, point, _ in runs])


def test_the_best_point_has_the_best_mean_and_no_run_that_diverged():
    sweep = made(
        ("a", {"lr": 1}, [0.1, 0.6]), ("a", {"lr": 2}, [0.1, 0.7]), ("a", {"lr": 3}, [0.1, 0.99]),
        ("b", {"lr": 1}, [0.1]),
        ("a", {"lr": 1}, [0.1, 0.6]), ("a", {"lr": 2}, [0.1, 0.6]), ("a", {"lr": 3}, [0.9, np.nan]),
        ("b", {"lr": 1}, [np.nan]),
    )  # fmt: skip
    rows = {(row["method"], row["point"]["lr"]): row for row in sweep.summary}
    assert list(rows) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert [row["failed"] for row in rows.values()] == [0, 0, 1, 1]
    assert rows["a", 3]["mean"] is rows["a", 3]["low"] is None
    assert [where for where, row in rows.items() if row["best"]] == [("a", 2)]
    assert list(sweep.best) == ["a"]
    assert sweep.best["a"]["mean"] == pytest.approx(0.65)


def test_lower_is_better_where_the_task_says_so(base):
    sweep = fw.sweep(["fedavg"], base, {"lr": LRS})
    losses = [r.rounds["loss"][-1] for r in sweep.results]
    assert sweep.best["fedavg"]["point"] == {"lr": LRS[int(np.argmin(losses))]}


def test_points_are_judged_on_samples_held_out_of_the_training_data(tiny, digits):
    run = fw.run(tiny(rounds=2, validation=0.25))
    by_hand = fw.run(tiny(rounds=2, data=digits.split(0.25)))
    assert run.summary["digest"] == by_hand.summary["digest"]
    assert np.array_equal(run.rounds["accuracy"], by_hand.rounds["accuracy"])
    held = round(0.25 * len(digits))
    assert abs(sum(run.manifest["samples"]) - (len(digits) - held)) <= 1
    classes = np.bincount(digits.y) - np.bincount(digits.split(0.25).y)
    np.testing.assert_allclose(classes, 0.25 * np.bincount(digits.y), atol=1)
    assert fw.run(tiny(rounds=2, validation=0)).summary["digest"] == fw.run(tiny(rounds=2)).summary["digest"]


def test_the_best_points_are_tested_on_all_data_with_seeds_of_their_own(tiny, tmp_path):
    experiment, over = tiny(rounds=2), {"lr": [0.001, 0.1]}
    sweep = fw.sweep(["fedavg", "fedavgm"], experiment, over, seeds=2, out=tmp_path / "s")
    assert {r.experiment["validation"] for r in sweep.results} == {0.1}
    assert sorted({r.summary["seed"] for r in sweep.results}) == [0, 1]
    best = {m: row["point"]["lr"] for m, row in sweep.best.items()}
    assert best["fedavg"] == 0.1
    by_hand = [fw.compare([m], replace(experiment, lr=lr, seed=2), seeds=2).results for m, lr in best.items()]
    assert sweep.tested
    assert sorted(digests(sweep.tested.results)) == sorted(digests([r for several in by_hand for r in several]))
    values = [r.summary["accuracy"] for r in by_hand[0]]
    assert sweep.best["fedavg"]["test"]["mean"] == pytest.approx(np.mean(values))
    again = load_sweep(tmp_path / "s")
    assert (again.summary, again.best) == (sweep.summary, sweep.best)
    assert len(folders.runs_in(tmp_path / "s")) == 8 + 4
    runs = plan_sweep(["fedavg", "fedavgm"], experiment, over, 2).runs
    assert comparing.count_left(None, runs, swept=True) == 12
    assert comparing.count_left(tmp_path / "s", runs) == 0
    off = fw.sweep(["fedavg"], replace(experiment, validation=0), over)
    assert off.tested is None
    assert off.results[1].summary["digest"] == fw.run(replace(experiment, lr=0.1, method="fedavg")).summary["digest"]


def test_values_may_be_whatever_a_field_takes(base, digits):
    over = {
        "partition": ["iid", fw.partition.Dirichlet(clients=6, alpha=0.5)],
        "upload": [None, "topk:0.5"],
        "method.server": [fw.server.Descent(), fw.server.Yogi(lr=0.1)],
        "model": ["logistic", lambda: None],
    }
    methods = [fw.methods.fedavg(3)]
    places = grid_of(over, methods, replace(base, data=digits))
    assert len(places) == len({p.stem for p in places}) == 16
    assert [str(v) for v in places[-1].point.values()][:3] == [
        "Dirichlet(clients=6, alpha=0.5)",
        "topk:0.5",
        "Yogi(lr=0.1)",
    ]
    last = places[-1].experiment
    assert last.partition == fw.partition.Dirichlet(clients=6, alpha=0.5)
    assert last.upload == fw.upload.TopK(0.5)
    assert last.method.server == fw.server.Yogi(lr=0.1)
    tables = {"method.server": [{"type": "Yogi", "lr": 0.1}, {"type": "Descent"}], "per_round": [2]}
    found = grid_of(tables, methods, base)
    assert [p.experiment.method.server for p in found] == [fw.server.Yogi(lr=0.1), fw.server.Descent()]
    assert [p.stem for p in found] == ["fedavg-serverYogi_lr_0.1-per_round2", "fedavg-serverDescent-per_round2"]
    assert {p.experiment.method.sampler.per_round for p in found} == {2}
    part = grid_of({"partition": ["iid"], "partition.clients": [4, 9]}, methods, base)
    assert [p.experiment.partition for p in part] == [fw.partition.IID(clients=n) for n in (4, 9)]


def test_a_method_may_have_values_of_its_own(base):
    plan = plan_sweep(["fedavg", "fedprox"], base, {"fedavg:lr": [0.1], "fedprox:lr": [0.2, 0.3]})
    assert [(e.method.name, e.lr) for e in plan.runs.values()] == [("fedavg", 0.1), ("fedprox", 0.2), ("fedprox", 0.3)]
    assert list(plan.runs) == ["fedavg-lr0.1-seed0", "fedprox-lr0.2-seed0", "fedprox-lr0.3-seed0"]


def test_names_of_runs_are_safe_and_differ(base):
    values = ["a/b:c", "a b c", "../x", "A_B_C", "x" * 300, "x" * 301, "", -0.1, 0.1, 0.1 + 1e-12]
    methods = [fw.methods.fedavg(3)]
    names = [p.stem for p in grid_of({"data": ["digits", "mnist5k"]}, methods, base)]
    assert names == ["fedavg-datadigits", "fedavg-datamnist5k"]
    axis = replace(axes_of({"lr": [0.1]}, methods, base, [])[0], values=(0.1,) * len(values), labels=tuple(values))
    stems = [p.stem for p in places_of([axis], methods, base)]
    assert len({stem.lower() for stem in stems}) == len(values)
    assert all(stem.isascii() and not set(stem) & set("/\\: ") and len(stem) < 60 for stem in stems)
    many = {f"method.sampler.{n}": None for n in range(30)}
    wide = [replace(axis, path=path, values=(1,), labels=("y" * 32,)) for path in many]
    with pytest.raises(fw.BadInput, match=r"^fedavg-point1: Uniform has no field"):
        places_of(wide, methods, base)


WRONG = {
    "there is no field 'lrr'. Did you mean 'lr'?": {"lrr": [1]},
    "fedavg and fedyogi have no field 'method.solver.mu'. Sweep it for those that have it: fedprox:method.solver.mu": {
        "method.solver.mu": [0, 1]
    },
    "'fedpro' is no method of this sweep. Did you mean 'fedprox'?": {"fedpro:lr": [1]},
    "'lr' is swept twice for fedprox": {"lr": [1], "fedprox:lr": [2]},
    "'lr' is swept twice for fedavg": {"fedavg:method.lr": [1], "lr": [2]},
    "has 1 twice": {"lr": [1, 1.0]},
    "over 'lr' has 0.1 twice": {"lr": [0.1, 0.2, 0.1]},
    "over 'lr' takes a list of values. Got 0.1": {"lr": 0.1},
    "over 'lr' takes a list of values. Got []": {"lr": []},
    "'seed' cannot be swept, since every point runs with all seeds": {"seed": [1, 2]},
    "'workers' cannot be swept, since it changes no result": {"workers": [1, 2]},
    "fedavg-lr-1: The 'lr' parameter of Experiment must be greater than 0": {"lr": [-1, 0.1]},
    "fedavg-per_round9999-seed0: Uniform(per_round=9999) asks for more clients than there are": {
        "method.sampler.per_round": [5, 9999]
    },
    "A sweep needs fields and their values": {},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_misfits_are_found_before_anything_trains(sentence, base, tmp_path, monkeypatch):
    monkeypatch.setattr(comparing, "spread", lambda *_: pytest.fail("something was trained"))
    with pytest.raises(fw.BadInput) as e:
        fw.sweep(["fedavg", "fedprox", "fedyogi"], base, WRONG[sentence], out=tmp_path / "s")
    assert sentence in str(e.value)
    assert not (tmp_path / "s").exists()


def test_all_misfits_are_told_at_once(base):
    with pytest.raises(fw.BadInput) as e:
        fw.sweep(["fedavg", "fedprox"], base, {"lrr": [1], "method.solver.mu": [1], "seed": [1]})
    assert len(e.value.problems) == 3
    with pytest.raises(fw.BadInput) as e:
        fw.sweep(["fedavg"], base, {"lr": [-1, "fast", 0.1], "rounds": [0, 3]}, seeds=3)
    assert len(e.value.problems) == 3
    with pytest.raises(fw.BadInput) as e:
        fw.sweep(["fedavg"], replace(base, evaluate="train"), {"lr": [-1, 0.1], "lrr": [1]})
    assert len(e.value.problems) == 3
    with pytest.raises(fw.BadInput, match=r"one metric\. These have accuracy and loss"):
        fw.sweep(["fedavg"], fw.Experiment("fedavg", "digits"), {"task": ["classification", "regression"]})
    with pytest.raises(fw.BadInput, match="'evaluate' must include test"):
        fw.sweep(["fedavg"], replace(base, evaluate="train"), {"lr": [1]})


class Killed(BaseException):
    """Stands for a kill: nobody catches it."""


def struck(point, nth):
    """Return what kills when a point is passed for the n-th time."""
    passed = itertools.count(1)

    def strike(at):
        if at == point and next(passed) == nth:
            raise Killed

    return strike


# of four runs of the grid, and two of the best points
POINTS = [("compare: folder made", 1), ("compare: run finished", 3), ("recorded", 4), ("file renamed", 1)]
POINTS += [("compare: planned", 2), ("compare: folder made", 2), ("compare: run finished", 5)]


@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_a_killed_sweep_goes_on_to_the_same_numbers(point, nth, tiny, tmp_path, monkeypatch, undisturbed):
    grid, over = tiny(rounds=2), {"lr": [0.01, 0.1]}
    monkeypatch.setattr(crash_points, "strike", struck(point, nth))
    with pytest.raises(Killed):
        fw.sweep(["fedavg", "fedyogi"], grid, over, seeds=1, out=tmp_path / "s")
    monkeypatch.setattr(crash_points, "strike", None)
    begun = folders.is_comparison(tmp_path / "s")
    if begun and nth % 2:
        sweep = fw.resume_comparison(tmp_path / "s")
    else:
        sweep = fw.sweep(["fedavg", "fedyogi"], grid, over, seeds=1, out=tmp_path / "s")
    assert isinstance(sweep, Sweep)
    assert (sweep.summary, sweep.best) == (undisturbed.summary, undisturbed.best)
    assert digests(sweep.results) == digests(undisturbed.results)
    assert sweep.tested
    assert digests(sweep.tested.results) == digests(undisturbed.tested.results)


@pytest.fixture(scope="module")
def undisturbed(digits):
    from worlds import experiment

    return fw.sweep(["fedavg", "fedyogi"], experiment(rounds=2, data=digits), {"lr": [0.01, 0.1]})


@pytest.mark.parametrize("run", [2, 6])  # in the grid, and among the best points
def test_ctrl_c_names_the_sweep_and_finished_runs_are_only_read(run, tiny, tmp_path, undisturbed):
    arguments = (["fedavg", "fedyogi"], tiny(rounds=2), {"lr": [0.01, 0.1]})
    with pytest.raises(fw.Interrupted) as stopped:
        fw.sweep(*arguments, out=tmp_path / "s", callbacks=StopAfter(1, run))
    assert stopped.value.folder == tmp_path / "s"
    some = load_sweep(tmp_path / "s")
    assert sum(row["unfinished"] for row in some.summary) == (run == 2)
    trained = []
    again = fw.sweep(*arguments, out=tmp_path / "s", callbacks=lambda row: trained.append(row["round"]))
    assert len(trained) == (1 + 2 * 4 if run == 2 else 1)
    assert again.best == undisturbed.best
    assert fw.sweep(*arguments, out=tmp_path / "s", callbacks=lambda row: pytest.fail("trained")).best == again.best
    with pytest.raises(fw.BadInput, match="holds another sweep, which differs in its runs"):
        fw.sweep(arguments[0], arguments[1], {"lr": [0.01, 0.2]}, out=tmp_path / "s")


@pytest.mark.parametrize("where", ["chosen", "tried", "planned", "in memory"])
def test_ctrl_c_between_grid_and_tests_has_the_grid(where, tiny, tmp_path, monkeypatch, undisturbed):
    """While points are chosen, while their runs are made ready, or before these are written down."""
    passed, tried = itertools.count(1), comparing.prepare

    def stop(*_):
        raise KeyboardInterrupt

    if where == "tried":
        monkeypatch.setattr(comparing, "prepare", lambda *a: stop() if next(passed) > 4 else tried(*a))
    elif where == "planned":
        monkeypatch.setattr(
            crash_points, "strike", lambda at: stop() if at == "compare: planned" and next(passed) > 1 else None
        )
    else:
        monkeypatch.setattr(sweeping, "_tests", stop)
    out = None if where == "in memory" else tmp_path / "s"
    with pytest.raises(fw.Interrupted) as stopped:
        fw.sweep(["fedavg", "fedyogi"], tiny(rounds=2), {"lr": [0.01, 0.1]}, out=out)
    assert stopped.value.folder == out
    assert stopped.value.result.summary == undisturbed.summary
    assert stopped.value.result.tested is None


def test_a_plan_must_have_a_point_for_every_run(undisturbed, base, tmp_path):
    Plan({"a-seed0": base}, {"a-seed0": {"lr": 0.05}}).run(tmp_path / "s")
    content = json.loads((tmp_path / "s" / "compare.json").read_text())
    for points in ({}, {"b": {}}, {"a-seed0": {"lr": [1]}}, {"a-seed0": {"lr": 10**400}}, {"a-seed0": {"\x1b": 1}}):
        (tmp_path / "s" / "compare.json").write_text(json.dumps({**content, "points": points}))
        with pytest.raises(fw.BadInput, match=r"compare\.json.* cannot be read"):
            load_sweep(tmp_path / "s")


def test_points_are_one_table(undisturbed):
    frame = undisturbed.to_pandas(points=True)
    assert list(frame.columns[:3]) == ["method", "lr", "metric"]
    assert frame["mean"].tolist() == [row["mean"] for row in undisturbed.summary]
    assert frame["lr"].tolist() == [row["point"]["lr"] for row in undisturbed.summary]
    assert frame.groupby("method")["best"].sum().tolist() == [1] * frame["method"].nunique()


def test_rows_of_all_runs_are_one_table(undisturbed, base):
    frame = undisturbed.to_pandas()
    assert list(frame.columns[:4]) == ["method", "seed", "lr", "round"]
    assert len(frame) == 4 * 2
    for result, point in zip(undisturbed.results, undisturbed.points, strict=True):
        mine = frame[(frame["method"] == result.summary["method"]) & (frame["lr"] == point["lr"])]
        assert mine["accuracy"].tolist() == result.rounds["accuracy"].tolist()
    other = fw.sweep(["fedavg", "fedprox"], base, {"fedprox:method.solver.mu": MUS}).to_pandas()
    assert other.groupby("method")["method.solver.mu"].unique().map(list).to_dict()["fedprox"] == MUS
    assert other[other["method"] == "fedavg"]["method.solver.mu"].isna().all()
    compared = fw.compare(["fedavg", "fedexp"], base, seeds=2).to_pandas()  # fedexp measures more
    assert compared.groupby(["method", "seed"]).size().to_dict() == dict.fromkeys(
        itertools.product(("fedavg", "fedexp"), (0, 1)), 3
    )


def test_a_point_at_which_every_update_is_refused_is_not_the_best():
    """Its model is the one it began with, which may look better than one that was trained too fast."""
    sweep = fw.sweep(["fedavg"], fw.Experiment("fedavg", "quadratics", rounds=2, steps=30), {"lr": [0.1, 1e38]})
    tried, refused = sweep.summary
    assert (tried["best"], refused["best"], refused["failed"]) == (True, False, 1)


def test_early_ends_are_told(tiny):
    sweep = fw.sweep(["fedavg"], tiny(rounds=4, target=0.0, stop_at_target=True), {"lr": [0.01, 0.1]}, seeds=2)
    assert [row["ended_early"] for row in sweep.summary] == [2, 2]
    assert sweep.best["fedavg"]["test"]["ended_early"] == 2
    shown = [table.caption for table in report.sweep_tables(sweep)]
    assert shown[0].startswith("4 of 4 runs ended at the target or by patience")
