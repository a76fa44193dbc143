"""Every part, method and experiment becomes JSON and comes back equal."""

import inspect
import json
from dataclasses import replace

import pytest

import fedweave as fw
from fedweave import methods
from fedweave.core.roles import Aggregator, Pacing, Sampler, ServerOptimizer, Solver, System, Upload
from fedweave.core.settings import BadInput
from fedweave.core.spec import build, change, describe, kinds
from fedweave.data.partition import Partition
from fedweave.method import Method
from fedweave.runs.method_names import method_names
from fedweave.runs.plain import from_plain, to_plain

ROLES = [Sampler, Solver, Upload, Aggregator, ServerOptimizer, Pacing, System, Partition]
SMALL = {  # what parameters without a default are given
    "per_round": 3, "clients": 4, "probability": (0.25, 0.5, 0.25), "alpha": 0.3, "low": 2,
    "size": 3, "cohort": 3, "concurrency": 3, "buffer": 2,
}  # fmt: skip


@pytest.fixture
def make(tmp_path):
    """Return a maker of parts from the defaults and small arguments."""
    trace = tmp_path / "t.csv"
    trace.write_text("client,steps\n0,1\n")
    given = {
        **SMALL,
        "path": trace,
        "sampler": fw.sample.Uniform(3),
        "aggregator": fw.aggregate.Mean(),
        "inner": fw.aggregate.Mean(),
        "plan": fw.upload.JointDropout(per_round=3),
    }

    def part(cls):
        parameters = inspect.signature(cls).parameters.values()
        needed = [p.name for p in parameters if p.default is p.empty or p.name == "per_round"]  # one of several limits
        return cls(**{name: given[name] for name in needed})

    return part


PARTS = [(role, name) for role in ROLES for name, cls in kinds(role).items() if cls.__module__.startswith("fedweave.")]
METHODS = list(method_names())


@pytest.mark.parametrize(("role", "name"), PARTS, ids=[f"{r.__name__}-{n}" for r, n in PARTS])
def test_every_part_comes_back_equal(role, name, make):
    part = make(kinds(role)[name])
    plain = json.loads(json.dumps(describe(part), allow_nan=False))
    assert plain["type"] == name
    back = build(role, plain, "part")
    assert back == part
    assert type(back) is type(part)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_comes_back_equal(name):
    method = getattr(methods, name)(3)
    assert method.name == name
    assert build(Method, json.loads(json.dumps(describe(method), allow_nan=False)), "method") == method


@pytest.mark.parametrize(
    "part",
    [
        fw.solvers.Prox(0.5, inner=fw.solvers.Adam(beta1=0.5)),
        fw.solvers.Prox(0.5, inner=fw.solvers.Prox(1, inner=fw.solvers.SGD(momentum=0.9, nesterov=True))),
    ],
    ids=str,
)
def test_parts_within_parts_come_back_equal(part):
    assert build(Solver, json.loads(json.dumps(describe(part))), "solver") == part


def test_an_experiment_comes_back_equal(tmp_path):
    experiment = fw.Experiment(
        fw.methods.fedprox(4, mu=0.3),
        "digits",
        fw.partition.Classes(7, 2, 5),
        "mlp",
        fw.system.Dynamic(slow_work=(2, 3)),
        lr=0.1 + 0.2,
        target=0.9,
        seed=2**62,
        workers=3,
    )
    assert from_plain(json.loads(json.dumps(to_plain(experiment), allow_nan=False))) == experiment


def test_a_loaded_data_set_is_kept_by_name_and_arrays_by_digest(digits):
    method = fw.methods.fedavg(2)
    assert to_plain(fw.Experiment(method, digits))["data"] == "digits"
    own = replace(digits, name="own", x=digits.x.copy())
    assert to_plain(fw.Experiment(method, own))["data"] == {"type": "arrays", "name": "own", "digest": digits.digest}
    for experiment, what in (
        (fw.Experiment(method, own), "arrays"),
        (fw.Experiment(method, "digits", model=lambda: 0), "a model"),
    ):
        plain = json.loads(json.dumps(to_plain(experiment)))
        with pytest.raises(BadInput, match=rf"used {what} given in Python: resume it there"):
            from_plain(plain)


