"""A run begins with given values, in every process, or says in which tensor they do not fit."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedweave as fw
from fedweave.cli.options import experiments_of


def net():
    """Return a model of which one layer is frozen; each call draws other values."""
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    made[1].requires_grad_(False)
    return made


def values(seed=7, make=net):
    torch.manual_seed(seed)
    return make().state_dict()


def still(**changes):
    """Return changes of an experiment after which the model is where it began."""
    return {"rounds": 1, "lr": 1e-30, **changes}


def files(folder, state):
    """Write a state dict in every form, and return the paths and the dict itself."""
    save_file(state, folder / "model.safetensors")
    for name in ("model.pt", "model.pth"):
        torch.save(state, folder / name)
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    return [folder / "model.safetensors", str(folder / "model.pt"), folder / "model.pth", state, arrays]


def test_every_form_of_a_start_is_where_the_model_begins(tiny, tmp_path):
    wanted = values()
    for start in files(tmp_path, wanted):
        found = fw.run(tiny(model=net, start=start, system="uniform", **still())).state_dict()
        for name in ("1.weight", "1.bias", "3.weight", "3.bias", "2.weight"):
            assert torch.equal(found[name], wanted[name]), name


def test_frozen_parameters_begin_there_in_every_process(tiny):
    runs = [fw.run(tiny(model=net, start=values(), workers=workers, rounds=3)) for workers in (1, 2)]
    assert runs[0].summary["digest"] == runs[1].summary["digest"]
    assert torch.equal(runs[1].model()[1].weight, values()["1.weight"])
    assert runs[0].summary["digest"] != fw.run(tiny(model=net, rounds=3)).summary["digest"]


def test_a_run_goes_on_where_another_ended(tiny):
    """The first evaluation of a run that stands still is the last one of the run before."""
    first = fw.run(tiny(model="mlp"))
    again = fw.run(tiny(model="mlp", start=first.state_dict(), **still()))
    assert again.summary["accuracy"] == first.summary["accuracy"]


def test_what_was_given_stays_as_it_is(tiny):
    """Neither the module that a function hands out again nor the values that were given change."""
    shared, given = net(), values()
    before = {name: tensor.clone() for name, tensor in shared.state_dict().items()}
    experiment = tiny(model=lambda: shared, start=given, rounds=2)
    digest = fw.run(experiment).summary["digest"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in shared.state_dict().items())
    given["1.weight"].zero_()
    assert fw.run(experiment).summary["digest"] == digest


def without(state, name):
    return {n: t for n, t in state.items() if n != name}


WRONG = {
    "a tensor too few": (lambda s: without(s, "3.bias"), r"lack '3\.bias', which the model has"),
    "a tensor too many": (lambda s: {**s, "4.bias": s["3.bias"]}, r"have '4\.bias', which the model does not have"),
    "another shape": (lambda s: {**s, "1.bias": s["3.bias"]}, r"'1\.bias' as \(10,\), but in the model it is \(16,\)"),
    "not finite": (lambda s: {**s, "3.bias": s["3.bias"] * torch.nan}, r"begins with values in 3\.bias.*not finite"),
    "a checkpoint": (lambda s: {"model": s, "epoch": 3}, r"must be a state dict.*'model', a (dict|OrderedDict)"),
}


@pytest.mark.parametrize("form", ["python", "model.pt"])
@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_values_that_do_not_fit_are_refused_before_any_work(change, message, form, tiny, tmp_path):
    start = change(values())
    if form == "model.pt":
        torch.save(start, tmp_path / form)
        start = tmp_path / form
    with pytest.raises(fw.BadInput, match=message) as told:
        fw.run(tiny(model=net, start=start), tmp_path / "run")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


class Evil:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_a_file_is_read_without_executing_anything(name, tiny, tmp_path, capfd):
    torch.save({"1.weight": Evil()}, tmp_path / name)
    with pytest.raises(fw.BadInput, match="cannot be read as a state dict") as told:
        fw.run(tiny(model=net, start=tmp_path / name))
    assert "\n" not in str(told.value)
    assert "executed" not in capfd.readouterr().out


@pytest.mark.parametrize("given", [3, "model.onnx", nn.Linear(2, 2), ["a"]], ids=str)
def test_what_is_no_start_is_refused(given):
    with pytest.raises(fw.BadInput, match=r"'start' parameter of Experiment must be a state dict, or a file"):
        fw.Experiment("fedavg", start=given)


def test_shared_tensors_may_be_kept_once(tiny):
    """As safetensors files have them."""

    def tied():
        made = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10))
        made[2].weight = made[1].weight
        return made

    wanted = values(make=tied)
    for start in (wanted, without(wanted, "2.weight"), without(wanted, "1.weight")):
        found = fw.run(tiny(model=tied, start=start, **still())).model()
        assert torch.equal(found[1].weight, wanted["1.weight"])
        assert found[1].weight is found[2].weight


def test_half_precision_and_lazy_layers(tiny):
    lazy = lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.Linear(16, 10))  # noqa: E731
    halved = {n: t.bfloat16() if t.is_floating_point() else t for n, t in values().items()}
    found = fw.run(tiny(model=lazy, start=halved, **still())).state_dict()
    assert torch.equal(found["1.weight"], halved["1.weight"].float())


@pytest.fixture
def interrupted(tiny, tmp_path):
    """Return a run that was stopped, its file of start values, and its experiment."""
    file = tmp_path / "model.safetensors"
    save_file(values(make=lambda: fw.models.build("logistic", (1, 8, 8), 10)), file)
    experiment = tiny(start=file, model="logistic", data="digits")

    def watch(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(fw.Interrupted):
        fw.run(experiment, tmp_path / "run", watch)
    return tmp_path / "run", file, experiment


def test_a_run_remembers_its_start_and_is_resumed_with_it_alone(interrupted, tmp_path):
    folder, file, experiment = interrupted
    sha = hashlib.sha256(file.read_bytes()).hexdigest()
    assert json.loads((folder / "manifest.json").read_text())["start"] == {"path": str(file), "sha256": sha}
    with pytest.raises(fw.BadInput, match=r"reads '/.*', a path .* resume with --trust"):
        fw.resume(folder)
    moved = file.rename(tmp_path / "moved.safetensors")
    with pytest.raises(fw.BadInput, match=r"no start file '.*/model\.safetensors'"):
        fw.resume(folder, trust=True)
    other = values(8, lambda: fw.models.build("logistic", (1, 8, 8), 10))
    save_file(other, file)
    for call in (lambda: fw.resume(folder, trust=True), lambda: fw.resume(folder, replace(experiment, start=None))):
        with pytest.raises(fw.BadInput, match="start values are not those that this run began with"):
            call()
    whole = fw.run(replace(experiment, start=moved))
    assert fw.resume(folder, replace(experiment, start=moved)).summary["digest"] == whole.summary["digest"]


def test_values_given_in_python_are_given_again(tiny, tmp_path):
    experiment = tiny(data="digits", start=fw.run(tiny(rounds=1)).state_dict())
    fw.run(experiment, tmp_path / "run")
    assert fw.Experiment("fedavg", start=values()) == fw.Experiment("fedavg", start=values())
    assert fw.Experiment("fedavg", start=values(1)) != fw.Experiment("fedavg", start=values())
    with pytest.raises(fw.BadInput, match=r"used start values given in Python: resume it there"):
        fw.resume(tmp_path / "run")
    assert np.array_equal(fw.resume(tmp_path / "run", experiment).x, fw.load_result(tmp_path / "run").x)


def test_a_start_can_be_typed_and_written_into_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(values(), tmp_path / "model.pt")
    (tmp_path / "e.toml").write_text('start = "model.pt"\n')
    found = [
        experiments_of([name], typed)[0][0].start for name, typed in (("e.toml", {}), ("fedavg", {"start": "model.pt"}))
    ]
    assert found[0] == found[1] == fw.Experiment("fedavg", start=tmp_path / "model.pt").start
    assert found[0].path == str(tmp_path / "model.pt")
