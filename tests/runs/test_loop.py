"""Runs are the same bits whatever interrupts them, and what cannot run is refused before anything is written."""

import itertools
import json
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import fedweave as fw
from fedweave import methods
from fedweave.engine.machine import processor, processor_name
from fedweave.report import terminal_table
from fedweave.runs import session
from fedweave.runs.compare import resume_comparison
from fedweave.runs.method_names import method_names
from fedweave.runs.results import summarise, to_target
from fedweave.store import run_folder, schema
from interrupt import StopAfter

METHODS = list(method_names())


def assert_same(a, b):
    """Equal in every bit, but for the time it took."""
    assert a.summary["digest"] == b.summary["digest"]
    assert a.x.tobytes() == b.x.tobytes()
    assert {name: value.tobytes() for name, value in a.best.items()} == {n: v.tobytes() for n, v in b.best.items()}
    ours, theirs = a.state_dict(which="best"), b.state_dict(which="best")
    assert set(ours) == set(theirs)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    for ours, theirs in ((a.rounds, b.rounds), (a.clients, b.clients)):
        assert set(ours) == set(theirs)
        for name in set(ours) - {"wall_seconds"}:
            assert np.array_equal(ours[name], theirs[name], equal_nan=True), name


@pytest.mark.parametrize("name", METHODS)
def test_interrupted_and_resumed_is_uninterrupted(name, tiny, tmp_path):
    experiment = tiny(getattr(methods, name)(3))
    whole = fw.run(experiment)
    with pytest.raises(fw.Interrupted) as stopped:
        fw.run(experiment, tmp_path / "run", StopAfter(4))
    assert (stopped.value.folder, stopped.value.round) == (tmp_path / "run", 4)
    half = fw.load_result(tmp_path / "run")
    assert half.rounds["round"].tolist() == [1, 2, 3, 4]
    assert half.summary["digest"] != whole.summary["digest"]
    resumed = fw.resume(tmp_path / "run")
    assert_same(resumed, whole)
    assert_same(fw.load_result(tmp_path / "run"), whole)
    assert (np.diff(resumed.rounds["wall_seconds"]) > 0).all()


@pytest.mark.parametrize("name", ["fedvarp", "fedvarp_reuse", "scaffold", "feddyn", "focus", "fedawe"])
@pytest.mark.parametrize(("tables", "later"), [("disk", "disk"), ("disk", "ram"), ("ram", "disk")])
def test_where_tables_are_kept_changes_no_bit(name, tables, later, tiny, tmp_path):
    experiment = tiny(getattr(methods, name)(3))
    whole = fw.run(experiment)
    assert_same(fw.run(replace(experiment, tables="disk")), whole)
    with pytest.raises(fw.Interrupted):
        fw.run(replace(experiment, tables=tables), tmp_path / "run", StopAfter(4))
    assert_same(fw.resume(tmp_path / "run", replace(experiment, tables=later)), whole)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_halved_precision_is_close_and_resumes(precision, tiny, tmp_path):
    method = fw.Method(fw.sample.Uniform(3), aggregator=fw.aggregate.Varp(precision=precision))
    whole, exact = fw.run(tiny(method)), fw.run(tiny(methods.fedvarp(3)))
    with pytest.raises(fw.Interrupted):
        fw.run(tiny(method), tmp_path / "run", StopAfter(4))
    assert_same(fw.resume(tmp_path / "run"), whole)
    moved = np.linalg.norm(exact.x - fw.run(tiny(methods.fedvarp(3), lr=1e-30)).x)
    assert 0 < np.linalg.norm(whole.x - exact.x) < 0.01 * moved


def test_interrupted_in_every_round_is_uninterrupted(tiny, tmp_path):
    experiment = tiny(methods.fedadam(3), rounds=3)
    with pytest.raises(fw.Interrupted):
        fw.run(experiment, tmp_path / "run", StopAfter(1))
    with pytest.raises(fw.Interrupted):
        fw.resume(tmp_path / "run", callbacks=StopAfter(2))
    assert_same(fw.resume(tmp_path / "run"), fw.run(experiment))


