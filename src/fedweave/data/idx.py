"""The idx format of MNIST and similar data: two zeros, a type, the number of axes, their lengths, then the values."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from fedweave.core.settings import BadInput, brief
from fedweave.data.columns import Array


def read_idx(path: Path) -> Array:
    """Read a file of unsigned bytes, gzipped or not."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as e:
        raise BadInput(f"{path} cannot be read: {e}. Get the file again.") from None
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise BadInput(f"{path} is not an idx file of bytes: it begins with {raw[:4].hex()}. Get the file again.")
    head = 4 + 4 * raw[3]
    shape = tuple(int.from_bytes(raw[at : at + 4], "big") for at in range(4, min(head, len(raw)), 4))
    if not 1 <= raw[3] <= 4 or len(raw) < head or len(raw) - head != math.prod(shape) or 0 in shape:
        raise BadInput(f"{path} is cut short or too long for its shape {brief(shape)}. Get the file again.")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape).copy()  # torch needs a writable array
