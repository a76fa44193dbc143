"""An Experiment takes parts, or text as on the command line; stored ones are whole, and those of 0.1 are read."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave.core.roles import System
from fedweave.data.partition import Partition
from fedweave.report import write
from fedweave.runs.compare import resume_comparison
from fedweave.runs.plain import from_plain, to_plain
from fedweave.store.export import write_tables
from fedweave.system import names as systems

OLD = {"pool": "engine", "max_length_ratio": "longest", "min_answers": "fewest"}


def test_texts_stand_for_parts_and_the_whole_description_is_stored(tmp_path):
    (tmp_path / "t.csv").write_text("client,steps\n0,2\n")
    written = fw.Experiment(method="fedacs", data="digits", partition="classes:2-5", system="dynamic", submodels=())
    parts = fw.Experiment(fw.methods.fedacs(5), "digits", fw.partition.Classes(20, 2, 5), system=fw.system.Dynamic())
    assert written == parts
    plain = json.loads(json.dumps(to_plain(written)))
    assert plain == json.loads(json.dumps(to_plain(parts)))
    assert (plain["method"]["sampler"]["type"], plain["partition"]["type"], plain["system"]["type"]) == (
        "ACS", "Classes", "Dynamic",
    )  # fmt: skip
    assert from_plain(plain) == parts
    trace = fw.Experiment("fedavg", system=str(tmp_path / "t.csv")).system
    assert trace == fw.system.Trace(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "fedacss"}, "There is no method 'fedacss'. Did you mean 'fedacs'?"),
        ({"method": fw.methods.fedavg}, "'method' parameter of Experiment must be a Method, or text such as 'fedacs'"),
        ({"partition": "dirichle:1"}, "Did you mean 'dirichlet'?"),
        ({"partition": 3}, "'partition' parameter of Experiment must be a Partition, or text such as"),
        ({"system": "dynamc"}, "Did you mean 'dynamic'?"),
        ({"data": "digts"}, "Did you mean 'digits'?"),
        (
            {"submodels": "half"},
            r"'submodels' parameter of Experiment must be shares in \(0, 1\] or models. Got 'half'",
        ),
    ],
)
def test_a_text_that_means_nothing_is_refused(given, words):
    with pytest.raises(fw.BadInput, match=words.replace("?", r"\?")):
        fw.Experiment(**{"method": "fedavg", **given})


def test_everything_wrong_is_told_at_once():
    with pytest.raises(fw.BadInput) as caught:
        fw.Experiment("fedacss", "digts", "dirichle:1", "cnnsmall", "dynamc", 0)
    assert len(caught.value.problems) == 6
    with pytest.raises(fw.BadInput) as caught:
        fw.Experiment("fedavg", epochs=1, steps=1, pool="ray", device="cuda")
    assert len(caught.value.problems) == 2


def test_a_comparison_takes_names(tiny):
    found = fw.compare(["fedavg", fw.methods.fedprox(3)], tiny(rounds=2))
    assert [r.summary["method"] for r in found.results] == ["fedavg", "fedprox"]
    assert found.results[0].experiment["method"]["sampler"]["per_round"] == 5
    with pytest.raises(fw.BadInput, match="no method 'fedprx'"):
        fw.compare(["fedprx"], tiny())


def as_of_0_1(path, *keys):
    """Rewrite the experiment in a JSON file, found under ``keys``, with the names of the first release."""
    content = json.loads(path.read_text())
    inner = content
    for key in keys:
        inner = inner[key]
    for new, old in OLD.items():
        inner[old] = inner.pop(new)
    path.write_text(json.dumps(content))


def test_a_run_of_the_first_release_is_read_but_not_continued(tiny, tmp_path):
    experiment = tiny(data="digits", rounds=2)
    digest = fw.run(experiment, tmp_path / "run").summary["digest"]
    as_of_0_1(tmp_path / "run" / "experiment.json")
    as_of_0_1(tmp_path / "run" / "manifest.json", "experiment")
    read = fw.load_result(tmp_path / "run")
    assert read.summary["digest"] == digest
    assert write([read], tmp_path / "page.html").stat().st_size > 1000
    assert all(path.is_file() for path in write_tables(read.folder, read.rounds, read.clients, "csv"))
    for given in (None, experiment):
        with pytest.raises(fw.BadInput, match="has no 'engine', 'longest', 'fewest'") as caught:
            fw.resume(tmp_path / "run", given)
        assert len(caught.value.problems) == 1


def test_a_comparison_of_the_first_release_is_not_continued(tiny, tmp_path):
    fw.compare(["fedavg"], tiny(data="digits", rounds=1), out=tmp_path / "c")
    as_of_0_1(tmp_path / "c" / "compare.json", "runs", "fedavg-seed0")
    with pytest.raises(fw.BadInput, match="Another version of fedweave began this run"):
        resume_comparison(tmp_path / "c")


POINTS = fw.data.from_arrays(np.arange(120.0).reshape(60, 2) / 120, np.arange(60) % 3)


def small(**changes):
    """Return an experiment on sixty points that takes milliseconds."""
    settings = {"data": POINTS, "partition": "iid", "rounds": 1, "workers": 1}
    return fw.Experiment(**{"method": "fedavg", **settings, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 1e300}, r"'lr' parameter of Experiment must be less than or equal to 1e\+38\. Got 1e\+300"),
        ({"steps": 10**9}, "'steps' parameter of Experiment must be less than or equal to 1000000"),
        ({"epochs": 1e300}, r"'epochs' parameter of Experiment must be less than or equal to 1000000\. Got 1e\+300"),
        ({"epochs": 1e6, "batch_size": 1}, r"At most 1000000 local steps .* 1e\+06 epochs over 3 samples"),
        (
            {"method": lambda: fw.Method(fw.sample.Uniform(3), fw.solvers.Prox(1e300))},
            r"'mu' parameter of Prox .* 1e\+38",
        ),
        (
            {"method": lambda: fw.Method(fw.sample.Uniform(3), fw.solvers.SGD(weight_decay=1e300))},
            "'weight_decay' parameter of SGD must be",
        ),
        ({"batch_size": 1, "system": fw.system.Dynamic(unit="epochs", fast_work=(10**6, 10**6))}, "At most 1000000"),
        ({"system": fw.system.Static(work=(1, 10**8))}, "Static.population must return 'steps' from 1 to 1000000"),
    ],
)
def test_work_that_no_client_could_do_is_refused_before_training(changes, words, tmp_path):
    with pytest.raises(fw.BadInput, match=words) as error:
        fw.run(small(**{k: v() if callable(v) else v for k, v in changes.items()}), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_target_is_a_value_of_the_primary_metric():
    line = fw.data.from_arrays(POINTS.x, np.linspace(0, 1, len(POINTS.x)))
    found = fw.run(small(data=line, target=1e6))  # of the loss, where lower is better
    assert found.summary["rounds_to_target"] == 1
    assert fw.run(small(data=line, target=1e-9)).summary["rounds_to_target"] is None
    with pytest.raises(fw.BadInput, match=r"The target is a test accuracy, from 0 to 1. Got 90"):
        fw.run(small(target=90))


SYSTEMS = {name: make() for name, (make, _) in systems.SYSTEMS.items()}


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_a_world_replaces_what_it_says_it_replaces(system):
    base = replace(worlds.equal_clients(6, samples=40, steps=4, batch_size=5), model_bytes=np.full(6, 100))
    for name in ("steps", "batch_size"):
        other = replace(base, **{name: getattr(base, name) + 3})
        same = [np.array_equal(getattr(system.population(p, 2, 0), name), getattr(p, name)) for p in (base, other)]
        assert all(same) == (name not in system.replaces), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"system": "dynamic", "epochs": 2}, "'epochs' has no effect under Dynamic"),
        ({"system": "static", "steps": 2}, "'steps' has no effect under Static"),
        ({"system": "hybrid+", "epochs": 2}, "'epochs' has no effect under HybridPlus"),
        ({"system": "hybrid+", "batch_size": 7}, "'batch_size' has no effect under HybridPlus"),
    ],
)
def test_work_that_the_world_draws_itself_is_not_ignored(changes, words):
    with pytest.raises(fw.BadInput, match=words):
        small(**changes)
    small(system="dynamic", batch_size=7)
    small(system="latency", epochs=2)


def test_a_target_of_a_regression_is_a_loss_to_get_below():
    x = np.linspace(-1, 1, 80, dtype=np.float32).reshape(-1, 2)
    losses = []

    def listen(row):
        losses.append(row["loss"])

    small = {"partition": "iid", "rounds": 6, "workers": 1}
    first = fw.run(fw.Experiment("fedavg", fw.data.from_arrays(x, x.sum(1)), **small), callbacks=listen)
    assert first.summary["rounds_to_target"] is None
    assert losses[0] > losses[3] > losses[5]
    between = (losses[2] + losses[3]) / 2
    found = fw.run(fw.Experiment("fedavg", fw.data.from_arrays(x, x.sum(1)), target=between, **small))
    assert found.summary["rounds_to_target"] == 1 + next(i for i, loss in enumerate(losses) if loss <= between)


class Plain(Partition):
    def split(self, data, rng):
        return fw.partition.IID(2).split(data, rng)


class WithInit(Plain):
    def __init__(self, parts):
        self.parts = parts


class World(System):
    def population(self, base, round, seed):
        return base


class Slower(fw.system.Uniform):
    factor: float = 2.0


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: small(partition=Plain()), "Plain"),
        (lambda: small(partition=Plain(clients=2)), "Plain"),
        (lambda: small(partition=WithInit(2)), "WithInit"),
        (lambda: small(system=World()), "World"),
        (lambda: small(system=Slower()), "Slower"),
    ],
)
def test_an_own_part_without_settings_is_told_what_it_lacks(make, name):
    with pytest.raises(fw.BadInput, match=rf"{name} must be declared with @fedweave\.settings"):
        make()


def test_data_of_another_kind_is_told_how_to_become_ours():
    rows = [{"image": np.zeros((28, 28)), "label": 3}] * 40
    with pytest.raises(
        fw.BadInput, match=r"'data' parameter of Experiment must be a Dataset.*from_huggingface"
    ) as error:
        small(data=rows)
    assert len(str(error.value)) < 350
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("methods", "seeds", "words"),
    [
        ("fedavg", 1, r"list of methods.*\['fedavg'\]"),
        ([], 1, "at least one method"),
        (["fedavg"], 0, "'seeds' must be a whole number of at least 1. Got 0"),
        (["fedavg"], 1.5, "'seeds' must be a whole number of at least 1. Got 1.5"),
        ([fw.methods.fedavg], 1, "a Method, or the name of one.*function"),
        ([None], 1, "a Method, or the name of one. Got None"),
    ],
)
def test_a_comparison_of_something_else_is_explained(methods, seeds, words):
    with pytest.raises(fw.BadInput, match=words):
        fw.compare(methods, small(), seeds)


@pytest.mark.parametrize("call", [fw.run, lambda e: fw.compare(["fedavg"], e), lambda e: next(fw.rounds(e))])
def test_what_is_no_experiment_is_explained(call):
    with pytest.raises(fw.BadInput, match=r"must be an Experiment\. Got 'fedavg'"):
        call("fedavg")


def test_every_method_of_a_comparison_is_tried_before_the_first_one_trains(monkeypatch):
    began = []
    with pytest.raises(fw.BadInput, match="more clients than there are"):
        fw.compare([fw.methods.fedavg(3), fw.methods.fedprox(50)], small(), callbacks=began.append)
    assert not began
