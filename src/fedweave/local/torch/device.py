"""The device to train on."""

from __future__ import annotations

from typing import Literal

import torch

from fedweave.core.settings import BadInput


def choose_device(wanted: str, pool: Literal["local", "ray"] = "local") -> tuple[str, str]:
    """Return the device to train on and a sentence that says why."""
    if pool == "ray" and wanted == "auto":
        return "cpu", "cpu (Ray trains on CPUs)"
    if wanted == "cpu":
        return "cpu", "cpu, as asked"
    if torch.cuda.is_available():
        return "cuda", f"cuda ({torch.cuda.get_device_name(0)})"
    if wanted == "cuda":
        raise BadInput("--device cuda: torch sees no CUDA device on this machine. Use --device auto or cpu.")
    return "cpu", "cpu (torch sees no CUDA device)"
