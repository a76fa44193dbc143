"""What a model factory returns: copied, never trained itself."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

import fedweave as fw
from fedweave.core.settings import BadInput
from fedweave.local.torch.flat_module import build_module


def test_a_factory_may_return_the_same_module_every_time(tiny):
    """A method compared with itself gets the same result, and the module stays as its owner left it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    once, again = (fw.run(tiny(model=lambda: net)) for _ in range(2))
    assert np.array_equal(once.x, again.x)
    assert once.rounds["accuracy"].tolist() == again.rounds["accuracy"].tolist()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert net.training


def test_a_module_that_cannot_be_copied_is_named():
    held = nn.Linear(2, 2)
    held.lock = threading.Lock()
    with pytest.raises(BadInput, match="cannot be copied"):
        build_module(lambda: held, 0)
