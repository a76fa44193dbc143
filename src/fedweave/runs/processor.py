"""The kind of processor that a run has: between kinds, the last bits may differ."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")
# With these variables, the libraries that compute take a processor for another one.
IMITATIONS = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
    "NUMBA_CPU_FEATURES",
    "NUMBA_CPU_NAME",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
FACTS = {  # of Intel and AMD, and of ARM
    "model name": "",
    "vendor_id": "",
    "cpu family": "family ",
    "model": "model ",
    "CPU implementer": "implementer ",
    "CPU part": "part ",
}


def processor() -> dict[str, str]:
    """Return the processor's name, the vectors that torch uses on it, and the variables that imitate another one."""
    imitated = {name: os.environ[name] for name in IMITATIONS if name in os.environ}
    return {"name": processor_name(CPUINFO), "vectors": torch.backends.cpu.get_cpu_capability(), **imitated}


@cache
def processor_name(cpuinfo: Path) -> str:
    """Return what Linux says of the first core; elsewhere, what Python knows."""
    try:
        first = cpuinfo.read_text().split("\n\n")[0]
    except OSError:
        first = ""
    said = dict([part.strip() for part in line.split(":", 1)] for line in first.splitlines() if ":" in line)
    found = ", ".join(f"{label}{said[fact]}" for fact, label in FACTS.items() if fact in said)
    return found or platform.processor() or platform.machine()
