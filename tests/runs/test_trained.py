"""What was trained comes out: as a module, as a state dict, as a file, with exactly the accuracy of the table."""

import json
import pickle
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import fedweave as fw
from fedweave.cli import app as cli
from fedweave.engine.simulator import Simulator

TOKENS = np.random.default_rng(0).integers(0, 12, (60, 9))
TEXT = fw.data.from_arrays(TOKENS[:, :-1], TOKENS[:, 1:], classes=12)


def norm():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16), nn.BatchNorm1d(16),
        nn.Linear(16, 10),
    )  # fmt: skip


def accuracy(module, data):
    """Return what plain torch says of a model."""
    module.eval()
    with torch.no_grad():
        return (module(data.prepare(data.test_x)).argmax(1).numpy() == data.test_y).mean()


@pytest.fixture(scope="module")
def normed(digits, tmp_path_factory):
    """Return a run of a model with batch norm whose accuracy goes up and down."""
    experiment = fw.Experiment("fedavg", digits, "dirichlet:0.1", norm, rounds=6, steps=4, lr=0.3, workers=1)
    return fw.run(experiment, tmp_path_factory.mktemp("normed") / "run")


@pytest.mark.parametrize("which", ["last", "best"])
def test_a_batch_norm_model_loaded_into_plain_torch_has_exactly_the_accuracy_of_the_table(which, normed, digits):
    scores = normed.rounds["accuracy"]
    wanted = scores[-1] if which == "last" else scores.max()
    assert accuracy(normed.model(which=which), digits) == wanted
    plain = norm()
    assert str(plain.load_state_dict(normed.state_dict(which=which))) == "<All keys matched successfully>"
    assert accuracy(plain, digits) == wanted
    assert not normed.model().training
    assert normed.best["value"] == normed.summary["best"]


@pytest.mark.parametrize("to", ["safetensors", "pt"])
@pytest.mark.parametrize("which", ["last", "best"])
def test_an_exported_batch_norm_model_too(to, which, normed, digits, capsys, monkeypatch):
    code, said = export(monkeypatch, capsys, normed.folder, "--to", to, "--which", which)
    assert code == 0
    path = normed.folder / f"model{'' if which == 'last' else '-best'}.{to}"  # each in a file of its own
    assert said.out == f"{path}\n"
    assert "Frozen parameters, counters and second names of shared tensors are not in it" in said.err
    plain = norm()
    missing, unexpected = plain.load_state_dict(read(path), strict=False)
    assert all(name.endswith("num_batches_tracked") for name in missing)
    assert unexpected == []
    scores = normed.rounds["accuracy"]
    assert accuracy(plain, digits) == (scores[-1] if which == "last" else scores.max())
    round = 6 if which == "last" else int(normed.rounds["round"][scores.argmax()])
    said = export(monkeypatch, capsys, normed.folder, "--to", to, "--which", which, "--json")[1]
    model = {"file": str(path), "which": which, "round": round}
    assert json.loads(said.out) == {"files": [str(path)], "models": [model]}
    if to == "safetensors":
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt", "which": which, "round": str(round)}


