"""Random changes of images against a loop over them."""

import numpy as np
import pytest
import torch

from fedweave.core.settings import BadInput
from fedweave.data import RandomCrop, RandomFlip, load
from fedweave.local.client_data import ClientData
from fedweave.local.solvers import SGD
from fedweave.local.torch.flat_module import initial_vector
from fedweave.local.torch.trainer import TorchTrainer
from jobs import jobs_of


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("shape", "padding"), [((5, 3, 6, 4), 2), ((4, 1, 3, 3), 4), ((1, 2, 5, 7), 1)])
def test_a_crop_is_a_window_of_the_padded_image(shape, padding, kind):
    x = torch.randint(1, 200, shape, generator=draws(1)).to(kind)
    found = RandomCrop(padding)(x, draws())
    top, left = torch.randint(0, 2 * padding + 1, (2, shape[0], 1), generator=draws())
    n, channels, height, width = shape
    for i in range(n):
        padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=kind)
        padded[:, padding : padding + height, padding : padding + width] = x[i]
        a, b = int(top[i]), int(left[i])
        assert torch.equal(found[i], padded[:, a : a + height, b : b + width])
    assert found.dtype == kind


def test_every_shift_occurs():
    one = torch.ones(400, 1, 1, 1)
    assert RandomCrop(1)(one, draws()).sum() == pytest.approx(400 / 9, abs=20), "one of nine windows holds the pixel"


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_a_flip_mirrors_about_half_of_the_images(kind):
    x = torch.randint(0, 200, (200, 2, 3, 4), generator=draws(1)).to(kind)
    found = RandomFlip()(x, draws())
    chosen = torch.rand(200, generator=draws()) < 0.5
    for i in range(200):
        assert torch.equal(found[i], x[i].flip(2) if chosen[i] else x[i])
    assert 70 < chosen.sum() < 130


def test_wrong_settings_are_refused():
    with pytest.raises(BadInput, match="padding"):
        RandomCrop(0)


def test_a_transform_changes_training_batches_as_they_are_stored_and_nothing_else():
    """It sees bytes; what is measured sees the images as they are."""
    seen = []

    def black(x, rng):
        seen.append(x)
        return torch.zeros_like(x)

    digits = load("digits").take(np.arange(60))
    data = ClientData.of(digits, [np.arange(60)])._replace(transform=black)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    x = initial_vector(module)
    changed = TorchTrainer(module, data, SGD(), 0)
    plain = TorchTrainer(module, data._replace(transform=None), SGD(), 0)
    for found, expected in zip(changed.evaluate(x, 0, 50)["loss"], plain.evaluate(x, 0, 50)["loss"], strict=True):
        assert found == pytest.approx(expected, rel=1e-6)  # through autograd's layers, and through the kernels
    assert changed.losses(x, np.array([0])) == pytest.approx(plain.losses(x, np.array([0])), rel=1e-6)
    assert not seen
    update = changed.train(x, jobs_of((0, 2, 20))).updates[0]
    assert [(tuple(x.shape), x.dtype) for x in seen] == [((20, 1, 8, 8), torch.uint8)] * 2
    weights = update[:640].reshape(10, 64)
    assert np.allclose(weights, weights[:, :1], atol=1e-6), "all pixels are alike"
