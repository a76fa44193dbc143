"""How to get the data sets that not everybody has."""

from __future__ import annotations

from fedweave.data.datasets import CIFAR, CINIC, EMNIST
from fedweave.data.fetch import Offer

FETCHED: dict[str, Offer] = {"cifar10": CIFAR, "cinic10": CINIC, "emnist_letters": EMNIST}
LEAF = (
    "git clone https://github.com/TalwalkarLab/leaf && cd leaf/data/{0} && ./preprocess.sh -s niid --sf 1.0 -k 0 "
    '-t sample && mkdir -p "$FEDWEAVE_DATA/{0}" && cp -r data/train data/test "$FEDWEAVE_DATA/{0}"'
)
PHOTOS = " CelebA's photographs are in img_align_celeba.zip of its authors: unpack it as celeba/raw/img_align_celeba."


def recipe(data: str) -> tuple[str, str]:
    """Return the command that gets a data set into FEDWEAVE_DATA, and what it checks."""
    if data not in FETCHED:
        why = "LEAF prepares it from its publisher's files and gives no checksum." + PHOTOS * (data == "celeba")
        return LEAF.format(data), why
    offer = FETCHED[data]
    kind, _, digest = offer.checksum.partition(":")
    command = f"python -c \"import fedweave as fw; fw.data.load('{data}')\""
    return command, f"Fetches {offer.urls[0]}, compares its {kind.upper()} with {digest}, and unpacks it."