def export(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["fedweave", "export", *map(str, words)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr()


def read(path):
    from safetensors.torch import load_file

    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)


LIBRARY = {"mlp": "digits", "quadratic": "quadratics", "transformer": TEXT, "lstm": TEXT}


@pytest.mark.parametrize("model", LIBRARY)
def test_a_model_of_the_library_comes_out_of_its_folder_alone(model, tmp_path, capsys, monkeypatch):
    experiment = fw.Experiment("fedavg", LIBRARY[model], "iid", model, rounds=2, steps=1, workers=1)
    fw.run(experiment, tmp_path / "run")
    result = fw.load_result(tmp_path / "run")
    module, state = result.model(), result.state_dict()
    assert str(module.load_state_dict(state)) == "<All keys matched successfully>"
    vector = np.concatenate([t.detach().numpy().ravel() for t in module.parameters()])
    assert np.array_equal(vector, result.x.astype(np.float32))
    for to in ("safetensors", "pt"):
        code, said = export(monkeypatch, capsys, tmp_path / "run", "--to", to, "--json")
        assert (code, said.err) == (0, "")
        assert json.loads(said.out)["files"] == [str(tmp_path / "run" / f"model.{to}")]
        found = read(tmp_path / "run" / f"model.{to}")
        assert list(found) == (sorted(state) if to == "safetensors" else list(state))
        assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_which_is_for_models_and_tables_say_so(normed, capsys, monkeypatch):
    code, said = export(monkeypatch, capsys, normed.folder, "--to", "csv", "--which", "best")
    assert code == 2
    assert said.err == "error: --which is for a model: use it with --to safetensors or --to pt.\n"


def test_a_result_that_was_read_takes_the_function_that_makes_its_model(normed):
    there = fw.load_result(normed.folder)
    with pytest.raises(fw.BadInput, match=r"model norm of this run was given in Python: .*result\.model\(function\)"):
        there.model()
    assert all(torch.equal(t, normed.state_dict()[n]) for n, t in there.state_dict(norm).items())
    with pytest.raises(fw.BadInput, match=r"lack '2\.weight', which this model has"):
        there.model(lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(2, 2)))
    with pytest.raises(
        fw.BadInput, match=r"have '0\.weight' as \(4, 1, 3, 3\), but in this model it is \(5, 1, 3, 3\)"
    ):
        there.model(lambda: nn.Sequential(nn.Conv2d(1, 5, 3)))
    with pytest.raises(fw.BadInput, match=r"have '1\.weight', which this model does not have"):
        there.model(lambda: nn.Sequential(nn.Conv2d(1, 4, 3)))
    with pytest.raises(fw.BadInput, match=r"no model 'worst'.*last, best"):
        there.model(norm, which="worst")


def test_a_result_can_be_sent_whatever_made_its_model(tiny):
    result = fw.run(tiny(model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), rounds=1))
    sent = pickle.loads(pickle.dumps(result))
    assert np.array_equal(sent.x, result.x)
    assert result.factory is not None
    assert sent.factory is None


def changed(folder, change):
    """Write what ``change`` makes of the model in the manifest, and return the result."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest["model"])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return fw.load_result(folder)


def test_a_run_of_an_older_version_says_that_its_model_is_not_there(tiny, tmp_path):
    fw.run(tiny(rounds=2), tmp_path / "run")

    def forget(model):
        for name in ("names", "shapes", "sample"):
            del model[name]

    old = changed(tmp_path / "run", forget)
    for call in (old.model, old.state_dict):
        with pytest.raises(fw.BadInput, match="older version of fedweave began this run and did not keep the names"):
            call()


FORGED = {
    "a name twice": lambda m: m.update(names=[m["names"][0]] * len(m["names"])),
    "a shape too few": lambda m: m["shapes"].pop(),
    "other sizes": lambda m: m["shapes"][0].append(2),
    "another model": lambda m: m.update(name="mlp"),
    "no model": lambda m: m.update(name="os.system"),
    "a model beyond all memory": lambda m: m["sample"].update(shape=[1, 2**40, 2**40]),
    "a model beyond all numbers": lambda m: m["sample"].update(shape=[2**62, 2**62, 2**62]),
    "no class": lambda m: m["sample"].update(classes=0),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_manifest_that_does_not_fit_the_state_is_one_sentence(forge, tiny, tmp_path):
    fw.run(tiny(model="logistic", rounds=1), tmp_path / "run")
    with pytest.raises(fw.BadInput) as told:
        changed(tmp_path / "run", forge).model()
    assert "anifest" in str(told.value) or "model" in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("task", "scores", "best"),
    [
        (fw.tasks.Classification(), [0.3, 0.7, 0.5, 0.7, np.nan, 0.6], 2),  # the first of equals
        (fw.Task(loss=lambda out, batch: out.mean(1)), [3.0, np.inf, 2.0, 1.0, 2.0, np.nan], 4),
    ],
    ids=["higher", "lower"],
)
def test_the_best_is_by_the_metric_of_the_task_in_its_direction(task, scores, best, tiny, monkeypatch):
    script = iter(scores)
    monkeypatch.setattr(Simulator, "evaluate", lambda *_: {"accuracy": np.nan, task.primary: next(script)})
    experiment = tiny(task=task)
    result = fw.run(experiment)
    models = {state.round: state.x for state, _ in fw.rounds(experiment)}
    assert (result.best["round"], result.best["value"]) == (best, scores[best - 1])
    assert np.array_equal(result.best["x"], models[best])
    assert np.array_equal(np.concatenate([t.ravel() for t in result.state_dict(which="best").values()]), models[best])
    assert not np.array_equal(models[best], models[6])


def test_a_run_whose_best_model_was_not_kept_says_so(tiny):
    from dataclasses import replace

    result = fw.run(tiny(rounds=2))
    with pytest.raises(fw.BadInput, match=r"the best of this run, was not kept: an older version"):
        replace(result, best={}).model(which="best")
    never = {**result.rounds, "accuracy": np.full(2, np.nan)}
    with pytest.raises(fw.BadInput, match="was never evaluated"):
        replace(result, rounds=never).model(which="best")


class Tied(nn.Module):
    """Input and output share one matrix, as in most language models; a mask and a scale are buffers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.scale.mul_(1.01)
        return self.head(torch.tanh(self.mix(self.embedding(x))) * self.scale)


