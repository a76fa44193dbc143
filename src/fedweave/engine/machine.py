"""What bits depend on besides the seed: the versions of the software, and the kind of processor."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SOFTWARE = ("fedweave", "python", "torch", "numba", "numpy", "scipy")  # whose versions bits depend on
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
    import torch  # whoever lists what there is needs none of it

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


def versions() -> dict[str, str]:
    """Return the versions that matter for repeating a run."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    packages = ("fedweave", "numpy", "scipy", "torch", "numba", "scikit-learn")
    return found | {package: number for package in packages if (number := _installed(package))}


@cache
def _installed(package: str) -> str | None:
    """Return the version of a package, or None; finding it takes as long as a small round."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
