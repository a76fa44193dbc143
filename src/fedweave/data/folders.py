"""Folders of images, one folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.core.settings import BadInput
from fedweave.data.arrays import from_arrays
from fedweave.data.columns import Array
from fedweave.data.dataset import Dataset

ENDINGS = (".png", ".jpg", ".jpeg")
LAYOUT = "Expected train/CLASS/*.png|jpg with test/CLASS/*.png|jpg, or CLASS/*.png|jpg"

Size = tuple[int, int]


def image_folder(folder: Path | str, size: Size | None = None) -> Dataset:
    """Load ``train/CLASS/*`` and ``test/CLASS/*``, or ``CLASS/*`` with a fixed fifth of each as test set.

    Classes are numbered in the order of their names. All images must have one size, unless ``size`` (height,
    width) says what to resize them to. They are grey if all of them are, otherwise RGB.
    """
    folder = Path(folder).expanduser()
    name = folder.resolve().name
    if not (folder / "train").is_dir() or not _subfolders(folder / "train"):  # "train" may be a class
        classes = class_names(folder)
        files, y = list_images(folder, classes)
        x = read_images(files, size, _channels(files), resize=size is not None)
        return from_arrays(x, y, name=name, classes=len(classes), class_names=classes)
    classes = class_names(folder / "train")
    unknown = sorted(set(class_names(folder / "test")) - set(classes))
    if unknown:
        raise BadInput(f"{folder / 'test'} has the class {unknown[0]!r}, which train has not. Add or remove it.")
    files, y = list_images(folder / "train", classes)
    test_files, test_y = list_images(folder / "test", classes, may_lack=True)
    channels = _channels([*files, *test_files])
    x = read_images(files, size, channels, resize=size is not None)
    test_x = read_images(test_files, x.shape[2:], channels, resize=size is not None)
    return from_arrays(x, y, test_x, test_y, name, classes=len(classes), class_names=classes)


def class_names(folder: Path) -> list[str]:
    """Return the names of the class folders, sorted."""
    names = _subfolders(folder) if folder.is_dir() else []
    if not names:
        raise BadInput(f"{folder} has no class folders. {LAYOUT}.")
    return names


def list_images(folder: Path, names: Sequence[str], may_lack: bool = False) -> tuple[list[Path], Array]:
    """Return the image files of ``folder/NAME/*`` and their labels; with ``may_lack`` a class may have none."""
    found: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        files = sorted((folder / name).iterdir()) if (folder / name).is_dir() else []
        images = [f for f in files if f.suffix.lower() in ENDINGS and not f.name.startswith(".")]
        if not images and not may_lack:
            raise BadInput(f"{folder / name} has no images ({', '.join(ENDINGS)}). {LAYOUT}.")
        found += images
        labels += [label] * len(images)
    if not found:
        raise BadInput(f"{folder} has no images ({', '.join(ENDINGS)}). {LAYOUT}.")
    return found, np.array(labels, np.int64)


def read_images(files: Sequence[Path], size: Sequence[int] | None, channels: int, resize: bool = False) -> Array:
    """Read images as bytes (n, C, H, W), all of ``size`` (height, width) or as large as the first."""
    height, width = size or _open(files[0]).size[::-1]
    x = np.empty((len(files), channels, height, width), np.uint8)
    for row, file in zip(x, files, strict=True):
        image = _open(file)
        if image.size != (width, height):
            if not resize:
                raise BadInput(
                    f"{file} is {image.height}×{image.width} pixels, but {height}×{width} are expected. "
                    "Resize the files, or use fedweave.data.image_folder(folder, size=(height, width))."
                )
            image = image.resize((width, height), pillow().Resampling.BICUBIC)
        pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
        row[:] = pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)
    return x


def pillow() -> Any:
    """Return Pillow's Image module, or say how to install it."""
    try:
        from PIL import Image
    except ImportError:
        raise BadInput("Reading images needs Pillow. Install it with: pip install 'fedweave[data]'.") from None
    return Image


def _subfolders(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _open(file: Path) -> Any:
    try:
        image = pillow().open(file)
        image.load()  # also closes the file
    except (OSError, SyntaxError) as e:  # Pillow reports some broken files as SyntaxError
        raise BadInput(f"{file} cannot be read as an image: {e}. Remove or replace it.") from None
    if image.mode[0] in "IF":
        raise BadInput(f"{file} has pixels of more than 8 bits (mode {image.mode}). Convert it to 8 bits.")
    return image


def _channels(files: Sequence[Path]) -> int:
    for file in files:
        try:
            with pillow().open(file) as image:  # reads the header only
                if image.mode not in ("1", "L"):
                    return 3
        except OSError as e:
            raise BadInput(f"{file} cannot be read as an image: {e}. Remove or replace it.") from None
    return 1
