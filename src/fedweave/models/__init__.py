"""Models by name: those of the papers and a few standard ones; listing and checking them needs no torch.

Every classifier returns logits: cross-entropy on logits is the papers' softmax (or log-softmax) followed by
the negative log likelihood. Every regression model returns one number per sample, shape (n,). No model has
buffers: its parameters are its whole state. Weights start as torch draws them, from the caller's seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedweave.core.errors import BadInput, choice

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]

__all__ = ["build", "check", "default_for", "fitting", "info", "names"]


@dataclass(frozen=True)
class Need:
    """What one sample must look like, as text and as a test."""

    text: str
    met: Callable[[Shape], bool]


@dataclass(frozen=True)
class Card:
    """What is known about a model without building it."""

    about: str
    need: Need
    regression: bool = False
    text: bool = False  # whether its inputs are tokens


def _image(side: int) -> Need:
    text = f"an image (channels, height, width) of {side}×{side} or more"
    return Need(text, lambda shape: len(shape) == 3 and min(shape[1:]) >= side)


ANY = Need("any shape", lambda shape: True)
VECTOR = Need("a vector, shape (d,)", lambda shape: len(shape) == 1)
NUMBER = Need("a single number, shape (1,)", lambda shape: shape == (1,))
TOKENS = Need("a sequence of tokens (whole numbers), shape (T,)", lambda shape: len(shape) == 1)

SUBMODELS = {  # channels of the five convolutions, widths of the two hidden layers; see feddd.py
    "feddd_a": (
        "64-128-256-512-512/100-100",
        "64-128-256-256-512/100-100",
        "64-128-256-256-512/80-100",
        "32-128-256-256-512/80-100",
        "32-96-256-256-512/80-100",
    ),
    "feddd_b": (
        "64-128-256-512-512/100-100",
        "64-128-256-512-256/100-100",
        "64-128-256-256-256/80-80",
        "32-96-256-256-256/80-80",
        "32-96-128-128-256/80-80",
    ),
}


def _submodels() -> dict[str, Card]:
    table = {"feddd_a": "3", "feddd_b": "6"}
    return {
        f"{family}{i}": Card(f"FedDD Table {table[family]}, sub-model {i}: {widths}", _image(32))
        for family, members in SUBMODELS.items()
        for i, widths in enumerate(members, 1)
    }


CARDS: dict[str, Card] = {
    "logistic": Card("Multinomial logistic regression: one linear layer", ANY),
    "mlp": Card("FedDD Table 2 MLP: 100-64 hidden units; 85,614 parameters on 1×28×28", ANY),
    "mlp_fedaware": Card("FedAWARE's MLP: 200-200 hidden units; 199,210 parameters on 1×28×28", ANY),
    "cnn_small": Card("FedDD Table 2 CNN1: two 5×5 convolutions, 21,840 parameters on 1×28×28", _image(4)),
    "cnn2": Card("FedDD Table 2 CNN2: three 3×3 convolutions, 587,194 parameters on 3×32×32", _image(8)),
    **_submodels(),
    "cnn_fedacs_mnist": Card("FedACS Table 3, MNIST: convolutions 10-20, dropout, 50 hidden units", _image(4)),
    "cnn_fedacs_cifar10": Card("FedACS Table 3, CIFAR-10: convolutions 32-32, 256-64 hidden units", _image(4)),
    "cnn_fedacs_cinic10": Card("FedACS Table 3, CINIC-10: convolutions 32-32, dropout, 512-256 hidden", _image(4)),
    "cnn_fedaware": Card("FedAWARE's CIFAR-10 CNN: three 3×3 convolutions, 64 hidden units", _image(18)),
    "lenet5": Card("LeNet-5 (LatencySel): 61,706 parameters on 1×28×28", _image(12)),
    "cnn_leaf": Card("LEAF's FEMNIST CNN: convolutions 32-64, 2048 hidden units", _image(4)),
    "cnn_leaf_celeba": Card("LEAF's CelebA CNN: four 3×3 convolutions of 32 channels, batch norm", _image(9)),
    "resnet18": Card("ResNet-18 for small images, GroupNorm of 2 groups", _image(1)),
    "resnet18_bn": Card("ResNet-18 for small images, BatchNorm on batch statistics", _image(9)),
    "lstm": Card("Characters or words: embedding of 8, one LSTM layer of 128", TOKENS, text=True),
    "lstm_leaf": Card("LEAF's Shakespeare model: embedding of 8, two LSTM layers of 256", TOKENS, text=True),
    "transformer": Card("Characters or words: two causal blocks of width 64, four heads", TOKENS, text=True),
    "linear_regression": Card("Linear regression: one linear layer, as many outputs as targets", ANY, regression=True),
    "log_quadratic": Card("DELTA's synthetic regression: log((a·x − b)²/2), two parameters", NUMBER, regression=True),
    "quadratic": Card(
        "FedACS's toy example: the point closest to all samples; clients take exact steps", VECTOR, regression=True
    ),
}


def names() -> list[str]:
    """Return the names ``build`` knows."""
    return list(CARDS)


def info() -> dict[str, str]:
    """Return one line about each model."""
    return {name: card.about for name, card in CARDS.items()}


def fitting(shape: Shape, classes: int, tokens: int = 0, each: bool = False, outputs: int = 1) -> list[str]:
    """Return the names of the models that take such samples; ``classes`` is 0 for regression.

    ``tokens``: how many the inputs use, where they are whole numbers. ``each``: every position has an answer.
    ``outputs``: numbers that a regression answers.
    """
    return [name for name in CARDS if not _misfits(name, shape, classes, tokens, each, outputs)]


def takes_tokens(name: str, shape: Shape, classes: int, tokens: int = 0, each: bool = False, outputs: int = 1) -> bool:
    """Return whether a model takes whole numbers as tokens; others take them as plain numbers."""
    if name == "auto":
        return bool(tokens) and each
    return name in CARDS and CARDS[name].text


def default_for(shape: Shape, classes: int, tokens: int = 0, each: bool = False, outputs: int = 1) -> str:
    """Return the model to use for such samples when the user names none; ``classes`` is 0 for regression."""
    if tokens and each:
        return "lstm"
    if classes == 0:
        return "log_quadratic" if shape == (1,) and outputs == 1 else "linear_regression"
    if len(shape) != 3 or min(shape[1:]) < 16:
        return "logistic"
    if min(shape[1:]) >= 64:
        return "cnn_leaf_celeba"
    return "cnn_small" if shape[0] == 1 else "cnn_fedacs_cifar10"


def _misfits(name: str, shape: Shape, classes: int, tokens: int, each: bool, outputs: int) -> list[str]:
    """Return what is wrong with a model for such samples."""
    card, problems = CARDS[name], list[str]()
    if not card.need.met(shape) or (card.text and not tokens):
        hint = f" A grey image is {(1, *shape)}, with its channel." if len(shape) == 2 and not card.text else ""
        problems.append(f"Model {name!r} needs {card.need.text}. Got {shape} instead.{hint}")
    if card.regression and classes:
        problems.append(f"Model {name!r} is for regression (0 classes). Got {classes} classes.")
    if classes == 0 and not card.regression:
        one = "Classes are whole numbers, or words in a frame: give y.astype(int) if these are classes."
        way = one if outputs == 1 else f"For {outputs} targets or labels a sample, give a function that makes a module."
        problems.append(f"Model {name!r} is a classifier. Got 0 classes, a regression. {way}")
    if each and not card.text:
        problems.append(f"Model {name!r} gives one answer per sample. The labels have one at every position.")
    if outputs > 1 and card.regression and name != "linear_regression":
        problems.append(f"Model {name!r} answers one number. The targets have {outputs}.")
    return problems


def check(name: str, shape: Shape, classes: int, tokens: int = 0, each: bool = False, outputs: int = 1) -> None:
    """Raise BadInput unless the model exists and takes such samples, without importing torch."""
    if name not in CARDS:
        raise BadInput(choice("model", name, CARDS))
    if not shape or min(shape) < 1:
        raise BadInput(f"The shape of a sample must be sizes of 1 or more, such as (1, 28, 28). Got {shape} instead.")
    if classes < 0 or classes == 1:
        raise BadInput(f"The number of classes must be 2 or more, or 0 for regression. Got {classes} instead.")
    if problems := _misfits(name, shape, classes, tokens, each, outputs):
        fits = ", ".join(fitting(shape, classes, tokens, each, outputs)) or "none, give a function that makes one"
        raise BadInput(*(f"{problem} Models that fit: {fits}." for problem in problems))


def build(name: str, shape: Shape, classes: int, tokens: int = 0, each: bool = False, outputs: int = 1) -> nn.Module:
    """Build the model for samples of this shape, e.g. ``build("cnn_small", (1, 28, 28), 10)``."""
    shape = tuple(shape)
    check(name, shape, classes, tokens, each, outputs)
    if find_spec("torch") is None:
        raise BadInput("Models need PyTorch. Install it with: pip install 'fedweave[torch]'.")
    from fedweave.models.nets import FACTORIES, TEXT

    if CARDS[name].text:
        return TEXT[name](shape, classes, tokens, each)
    return FACTORIES[name](shape, outputs if name == "linear_regression" else classes)
