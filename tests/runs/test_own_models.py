"""Models that cannot be trained are refused in one sentence, before anything is written or trained."""

from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import fedweave as fw

RNG = np.random.default_rng(0)
DATA = fw.data.from_arrays(RNG.standard_normal((60, 5)), np.arange(60) % 3)


class Net(nn.Module):
    """A layer, and what is made of its output."""

    def __init__(self, after=lambda out: out, inside=None):
        super().__init__()
        self.layer, self._after = inside or nn.Linear(5, 3), after

    def forward(self, x):
        return self._after(self.layer(x))


class TwoInputs(Net):
    def forward(self, x, z):
        return self.layer(x)


def frozen():
    return nn.Linear(5, 3).requires_grad_(False)


def broken():
    net = nn.Linear(5, 3)
    nn.init.constant_(net.weight, float("nan"))
    return net


def fails():
    raise LookupError("no weights on this disk")


WRONG = {
    "dict": (partial(Net, lambda out: {"logits": out}), r"one tensor.*dict.*logits"),
    "ordered dict": (partial(Net, lambda out: OrderedDict(logits=out, loss=0)), r"one tensor.*logits, loss"),
    "tuple": (partial(Net, lambda out: (out, 1)), r"one tensor.*tuple"),
    "nothing": (partial(Net, lambda out: None), r"one tensor.*None"),
    "two inputs": (TwoInputs, r"does not take samples of shape 5: .*missing 1 required positional argument"),
    "flat": (partial(Net, lambda out: out.reshape(-1)), r"must return \(2, 3\).*returned \(6,\)"),
    "turned": (partial(Net, lambda out: out.T), r"must return \(2, 3\).*returned \(3, 2\)"),
    "detached": (partial(Net, lambda out: out.detach()), "does not depend on its parameters"),
    "whole numbers": (partial(Net, lambda out: out.long()), "must return floating-point numbers"),
    "double": (
        lambda: Net(lambda out: out, nn.Sequential(Double(), nn.Linear(5, 3).double())),
        r"float64.*\.float\(\)",
    ),
    "frozen": (frozen, "no parameter to train: all of them are frozen"),
    "no parameters": (lambda: nn.Flatten(), "no parameter to train"),
    "not finite": (broken, r"weight.*not finite"),
    "needs arguments": (nn.Linear, r"function that makes the model Linear failed: TypeError: .*missing 2 required"),
    "raises": (fails, "function that makes the model fails failed: LookupError: .*no weights on this disk"),
    "module": (nn.Linear(5, 3), "function that makes a module"),
    "number": (lambda: 3, "make a torch module. It made 3"),
}


class Double(nn.Module):
    def forward(self, x):
        return x.double()


@pytest.mark.parametrize(("model", "message"), WRONG.values(), ids=WRONG)
def test_a_model_that_cannot_be_trained_is_refused(model, message, tmp_path):
    experiment = fw.Experiment("fedavg", DATA, "iid", model, rounds=1, workers=1)
    with pytest.raises(fw.BadInput, match=message) as error:
        fw.run(experiment, tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_transposed_answer_is_told_from_a_right_one_with_two_classes():
    two = fw.data.from_arrays(DATA.x, DATA.y % 2)
    turned = partial(Net, lambda out: out.T, nn.Linear(5, 2))
    with pytest.raises(fw.BadInput, match=r"must return \(3, 2\)"):
        fw.run(fw.Experiment("fedavg", two, "iid", turned, rounds=1, workers=1))


@pytest.mark.parametrize("workers", [1, 2])
def test_lazy_layers_get_their_sizes_from_the_data(workers):
    lazy = lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3))  # noqa: E731
    plain = lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))  # noqa: E731
    runs = [fw.run(fw.Experiment("fedavg", DATA, "iid", net, rounds=2, workers=workers)) for net in (lazy, plain)]
    assert [run.x.size for run in runs] == [39, 39]
    assert runs[0].summary["digest"] == fw.run(fw.Experiment("fedavg", DATA, "iid", lazy, rounds=2)).summary["digest"]


def test_a_function_that_makes_a_model_may_take_the_seed():
    seen = []

    def net(seed):
        seen.append(seed)
        return nn.Linear(5, 3)

    fw.run(fw.Experiment("fedavg", DATA, "iid", net, rounds=1, workers=1, seed=7))
    assert set(seen) == {7}


def test_partly_frozen_models_train():
    def half():
        net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
        net[0].requires_grad_(False)
        return net

    result = fw.run(fw.Experiment("fedavg", DATA, "iid", half, rounds=2, workers=1))
    assert result.x is not None
    assert result.x.size == 15
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("mlp", r"share 0\.001 .* less than one of 64 .*0\.015625"),
        ("logistic", "no hidden layer"),
    ],
)
def test_submodels_that_are_no_share_of_the_model_are_refused(model, message):
    with pytest.raises(fw.BadInput, match=message):
        fw.run(fw.Experiment("fedavg", DATA, "iid", model, rounds=1, workers=1, submodels="1,0.001"))
