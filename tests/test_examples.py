"""The examples do what they say."""

import runpy
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import fedweave as fw
from smaller import smaller

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_own_sampler_asks_whoever_was_silent_longest(tiny):
    own = runpy.run_path(str(EXAMPLES / "own_sampler.py"))
    sampler = own["LongestSilent"](per_round=2)
    result = fw.run(tiny(fw.Method(sampler, name="own"), system=fw.system.Uniform(), rounds=6))
    asked = result.clients["client"].reshape(6, 2)
    assert sorted(asked[:3].ravel()) == list(range(6))  # three rounds of two reach all six clients
    assert np.array_equal(np.sort(asked[3:].ravel()), np.arange(6))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs_in_a_few_lines(path, tmp_path, monkeypatch, capsys):
    """Those that are named quickstart_ are whole Flower apps, with tests of their own."""
    if path.name.startswith("quickstart_"):
        pytest.skip("tests/flower/test_quickstarts.py runs it")
    code = path.read_text()
    assert code.count("\n") <= 60
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [path.name])
    module = ModuleType("__main__")  # as a program has it: classes are found there by their names
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(smaller(code).replace("rounds: int = 10", "rounds: int = 1"), str(path), "exec"), vars(module))
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(("nth", "name"), [(1, "own_sampler"), (2, "own_aggregator")])
def test_contributing_shows_the_code_of_the_example(nth, name):
    shown = (EXAMPLES.parent / "CONTRIBUTING.md").read_text().split("```python")[nth].split("```")[0]
    code = (EXAMPLES / f"{name}.py").read_text()
    for line in shown.splitlines():
        if "(self" not in line:  # signatures are shown without their types
            assert line in code.splitlines(), line


def test_lora_sends_the_adapters_alone_and_learns():
    lora = runpy.run_path(str(EXAMPLES / "lora.py"))["lora"]
    text = np.tile(np.arange(12), 60).reshape(-1, 9)[:60]  # the next token is the next number
    data = fw.data.from_arrays(text[:, :-1], text[:, 1:], classes=12)
    torch.manual_seed(0)
    base = fw.models.build("transformer", *data.sample).state_dict()
    experiment = fw.Experiment("fedavg", data, "iid", partial(lora, base, data), rounds=4, steps=10, lr=0.5, workers=1)
    result = fw.run(experiment)
    module = result.model()
    layers = [m for m in module.modules() if isinstance(m, torch.nn.Linear)]
    adapters = sum(4 * (m.in_features + m.out_features) for m in layers)
    assert len(layers) == 2 * 3 + 1  # out_proj, linear1 and linear2 of two blocks, and the head
    assert result.x.size == adapters
    assert result.rounds["bytes_up"][-1] == 4 * adapters * result.clients["client"].size
    frozen = {name.replace("parametrizations.weight.original", "weight"): t for name, t in module.state_dict().items()}
    assert all(torch.equal(frozen[name], tensor) for name, tensor in base.items())
    assert result.summary["value"] < 3  # guessing has 12


class Trial:
    """Suggests what is asked for, in the middle of its range."""

    def suggest_float(self, name, low, high, log=False):
        self.params = getattr(self, "params", {}) | {name: (low * high) ** 0.5 if log else (low + high) / 2}
        return self.params[name]


class Study:
    """As much of an Optuna study as the guide uses."""

    def __init__(self, direction):
        assert direction == "maximize"
        self.values = []

    def optimize(self, objective, n_trials):
        for _ in range(n_trials):
            trial = Trial()
            self.values.append(objective(trial))
            self.best_params = trial.params


def test_the_guide_gives_runs_to_optuna(monkeypatch, capsys):
    """Optuna itself is no dependency: what the guide calls of it is stood in for."""
    monkeypatch.setitem(sys.modules, "optuna", SimpleNamespace(create_study=Study))
    names = {}
    page = (EXAMPLES.parent / "docs/how-to/sweeps.md").read_text()
    code = page.split("```python")[2].split("```")[0]
    exec(code.replace("rounds=20", "rounds=2, workers=1").replace("n_trials=30", "n_trials=2"), names)
    found = names["study"].best_params
    method = fw.methods.fedprox(5, mu=found["mu"])
    by_hand = fw.run(fw.Experiment(method, fw.data.load("digits").split(0.1), rounds=2, workers=1, lr=found["lr"]))
    assert names["study"].values == [by_hand.summary["accuracy"]] * 2
    assert capsys.readouterr().out == f"{found}\n"