def test_shared_weights_and_buffers_train_and_come_out(tmp_path):
    experiment = fw.Experiment("fedavg", TEXT, "iid", Tied, rounds=3, steps=2, lr=0.5, workers=1)
    result = fw.run(experiment, tmp_path / "run")
    assert result.x.size == 12 * 6 + 6 * 6 + 6 + 6  # the shared matrix once
    module = result.model()
    assert module.head.weight is module.embedding.weight
    assert not torch.equal(module.head.weight, fw.run(experiment_of(0)).model().head.weight)
    assert module.scale.tolist() == pytest.approx([1.01**6] * 6)
    assert module.calls == 0
    plain = Tied()
    assert str(plain.load_state_dict(result.state_dict())) == "<All keys matched successfully>"
    there = fw.load_result(tmp_path / "run").model(Tied)
    assert all(torch.equal(t, result.state_dict()[n]) for n, t in there.state_dict().items())
    loss = torch.nn.functional.cross_entropy(plain.eval()(TEXT.prepare(TEXT.test_x)).mT, torch.from_numpy(TEXT.test_y))
    assert loss.item() == pytest.approx(result.summary["loss"], rel=1e-6)


def experiment_of(lr):
    return fw.Experiment("fedavg", TEXT, "iid", Tied, rounds=1, steps=1, lr=lr or 1e-30, workers=1)


def half_frozen():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    net[1].requires_grad_(False)
    return net


def test_frozen_parts_come_out_as_they_were(tiny, digits, tmp_path):
    result = fw.run(tiny(model=half_frozen, seed=3), tmp_path / "run")
    assert accuracy(result.model(), digits) == result.summary["accuracy"]
    there = fw.load_result(tmp_path / "run")
    assert accuracy(there.model(half_frozen), digits) == result.summary["accuracy"]  # drawn at the address of the seed
    torch.manual_seed(1)
    net = half_frozen()
    with pytest.warns(UserWarning, match="other frozen parameters or constants than in the run"):
        there.model(lambda: net)


def test_lazy_layers_come_out_in_another_process_too(tiny, digits, tmp_path):
    def lazy():
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(10))

    result = fw.run(tiny(model=lazy), tmp_path / "run")
    for module in (result.model(), fw.load_result(tmp_path / "run").model(lazy, which="last")):
        assert accuracy(module, digits) == result.summary["accuracy"]
        assert str(lazy().load_state_dict(module.state_dict())) == "<All keys matched successfully>"
