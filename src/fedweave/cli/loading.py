"""Start quickly: load torch's library beside the rest, and collect no garbage while modules are imported."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from threading import Thread

TRAINING = ("run", "compare", "sweep", "resume", "report", "export", "reproduce")  # commands that import torch


@contextmanager
def uncollected() -> Generator[None]:
    """Import without looking for garbage: what modules define stays until the end, and then need not be sorted out."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def load_ahead() -> None:
    """Have a thread load torch's shared library if a command will train: that needs no interpreter."""
    if sys.platform == "linux" and sys.argv[1:] and sys.argv[1] in TRAINING:
        Thread(target=_load).start()


def _load() -> None:
    """Load the libraries in the order in which torch does; where it has a GPU's too, it has a way of its own."""
    torch = find_spec("torch")
    folder = (
        os.path.join(*torch.submodule_search_locations, "lib") if torch and torch.submodule_search_locations else ""
    )
    if any(os.path.exists(os.path.join(folder, f"libtorch_{gpu}.so")) for gpu in ("cuda", "hip", "xpu")):
        return
    with suppress(OSError):  # torch itself will say what is wrong
        ctypes.CDLL(os.path.join(folder, "libtorch_global_deps.so"), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(os.path.join(folder, "libtorch_python.so"), os.RTLD_LAZY)