@pytest.mark.parametrize(
    ("owner", "where"), [(run_folder.RunFolder, "add"), (run_folder.RunFolder, "save"), (schema, "insert_rows")]
)
def test_a_signal_while_a_round_is_stored_loses_nothing(owner, where, tiny, tmp_path, monkeypatch):
    """Ctrl-C may strike between any two statements: here after the rows are written and before the state is taken."""
    whole, real, calls = fw.run(tiny()), getattr(owner, where), itertools.count(1)

    def struck(*args, **kwargs):
        real(*args, **kwargs)
        if next(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(owner, where, struck)
    with pytest.raises(fw.Interrupted) as stopped:
        fw.run(tiny(), tmp_path / "run")
    half = fw.load_result(tmp_path / "run")
    assert half.rounds["round"].size == stopped.value.round
    assert set(half.clients["round"]) == set(range(1, stopped.value.round + 1))
    assert_same(fw.resume(tmp_path / "run"), whole)


PROGRAM = """
import fedweave.store.run_folder as f
from fedweave.cli.app import main

f.SAVE_SECONDS, f.SAVE_SHARE = 0, 1
main()
"""


def test_a_killed_program_is_continued_bit_for_bit(tiny, tmp_path):
    """kill -9 while states are being written as fast as they can."""
    options = (
        "--data digits --partition dirichlet:0.5 --clients 6 --per-round 3 --system dynamic --rounds 120 --tables disk"
    )
    command = [sys.executable, "-c", PROGRAM, "run", "scaffold", *options.split(), "--workers", "1", "--out", "run"]
    program = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    states, deadline = [], time.monotonic() + 60
    while not any(p.stem >= "state-000007" for p in states) and time.monotonic() < deadline:
        time.sleep(0.003)
        states = list((tmp_path / "run").glob("state-*.safetensors"))
    program.kill()
    assert program.wait() == -signal.SIGKILL, program.stderr.read()
    left = fw.load_result(tmp_path / "run").rounds["round"]
    assert 6 <= left.size < 120
    assert left.tolist() == list(range(1, left.size + 1))
    assert_same(fw.resume(tmp_path / "run"), fw.run(tiny(methods.scaffold(3), rounds=120, system=fw.system.Dynamic())))


def test_resuming_a_finished_run_changes_nothing(tiny, tmp_path):
    done = fw.run(tiny(), tmp_path / "run")
    again = fw.resume(tmp_path / "run")
    assert_same(again, done)
    assert again.summary == done.summary
    assert np.array_equal(again.rounds["wall_seconds"], done.rounds["wall_seconds"])
    assert again.manifest == json.loads(json.dumps(done.manifest))


def test_a_seed_is_the_result(tiny):
    digests = [fw.run(tiny(seed=s, rounds=2)).summary["digest"] for s in (0, 1, 2, 0)]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


class Noisy(nn.Module):
    """Draws random numbers whenever it computes, also when it is measured."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.linear(x + torch.randn_like(x))


@pytest.mark.parametrize("model", ["mlp", Noisy])
@pytest.mark.parametrize("name", ["fedavg", "power_of_choice", "fedis", "feddelta"])
def test_global_random_states_do_not_matter(name, model, tiny):
    """Nor does the order of probes: layers that draw do so at the address of what is measured."""
    experiment = tiny(getattr(methods, name)(3), model=model, rounds=2)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - the point is that nobody reads it
    here = fw.run(experiment)
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    mark = torch.random.get_rng_state()
    assert_same(fw.run(experiment), here)
    assert torch.equal(torch.random.get_rng_state(), mark)


def test_rows_add_up(tiny):
    """The clock is the sum over rounds of the slowest asked client; bytes are counted whether answers arrive or not."""
    result = fw.run(tiny())
    rounds, clients = result.rounds, result.clients
    of = [clients["round"] == r for r in rounds["round"]]
    assert rounds["asked"].tolist() == [m.sum() for m in of] == [3] * 6
    assert rounds["received"].tolist() == [clients["received"][m].sum() for m in of]
    assert 0 < rounds["received"].sum() < 18, "a world with losses, but not only"
    assert rounds["seconds"] == pytest.approx([clients["seconds"][m].max() for m in of])
    assert rounds["clock"] == pytest.approx(np.cumsum(rounds["seconds"]))
    assert rounds["device_seconds"] == pytest.approx([clients["seconds"][m].sum() for m in of])
    size = 4 * 650  # logistic regression on 64 pixels and 10 classes, in float32
    assert result.x.nbytes == size
    assert rounds["bytes_up"].tolist() == [3 * size * r for r in range(1, 7)]
    assert rounds["bytes_down"].tolist() == rounds["bytes_up"].tolist()
    assert np.isnan(clients["loss"]).tolist() == (clients["received"] == 0).tolist()
    assert (clients["expected"] == 0.5).all()
    assert clients["client"][clients["received"]].size == rounds["received"].sum(), "a mask, as replies.received is"


def test_evaluation_is_due_every_so_often_and_at_the_end(tiny):
    every, third = fw.run(tiny(rounds=7)), fw.run(tiny(rounds=7, evaluate_every=3))
    due = np.isin(third.rounds["round"], [3, 6, 7])
    for name in ("accuracy", "loss", "class_accuracy"):
        assert np.array_equal(third.rounds[name][due], every.rounds[name][due])
        assert np.isnan(third.rounds[name][~due]).all()
    assert third.summary["digest"] == every.summary["digest"]


def test_accuracy_is_the_weighted_mean_over_classes(tiny, digits):
    rounds = fw.run(tiny()).rounds
    share = np.bincount(digits.test_y) / digits.test_y.size
    assert rounds["accuracy"] == pytest.approx(rounds["class_accuracy"] @ share)


@pytest.mark.parametrize(
    "method",
    [methods.fedprox(3, mu=0), methods.fedavgm(3, beta=0), replace(methods.fedavg(3), server=fw.server.Descent(1.0))],
    ids=["prox(mu=0)", "momentum(beta=0)", "descent(1)"],
)
def test_methods_that_reduce_to_fedavg_are_fedavg_bit_for_bit(method, tiny):
    assert_same(fw.run(tiny(method)), fw.run(tiny(methods.fedavg(3))))


def test_updates_that_are_not_finite_are_refused_and_move_nothing(tiny):
    result = fw.run(tiny(lr=1e38, rounds=2, system=fw.system.Dynamic()))
    start = fw.run(tiny(lr=1e-30, rounds=1))
    assert result.summary["refused"] == result.rounds["refused"].sum() > 0
    assert result.rounds["received"].tolist() == [0, 0]
    assert np.allclose(result.x, start.x)


def test_a_run_that_diverged_says_so_once_with_its_reason(tiny, capfd):
    with pytest.warns(UserWarning, match="^fedavg-seed0: training diverged, best accuracy .* at round 1: lower the"):
        result = fw.run(tiny(lr=1e38, rounds=3, system=fw.system.Uniform()), progress=True)
    assert (result.summary["diverged"], result.summary["refused_rounds"]) == (True, 3)
    said = [line for line in capfd.readouterr().err.splitlines() if "refused" in line]
    assert "fedavg-seed0, round 1: refused 3 updates: " in said[0]
    assert said[0].endswith("(a lower learning rate may help)")
    assert said[1:] == ["fedavg-seed0: updates were refused in 3 rounds"]
    assert "1 of 1 of fedavg (best" in (caption := str(terminal_table([result]).caption))
    assert "updates were refused in 3 of 3 rounds" in caption


@pytest.mark.parametrize(
    ("loss", "received", "found"), [(0.7, 2, False), (0.7, 0, True), (np.nan, 2, True), (np.inf, 2, True)]
)
def test_a_last_model_without_a_finite_loss_has_diverged(loss, received, found):
    """Also where some updates were still finite: nobody can use the model that they made."""
    rows = COLUMNS | {"loss": np.array([2, np.nan, 1, 0.5, loss]), "refused": np.array([0, 0, 0, 1, 1])}
    assert summarise(rows | {"received": np.array([3, 3, 3, 2, received])}, None)["diverged"] == found


def own_data(digits, name="own"):
    return fw.data.from_arrays(digits.x[:300], digits.y[:300], digits.test_x[:50], digits.test_y[:50], name=name)


def own_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 10))


def test_own_arrays_and_own_modules_run_and_resume_in_python(tiny, digits, tmp_path):
    experiment = tiny(data=own_data(digits), model=own_model, rounds=4)
    whole = fw.run(experiment)
    assert whole.manifest["model"]["parameters"] == 64 * 8 + 8 + 8 * 10 + 10
    with pytest.raises(fw.Interrupted):
        fw.run(experiment, tmp_path / "run", StopAfter(2))
    with pytest.raises(fw.BadInput, match="resume it there"):
        fw.resume(tmp_path / "run")
    assert_same(fw.resume(tmp_path / "run", experiment), whole)


def test_changed_data_is_not_resumed(tiny, digits, tmp_path):
    data = own_data(digits)
    with pytest.raises(fw.Interrupted):
        fw.run(tiny(data=data), tmp_path / "run", StopAfter(2))
    y = data.y.copy()
    y[7] = (y[7] + 1) % 10
    with pytest.raises(
        fw.BadInput, match=r"data has changed since this run began: digest \(\"\w+\" then, \"\w+\" now\)"
    ):
        fw.resume(tmp_path / "run", tiny(data=replace(data, y=y)))
    assert fw.resume(tmp_path / "run", tiny(data=data)).summary["rounds"] == 6


EDITS = {"lr": 0.3, "seed": 7, "rounds": 9, "batch_size": 5, "weights": "equal", "evaluate_every": 2}


def test_every_edited_setting_of_a_run_is_named_with_both_values(tiny, tmp_path):
    """experiment.json is a text file; who edits it and resumes would get the rounds of two experiments as one."""
    with pytest.raises(fw.Interrupted):
        fw.run(tiny(data="digits"), tmp_path / "run", StopAfter(2))
    file = tmp_path / "run" / "experiment.json"
    began, kept = json.loads(file.read_text()), file.read_bytes()
    other = json.loads(kept) | EDITS
    other["partition"]["clients"] = 8
    other["method"]["sampler"]["per_round"] = 2
    file.write_text(json.dumps(other))
    with pytest.raises(fw.BadInput) as refused:
        fw.resume(tmp_path / "run")
    for name, value in EDITS.items():
        assert f"{name} ({json.dumps(began[name])} then, {json.dumps(value)} now)" in str(refused.value)
    assert "partition.clients (6 then, 8 now)" in str(refused.value)
    assert "method.sampler.per_round (3 then, 2 now)" in str(refused.value)
    assert str(refused.value).count(" then, ") == len(EDITS) + 2
    file.write_text(json.dumps(json.loads(kept) | {"workers": 2, "tables": "disk"}))  # which change no bit
    assert_same(fw.resume(tmp_path / "run"), fw.run(tiny(data="digits")))


def test_an_edited_comparison_is_not_continued(tiny, tmp_path):
    with pytest.raises(fw.Interrupted):
        fw.compare(SHARING[:2], tiny(data="digits", rounds=3), 1, tmp_path / "c", StopAfter(2))
    file = tmp_path / "c" / "compare.json"
    kept = file.read_text()
    file.write_text(kept.replace('"lr": 0.05', '"lr": 0.5'))
    assert file.read_text() != kept
    with pytest.raises(fw.BadInput, match=r"lr \(0.05 then, 0.5 now\)"):
        resume_comparison(tmp_path / "c")


@pytest.mark.parametrize("fleet", [False, True], ids=["simulator", "flower"])
def test_another_release_does_not_continue_a_run_and_other_libraries_are_named(fleet, tiny, tmp_path, monkeypatch):
    experiment = tiny(data="digits")
    go_on = partial(fw.resume, tmp_path / "run")
    if fleet:
        pytest.importorskip("flwr")
        from flower import rehearsal

        experiment = rehearsal.experiment()
        go_on = partial(rehearsal.run, experiment, out=tmp_path / "run")
        with pytest.raises(fw.Interrupted):
            rehearsal.run(experiment, out=tmp_path / "run", callbacks=StopAfter(2))
    else:
        with pytest.raises(fw.Interrupted):
            fw.run(experiment, tmp_path / "run", StopAfter(2))
    where, real = ("fedweave.fleet.server.app" if fleet else "fedweave.runs.session"), session.versions()
    monkeypatch.setattr(f"{where}.versions", lambda: real | {"fedweave": "99.1.0"})
    with pytest.raises(fw.BadInput, match=rf"began with fedweave {real['fedweave']}, and this is 99.1.0"):
        go_on()
    monkeypatch.setattr(f"{where}.versions", lambda: real | {"numpy": "1.0"})
    with pytest.warns(UserWarning, match=rf'numpy \("{real["numpy"]}" then, "1.0" now\)'):
        assert go_on().summary["rounds"] == experiment.rounds


def test_another_processor_or_trainer_continues_a_run_and_is_named(tiny, tmp_path):
    whole = fw.run(tiny())
    with pytest.raises(fw.Interrupted):
        fw.run(tiny(), tmp_path / "run", StopAfter(2))
    file = tmp_path / "run" / "manifest.json"
    manifest = json.loads(file.read_text())
    assert manifest["processor"] == whole.manifest["processor"] == processor()
    assert manifest["trainer"] == "TorchTrainer with compiled kernels on cpu"
    here = re.escape(json.dumps(manifest["processor"]["vectors"]))
    manifest["processor"]["vectors"], manifest["trainer"] = "AVX1024", "AbacusTrainer"
    file.write_text(json.dumps(manifest))
    why = rf'processor\.vectors \("AVX1024" then, {here} now\); trainer \("AbacusTrainer" then, "Torch.* now\)'
    with pytest.warns(UserWarning, match=rf"another kind of processor .* the last bits may differ: {why}"):
        assert_same(fw.resume(tmp_path / "run", tiny()), whole)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("vendor_id\t: Genuine\nmodel name: Xeon\nmodel: 85\n\nmodel name: other\n", "Xeon, Genuine, model 85"),
        ("processor: 0\nBogoMIPS: 50\nCPU implementer: 0x41\nCPU part: 0xd0c\n", "implementer 0x41, part 0xd0c"),
        ("nonsense", platform.processor() or platform.machine()),
        (None, platform.processor() or platform.machine()),
    ],
)
def test_a_processor_is_named_as_the_system_names_it(said, name, tmp_path):
    if said is not None:
        (tmp_path / "cpuinfo").write_text(said)
    assert processor_name(tmp_path / "cpuinfo") == name


@pytest.mark.parametrize(
    "changes", [{"lr": 0.2}, {"seed": 1}, {"rounds": 9}, {"method": methods.fedprox(3)}], ids=" ".join
)
def test_another_experiment_does_not_continue_a_run(changes, tiny, tmp_path):
    with pytest.raises(fw.Interrupted):
        fw.run(tiny(), tmp_path / "run", StopAfter(2))
    with pytest.raises(fw.BadInput, match=f"differs from the one this run began with in {next(iter(changes))}"):
        fw.resume(tmp_path / "run", tiny(**changes))
    assert fw.resume(tmp_path / "run", tiny(workers="auto")).summary["rounds"] == 6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": methods.fedavg(7)}, r"Uniform\(per_round=7\) asks for more clients than there are: 6"),
        ({"model": "lenet5"}, r"Model 'lenet5' needs an image .* 12×12 or more"),
        ({"model": "linear_regression"}, "is for regression"),
        ({"model": lambda: nn.Linear(3, 10)}, "does not take samples of shape 1×8×8"),
        (
            {"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9))},
            r"must return \(2, 10\) .* returned \(2, 9\)",
        ),
        ({"model": lambda: 3}, "must be a name or make a torch module. It made 3"),
        ({"partition": fw.partition.IID(5000)}, "needs at least 5000 training samples"),
        ({"partition": fw.partition.Natural()}, "no natural clients"),
        ({"data": "digts"}, "Did you mean 'digits'?"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(changes, words, tiny, tmp_path):
    for start in (fw.run, lambda e, out: fw.compare([e.method], e, out=out)):
        with pytest.raises(fw.BadInput, match=words):
            start(tiny(**changes), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_trace_with_too_many_clients_is_refused_before_anything_is_written(tiny, tmp_path):
    (tmp_path / "t.csv").write_text("client,round,steps\n0,1,2\n6,5,2\n")
    with pytest.raises(fw.BadInput, match="client 6 is in the trace, but there are only 6"):
        fw.run(tiny(system=fw.system.Trace(tmp_path / "t.csv")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epochs": 1, "steps": 2}, "'epochs' and 'steps' exclude each other"),
        ({"model": "cnnsmall"}, "Did you mean 'cnn_small'?"),
        ({"lr": float("inf")}, "'lr' parameter of Experiment must be a finite number"),
        ({"rounds": 0}, "'rounds' parameter of Experiment must be greater than 0"),
        ({"round": 3}, "no parameter 'round'. Did you mean 'rounds'?"),
    ],
)
def test_an_experiment_is_checked_when_it_is_built(given, words, tiny):
    with pytest.raises(fw.BadInput, match=words):
        tiny(**given)


COLUMNS = {
    "round": np.array([1, 2, 3, 4, 5]),
    "clock": np.array([1.5, 3.0, 4.5, 6.0, 7.5]),
    "wall_seconds": np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
    "accuracy": np.array([0.2, np.nan, 0.7, 0.9, 0.6]),
    "loss": np.array([2.0, np.nan, 1.0, 0.5, 0.75]),
    "bytes_up": np.array([10, 20, 30, 40, 50]),
    "bytes_down": np.array([1, 2, 3, 4, 5]),
    "refused": np.array([0, 2, 0, 1, 0]),
    "abandoned": np.array([0, 0, 0, 1, 0]),
}


@pytest.mark.parametrize(
    ("target", "reached"),
    [
        *((0.1, (1, 1.5, 10, 11)), (0.7, (3, 4.5, 30, 33)), (0.71, (4, 6.0, 40, 44))),
        *((0.95, (None,) * 4), (None, (None,) * 4)),
    ],
)
def test_the_cost_of_a_target_is_up_to_its_first_reaching(target, reached):
    costs = ("rounds_to_target", "seconds_to_target", "bytes_to_target", "total_bytes_to_target")
    assert to_target(COLUMNS, target) == dict(zip(costs, reached, strict=True))


def test_the_summary_is_the_last_row_and_the_best():
    found = summarise(COLUMNS, 0.7)
    assert found == {
        "metric": "accuracy", "higher_is_better": True, "value": 0.6, "best": 0.9, "best_round": 4,
        "diverged": False, "refused_rounds": 2,
        "rounds": 5, "accuracy": 0.6, "best_accuracy": 0.9, "loss": 0.75, "rounds_to_target": 3,
        "seconds_to_target": 4.5, "bytes_to_target": 30, "total_bytes_to_target": 33,
        "simulated_seconds": 7.5, "wall_seconds": 0.5, "bytes_up": 50, "bytes_down": 5, "refused": 3, "abandoned": 1,
    }  # fmt: skip
    json.dumps(found)


def test_a_run_without_rounds_has_a_summary_and_a_name():
    empty = {c: v[:0] for c, v in COLUMNS.items()}
    found = summarise(empty, 0.7)
    assert (found["rounds"], found["accuracy"], found["simulated_seconds"]) == (0, None, 0)
    assert "fedavg" in repr(fw.Result({}, {}, empty, {}, {**found, "method": "fedavg", "run": None}))


def test_regression_runs_without_an_accuracy(tmp_path):
    data = fw.data.synthetic.regression(clients=4, samples=30)
    experiment = fw.Experiment(methods.fedavg(2), data, fw.partition.Natural(), rounds=3, lr=0.01, workers=1)
    result = fw.run(experiment, tmp_path / "run")
    assert result.summary["accuracy"] is None
    assert result.summary["loss"] == result.rounds["loss"][-1] > 0
    assert result.rounds["class_accuracy"].shape == (3, 0)
    assert "fedavg" in repr(result)


SHARING = [methods.fedavg(3), methods.fedprox(3), methods.fedyogi(3), methods.fedavg_is(3)]


def test_all_methods_of_a_comparison_meet_the_same_clients_and_worlds(tiny):
    comparison = fw.compare(SHARING, tiny(rounds=3), seeds=2)
    names = [(r.summary["method"], r.summary["seed"]) for r in comparison.results]
    assert names == [(m.name, seed) for seed in (0, 1) for m in SHARING]
    worlds = []
    for seed in (0, 1):
        same = [r for r in comparison.results if r.summary["seed"] == seed]
        assert all(r.manifest["labels"] == same[0].manifest["labels"] for r in same)
        for field in ("round", "client", "steps", "seconds", "received"):
            assert all(np.array_equal(r.clients[field], same[0].clients[field]) for r in same[:3]), field
        rows = [
            dict(zip(zip(r.clients["round"], r.clients["client"], strict=True), r.clients["steps"], strict=True))
            for r in same
        ]
        shared = rows[0].keys() & rows[3].keys()
        assert shared, "another sampler meets some of the same clients"
        assert all(rows[0][k] == rows[3][k] for k in shared)
        assert len({r.summary["digest"] for r in same}) == len(same)
        worlds.append((same[0].manifest["labels"], same[0].clients["steps"].tolist()))
    assert worlds[0][0] != worlds[1][0]
    assert worlds[0][1] != worlds[1][1]
    assert [row["method"] for row in comparison.summary] == [m.name for m in SHARING]


def test_an_interrupted_comparison_is_continued_bit_for_bit(tiny, tmp_path):
    experiment, two = tiny(rounds=3), SHARING[:2]
    whole = fw.compare(two, experiment, 2, tmp_path / "whole")
    with pytest.raises(fw.Interrupted) as stopped:
        fw.compare(two, experiment, 2, tmp_path / "cut", StopAfter(2, run=3))
    assert stopped.value.folder == tmp_path / "cut", "the comparison is continued, not one run of it"
    assert not (tmp_path / "cut" / "fedprox-seed1").exists()
    resumed = resume_comparison(tmp_path / "cut")
    for a, b in zip(resumed.results, whole.results, strict=True):
        assert_same(a, b)
        assert_same(fw.load_result(a.folder), b)
    assert [r.folder.name for r in resumed.results] == [
        "fedavg-seed0", "fedprox-seed0", "fedavg-seed1", "fedprox-seed1",
    ]  # fmt: skip


def test_two_methods_of_one_name_cannot_be_compared(tiny, tmp_path):
    with pytest.raises(fw.BadInput, match="Two methods of a comparison are called 'fedavg'"):
        fw.compare([methods.fedavg(2), methods.fedavg(3)], tiny(), out=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_run_in_memory_leaves_nothing(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = fw.run(tiny(rounds=1))
    assert result.folder is None
    assert result.summary["run"] is None
    assert not list(tmp_path.iterdir())
    with pytest.raises(fw.Interrupted) as stopped:
        fw.run(tiny(), callbacks=StopAfter(1))
    assert stopped.value.folder is None


def test_a_round_in_which_all_answers_are_refused_is_abandoned(tiny, monkeypatch):
    """The model stays, and so does what a server's momentum remembers; the refusals are booked."""
    from fedweave.engine.simulator import Simulator

    real = Simulator.train

    def spoilt(self, assignment):
        replies = real(self, assignment)
        return replies._replace(updates=replies.updates * np.float32(np.nan)) if assignment.round in (3, 4) else replies

    monkeypatch.setattr(Simulator, "train", spoilt)
    with pytest.warns(UserWarning, match="^fedavgm-seed0: 2 of 5 rounds were abandoned and changed nothing; the last"):
        result = fw.run(tiny(methods.fedavgm(3), rounds=5))
    assert "2 of 5 rounds were abandoned" in str(terminal_table([result]).caption)
    heard = result.rounds["received"]
    assert heard[[2, 3]].tolist() == [0, 0]
    assert result.rounds["loss"][2] == result.rounds["loss"][1]
    assert result.rounds["loss"][3] == result.rounds["loss"][1]
    assert result.rounds["loss"][4] != result.rounds["loss"][1]
    assert (result.rounds["refused"][[2, 3]] >= 1).all()
    assert result.rounds["abandoned"].tolist() == [0, 0, 1, 1, 0]


def test_a_comparison_is_given_more_seeds_bit_for_bit(tiny, tmp_path):
    two, rows = SHARING[:2], list[dict]()
    fw.compare(two, tiny(rounds=2), 1, tmp_path / "c", command="fedweave compare fedavg fedprox --seeds 1 -q")
    with pytest.raises(
        fw.BadInput, match=r"differs in seeds \(1 there, 3 asked\)\. `fedweave resume \S+ --seeds 3` adds"
    ):
        fw.compare(two, tiny(rounds=2), 3, tmp_path / "c")
    with pytest.raises(
        fw.BadInput, match=r"differs in lr \(0.05 then, 0.2 now\)\. `fedweave resume \S+` continues that"
    ):
        fw.compare(two, tiny(rounds=2, lr=0.2), 1, tmp_path / "c")
    more = resume_comparison(tmp_path / "c", rows.append, seeds=3)
    assert len(rows) == 8, "four runs of two rounds: the others are only read"
    at_once = fw.compare(two, tiny(rounds=2), 3, tmp_path / "whole")
    for one, other in zip(more.results, at_once.results, strict=True):
        assert_same(one, other)
    plans = [json.loads((tmp_path / name / "compare.json").read_text()) for name in ("c", "whole")]
    assert list(plans[0]["runs"].items()) == list(plans[1]["runs"].items())
    assert plans[0]["command"] == "fedweave compare fedavg fedprox -q --seeds 3"
    with pytest.raises(fw.BadInput, match=r"has 3 seeds, so 'seeds' must be a whole number of at least 3\. Got 2"):
        resume_comparison(tmp_path / "c", seeds=2)
    with pytest.raises(fw.BadInput, match=r"a whole number of at least 3\. Got 7\.0"):
        resume_comparison(tmp_path / "c", seeds=7.0)


def test_what_a_killed_comparison_left_is_used_by_the_next(tiny, tmp_path):
    """The kill came before its plan had its name."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / ".compare.json.tmp").touch()
    assert len(fw.compare(SHARING[:1], tiny(rounds=1), out=tmp_path / "c").results) == 1
    assert not (tmp_path / "c" / ".compare.json.tmp").exists()