@pytest.mark.parametrize(
    ("role", "plain", "problems"),
    [
        (Sampler, 3, ["here must be a table with a 'type', one of "]),
        (Sampler, {"per_round": 3}, ["here must be a table with a 'type', one of "]),
        (Sampler, {"type": "Unifrm"}, ["here: There is no sampler 'Unifrm'. Did you mean 'Uniform'? Valid: "]),
        (Sampler, {"type": "SGD"}, ["here: There is no sampler 'SGD'."]),
        (
            Sampler,
            {"type": "Uniform", "per_rond": 3},
            [
                "here: The 'per_round' parameter of Uniform is required.",
                "here: Uniform has no parameter 'per_rond'. Did you mean 'per_round'?",
            ],
        ),
        (
            Method,
            {"type": "Method", "sampler": {"type": "Uniform", "per_round": 0}, "solver": {"type": "Prx"}},
            [
                "here.sampler: The 'per_round' parameter of Uniform must be greater than 0. Got 0 instead.",
                "here.solver: There is no solver 'Prx'. Did you mean 'Prox'?",
            ],
        ),
        (
            Method,
            {
                "type": "Method",
                "sampler": {"type": "Everyone"},
                "solver": {"type": "Prox", "inner": {"type": "SGD", "momentum": 2}},
            },
            ["here.solver.inner: The 'momentum' parameter of SGD must be less than 1. Got 2 instead."],
        ),
    ],
)
def test_a_wrong_table_is_named_by_its_path(role, plain, problems):
    with pytest.raises(BadInput) as caught:
        build(role, plain, "here")
    for found, expected in zip(caught.value.problems, problems, strict=True):
        assert found.startswith(expected)


SPEC = {"rounds": 3, "target": None, "method": {"name": "m", "sampler": {"type": "Uniform", "per_round": 3}}}


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("rounds", "5", 5),
        ("target", "0.5", 0.5),
        ("method.name", "mine", "mine"),
        ("method.sampler.per_round", "7", 7),
        ("method.sampler.per-round", "7", 7),
        ("method.sampler.per_round", "[1, 2]", [1, 2]),
        ("target", "null", None),
        ("method.name", "a=b", "a=b"),
    ],
)
def test_a_value_is_changed_by_its_path_and_nothing_else(path, text, value):
    before = json.dumps(SPEC)
    after = change(SPEC, {path: text})
    assert json.dumps(SPEC) == before, "the input was changed"
    node = after
    *parents, last = path.replace("-", "_").split(".")
    for name in parents:
        node = node[name]
    assert node[last] == value
    back = change(after, {path: json.dumps({"rounds": 3, "target": None, "name": "m", "per_round": 3}[last])})
    assert back == SPEC


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("ronds", " Did you mean 'rounds'?"),
        ("method.sampler.per_rond", " Did you mean 'method.sampler.per_round'?"),
        ("method.samplr.per_round", " Did you mean 'method.sampler.per_round'?"),
        ("rounds.per_round", ""),
        ("", ""),
        ("qqq", ""),
    ],
)
def test_an_unknown_path_is_refused_with_the_nearest(path, hint):
    with pytest.raises(BadInput) as caught:
        change(SPEC, {path: "1"})
    (problem,) = caught.value.problems
    assert problem.startswith(f"--set: there is no field {path!r}.")
    assert hint in problem


def test_all_unknown_paths_are_told_at_once():
    with pytest.raises(BadInput) as caught:
        change(SPEC, {"ronds": "1", "rounds": "2", "zzz": "3"})
    assert len(caught.value.problems) == 2
