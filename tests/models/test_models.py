"""Laws that hold for every network, the shapes they take, and what they say when they do not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from fedweave import models
from fedweave.core.settings import BadInput
from fedweave.models import nets
from fedweave.models.nets import FACTORIES

GREY, RGB, CELEBA = (1, 28, 28), (3, 32, 32), (3, 84, 84)
REGRESSIONS = {"linear_regression": (5,), "log_quadratic": (1,), "quadratic": (4,)}
NATURAL = {
    **dict.fromkeys(["logistic", "mlp", "mlp_fedaware", "cnn_small", "cnn_fedacs_mnist", "lenet5", "cnn_leaf"], GREY),
    **dict.fromkeys(
        ["cnn2", "cnn_fedacs_cifar10", "cnn_fedacs_cinic10", "cnn_fedaware", "resnet18", "resnet18_bn"], RGB
    ),
    **{f"feddd_{family}{i}": RGB for family in "ab" for i in range(1, 6)},
    "cnn_leaf_celeba": CELEBA,
    **dict.fromkeys(["lstm", "lstm_leaf", "transformer"], (6,)),
    **REGRESSIONS,
}
TEXT = ("lstm", "lstm_leaf", "transformer")
ALL = pytest.mark.parametrize("name", models.names())
LEAST = {  # the smallest side of an image
    **dict.fromkeys(["cnn_small", "cnn_leaf", "cnn_fedacs_mnist", "cnn_fedacs_cifar10", "cnn_fedacs_cinic10"], 4),
    "cnn2": 8,
    "feddd_a1": 32,
    "feddd_b5": 32,
    "lenet5": 12,
    "cnn_fedaware": 18,
    "cnn_leaf_celeba": 9,
    "resnet18": 1,
    "resnet18_bn": 9,
}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def classes_of(name: str) -> int:
    return 0 if name in REGRESSIONS else 10


def natural(name: str) -> nn.Module:
    return models.build(name, NATURAL[name], classes_of(name), tokens=7 if name in TEXT else 0)


def samples(name: str, count: int) -> torch.Tensor:
    """Return samples that the model takes: tokens, or numbers."""
    return torch.randint(7, (count, *NATURAL[name])) if name in TEXT else torch.randn(count, *NATURAL[name])


def error(name: str, shape: tuple[int, ...], classes: int = 10) -> str:
    with pytest.raises(BadInput) as caught:
        models.build(name, shape, classes)
    return str(caught.value)


@ALL
def test_output_has_one_row_per_sample(name: str):
    classes = classes_of(name)
    model = natural(name)
    for n in (1, 3):
        assert model(samples(name, n)).shape == ((n, classes) if classes else (n,))


@ALL
def test_gradient_reaches_every_parameter(name: str):
    model = natural(name)
    out = model(samples(name, 3) if name in TEXT else torch.rand(3, *NATURAL[name]) + 1)
    target = torch.tensor([1, 2, 3])
    loss = nn.functional.cross_entropy(out, target) if out.ndim == 2 else (out - target).square().mean()
    loss.backward()
    for label, p in model.named_parameters():
        assert p.grad is not None
        assert p.grad.isfinite().all()
        cancelled = name == "cnn_leaf_celeba" and label.startswith("conv") and label.endswith("bias")
        assert cancelled or p.grad.any(), label  # batch norm subtracts a bias again


@ALL
def test_the_parameters_are_the_whole_state(name: str):
    model = natural(name)
    assert list(model.state_dict()) == [label for label, _ in model.named_parameters()]


@ALL
def test_the_seed_decides_the_weights(name: str):
    torch.manual_seed(7)
    first = natural(name)
    torch.manual_seed(7)
    second = natural(name)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("name", [name for name in FACTORIES if "quadratic" not in name])
def test_layers_can_be_walked_in_order(name: str):
    model = natural(name)
    assert isinstance(model, nn.Sequential)
    assert not any(label.isdigit() for label, _ in model.named_children())
    assert not any(isinstance(m, nn.Softmax | nn.LogSoftmax) for m in model.modules())


def test_fedacs_mnist_layers():
    labels = [label for label, _ in natural("cnn_fedacs_mnist").named_children()]
    expected = "conv1 pool1 relu1 conv2 pool2 relu2 dropout1 flatten1 fc1 relu3 fc2"
    assert labels == expected.split()


@pytest.mark.parametrize("family", ["feddd_a", "feddd_b"])
@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_submodels_are_prefixes_of_the_full_model(family: str, number: int):
    full, sub = natural(f"{family}1").state_dict(), natural(f"{family}{number}").state_dict()
    assert list(full) == list(sub)
    for label, tensor in sub.items():
        assert tensor.ndim == full[label].ndim
        assert all(a <= b for a, b in zip(tensor.shape, full[label].shape, strict=True)), label


@pytest.mark.parametrize(("name", "side"), LEAST.items())
def test_the_least_image_is_exact(name: str, side: int):
    """The smallest image allowed works, even alone in its batch."""
    assert models.build(name, (2, side, side), 4)(torch.randn(1, 2, side, side)).shape == (1, 4)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(("name", "side"), [(n, s - 1) for n, s in LEAST.items() if s > 1])
def test_a_smaller_image_is_refused_because_it_would_fail(name: str, side: int):
    assert f"{side + 1}×{side + 1} or more" in error(name, (2, side + 5, side))
    model = FACTORIES[name]((2, side, side), 4)
    with pytest.raises((RuntimeError, ValueError)):
        model(torch.randn(1, 2, side, side))


def test_cnn_small_pads_only_images_too_small_for_it():
    for side, flat in [(8, 20 * 2 * 2), (15, 20 * 3 * 3), (16, 20), (28, 320), (32, 20 * 5 * 5)]:
        model = models.build("cnn_small", (1, side, side), 10)
        assert model.get_submodule("fc1").in_features == flat
        assert model(torch.randn(2, 1, side, side)).shape == (2, 10)


def test_images_need_not_be_square():
    for name in models.fitting((2, 40, 33), 3):
        assert models.build(name, (2, 40, 33), 3)(torch.randn(2, 2, 40, 33)).shape == (2, 3)


def test_group_norm_keeps_samples_apart_and_batch_norm_does_not():
    x = torch.randn(4, *RGB)
    for name, apart in [("resnet18", True), ("resnet18_bn", False)]:
        model = natural(name).eval()
        assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-4) == apart


def test_log_quadratic_formula():
    model = models.build("log_quadratic", (1,), 0)
    model.load_state_dict({"theta": torch.tensor([10.0, 1.0])})
    # (10·1 − 1)²/2 = 40.5, (10·2 − 1)²/2 = 180.5
    out = model(torch.tensor([[1.0], [2.0], [0.1]]))
    assert torch.allclose(out[:2].exp(), torch.tensor([40.5, 180.5]), rtol=1e-4)
    assert out.isfinite().all()  # at the singularity x = b/a too


def test_logistic_is_an_affine_map_of_the_flattened_sample():
    model = natural("logistic")
    x = torch.randn(3, *GREY)
    layer = model.get_submodule("fc1")
    assert torch.allclose(model(x), x.reshape(3, 784) @ layer.weight.T + layer.bias, atol=1e-5)


class TestErrors:
    def test_unknown_name(self):
        text = error("cnn_smal", GREY)
        assert text.startswith("There is no model 'cnn_smal'. Did you mean 'cnn_small'? Valid: logistic, mlp,")

    def test_image_too_small(self):
        assert error("feddd_a1", GREY) == (
            "Model 'feddd_a1' needs an image (channels, height, width) of 32×32 or more. "
            "Got (1, 28, 28) instead. Models that fit: logistic, mlp, mlp_fedaware, cnn_small, cnn2, "
            "cnn_fedacs_mnist, cnn_fedacs_cifar10, cnn_fedacs_cinic10, cnn_fedaware, lenet5, cnn_leaf, "
            "cnn_leaf_celeba, resnet18, resnet18_bn."
        )

    def test_vector_for_an_image_model(self):
        assert error("cnn_small", (64,)).endswith("Got (64,) instead. Models that fit: logistic, mlp, mlp_fedaware.")

    def test_missing_channel(self):
        assert "A grey image is (1, 28, 28), with its channel." in error("cnn_small", (28, 28))

    def test_classifier_for_a_regression_and_back(self):
        assert error("mlp", (1,), 0) == (
            "Model 'mlp' is a classifier. Got 0 classes, a regression. "
            "Classes are whole numbers, or words in a frame: give y.astype(int) if these are classes. "
            "Models that fit: linear_regression, log_quadratic, quadratic."
        )
        assert "is for regression (0 classes). Got 10 classes. Models that fit: logistic" in error(
            "linear_regression", (5,)
        )

    def test_every_problem_is_told(self):
        with pytest.raises(BadInput) as caught:
            models.check("log_quadratic", GREY, 10)
        assert len(caught.value.problems) == 2

    @pytest.mark.parametrize("shape", [(), (0,), (1, -28, 28)])
    def test_impossible_shape(self, shape: tuple[int, ...]):
        assert f"Got {shape} instead." in error("logistic", shape)

    @pytest.mark.parametrize("classes", [-1, 1])
    def test_impossible_classes(self, classes: int):
        assert f"2 or more, or 0 for regression. Got {classes} instead." in error("logistic", (4,), classes)

    def test_missing_torch(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(models, "find_spec", lambda name: None)
        assert "pip install 'fedweave[torch]'" in error("mlp", GREY)


@pytest.mark.parametrize(
    ("shape", "classes", "name"),
    [
        ((64,), 10, "logistic"),
        ((1, 8, 8), 10, "logistic"),
        (GREY, 10, "cnn_small"),
        (GREY, 62, "cnn_small"),
        (RGB, 10, "cnn_fedacs_cifar10"),
        (CELEBA, 2, "cnn_leaf_celeba"),
        ((1,), 0, "log_quadratic"),
        ((5,), 0, "linear_regression"),
    ],
)
def test_default_fits(shape: tuple[int, ...], classes: int, name: str):
    assert models.default_for(shape, classes) == name
    assert name in models.fitting(shape, classes)


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("each", [True, False])
def test_text_models_answer_each_position_or_the_whole(name: str, each: bool):
    model = models.build(name, (6,), 11, tokens=7, each=each)
    for length in (6, 4):
        x = torch.randint(7, (3, length))
        assert model(x).shape == ((3, length, 11) if each else (3, 11))
        if each:  # the same weights answer the whole by its last position
            model.each = False
            last = model(x)
            model.each = True
            assert torch.allclose(model(x)[:, -1], last, atol=1e-6)


@pytest.mark.parametrize("name", TEXT)
def test_a_later_token_changes_no_earlier_answer(name: str):
    model = models.build(name, (6,), 7, tokens=7, each=True).eval()
    x = torch.randint(7, (4, 6))
    changed = x.clone()
    changed[:, 3] = (x[:, 3] + 1) % 7
    with torch.no_grad():
        before, after = model(x), model(changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).any(dim=2).all(), "and every later one"


@pytest.mark.parametrize("name", TEXT)
def test_text_models_take_tokens_alone(name: str):
    for shape, tokens in (((6,), 0), ((1, 6, 6), 7)):
        with pytest.raises(BadInput, match="needs a sequence of tokens"):
            models.check(name, shape, 7, tokens)
    assert name in models.fitting((6,), 7, tokens=7, each=True)
    assert models.default_for((6,), 7, tokens=7, each=True) == "lstm"
    assert "logistic" not in models.fitting((6,), 7, tokens=7, each=True)


def test_linear_regression_has_as_many_outputs_as_targets():
    assert models.build("linear_regression", (5,), 0, outputs=3)(torch.randn(4, 5)).shape == (4, 3)
    with pytest.raises(BadInput, match=r"answers one number. The targets have 2"):
        models.check("log_quadratic", (1,), 0, outputs=2)
    with pytest.raises(BadInput) as caught:
        models.check("mlp", (5,), 0, outputs=3)
    (problem,) = caught.value.problems  # not also that it answers one number
    assert "For 3 targets or labels a sample, give a function that makes a module." in problem


def test_every_name_is_described_and_built():
    assert list(models.info()) == models.names()
    assert set(models.names()) == set(NATURAL) == {*FACTORIES, *nets.TEXT}
    assert all(text and "\n" not in text for text in models.info().values())


def test_listing_and_checking_need_no_torch():
    code = (
        "import sys; from fedweave import models; models.info(); models.check('mlp', (4,), 2);"
        "models.default_for((4,), 2); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
