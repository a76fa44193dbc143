"""The LEAF benchmark's json files (Caldas et al., arXiv:1812.01097): samples by user."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedweave.core.settings import BadInput, brief
from fedweave.core.typed_json import Checked, parse_json
from fedweave.data.arrays import build
from fedweave.data.checks import MOST_CLASSES
from fedweave.data.columns import Array
from fedweave.data.dataset import Dataset
from fedweave.data.fetch import Offer, locate
from fedweave.data.folders import read_images

CELEBA_SIZE = (84, 84)  # as in LEAF


class Samples(Checked):
    """What a file has of one user."""

    x: list[Any]
    y: list[Any]  # labels are checked with the data set that they are of


class Content(Checked):
    """What a file must hold."""

    users: list[str]
    num_samples: list[int]
    user_data: dict[str, Samples]


class Users(NamedTuple):
    """Samples in the order of the users' names."""

    names: list[str]  # of the users
    x: list[Any]
    y: list[int]
    sizes: list[int]  # samples of each user


def femnist(root: Path | None = None) -> Dataset:
    """FEMNIST of LEAF: 62 characters, 28×28 grey, by writer; needs files prepared with LEAF."""
    train, test = _read_both("femnist", root)
    groups = _groups(train, test)
    parts = [(_pixels(users), _labels("femnist", users)) for users in (train, test)]
    return build("femnist", (*parts[0], groups[0]), (*parts[1], groups[1]), 62)


def celeba(root: Path | None = None) -> Dataset:
    """CelebA of LEAF: smiling or not, 84×84 RGB, by celebrity; needs files prepared with LEAF."""
    train, test = _read_both("celeba", root)
    groups = _groups(train, test)
    place = "celeba/raw/img_align_celeba"
    how = f"Unpack img_align_celeba.zip of the CelebA authors as {place} under the data root"
    folder = locate("celeba", {place: ""}, Offer(place, how=how), root)
    parts = [(_photos(folder, users), _labels("celeba", users)) for users in (train, test)]
    return build("celeba", (*parts[0], groups[0]), (*parts[1], groups[1]), 2)


def read_users(folder: Path) -> Users:
    """Read every json file of a folder and put the users in the order of their names."""
    data: dict[str, tuple[list[Any], list[int]]] = {}
    files = sorted(folder.glob("*.json"))
    if not files:
        raise BadInput(f"{folder} has no json files. Prepare them with LEAF's preprocess.sh.")
    for file in files:
        for user, (x, y) in _read(file).items():
            old = data.setdefault(user, ([], []))
            old[0].extend(x)
            old[1].extend(y)
    names = sorted(user for user in data if data[user][1])
    sizes = [len(data[u][1]) for u in names]
    return Users(names, [v for u in names for v in data[u][0]], [v for u in names for v in data[u][1]], sizes)


def _read(file: Path) -> dict[str, tuple[list[Any], list[int]]]:
    try:
        content = parse_json(file.read_bytes(), Content, "it")
        users = {u: (content["user_data"][u]["x"], content["user_data"][u]["y"]) for u in content["users"]}
        expected = dict(zip(content["users"], content["num_samples"], strict=True))
    except (OSError, ValueError, KeyError) as e:
        raise BadInput(f"{file} is not a LEAF file ({type(e).__name__}: {e}). Prepare it again.") from None
    for user, (x, y) in users.items():
        if not len(x) == len(y) == expected[user]:
            raise BadInput(
                f"{file}: user {user!r} has {len(x)} samples and {len(y)} labels, num_samples says "
                f"{expected[user]}. Prepare the file again."
            )
    return users


def _read_both(data: str, root: Path | None) -> tuple[Users, Users]:
    parts: list[Users] = []
    for part in ("train", "test"):
        place = f"{data}/{part}"
        how = (
            "It cannot be fetched: clone https://github.com/TalwalkarLab/leaf, run "
            f"`./preprocess.sh -s niid --sf 1.0 -k 0 -t sample` in its data/{data} and copy "
            f"data/{data}/data/{part} to {place} under the data root"
        )
        parts.append(read_users(locate(data, {place: ""}, Offer(place, how=how), root)))
    return parts[0], parts[1]


def _groups(train: Users, test: Users) -> list[Array]:
    """Number users by name, not by position, because the files list them in different orders."""
    number = {name: i for i, name in enumerate(sorted({*train.names, *test.names}))}
    return [np.repeat(np.array([number[n] for n in p.names], np.int64), p.sizes) for p in (train, test)]


def _labels(data: str, users: Users) -> Array:
    wrong = [y for y in users.y if type(y) is not int or not 0 <= y < MOST_CLASSES]
    if wrong:
        raise BadInput(f"{data} needs whole numbers from 0 as labels. Got {brief(wrong[0])}. Prepare the files again.")
    return np.array(users.y, np.int64)


def _pixels(users: Users) -> Array:
    """Turn flat rows of 784 values 0..1 (1 is the white paper) into bytes."""
    try:
        x = np.asarray(users.x, np.float32).reshape(len(users.x), 1, 28, 28)
    except (ValueError, TypeError) as e:
        raise BadInput(f"femnist needs 784 numbers per sample ({e}). Prepare the files again.") from None
    if not (np.isfinite(x).all() and x.min(initial=0) >= 0 and x.max(initial=0) <= 1):
        raise BadInput("femnist needs pixels in 0..1. Prepare the files again.")
    return np.rint(x * 255).astype(np.uint8)


def _photos(folder: Path, users: Users) -> Array:
    files = [folder / Path(str(name)).name for name in users.x]
    lost = next((f for f in files if not f.is_file()), None)
    if lost is not None:
        raise BadInput(f"celeba needs {lost}, which is missing. Unpack img_align_celeba.zip again.")
    return read_images(files, CELEBA_SIZE, 3, resize=True)
