"""The command ``fedweave doctor``: what is installed, what is missing, and how to get it.

It loads neither torch nor NumPy nor pydantic: it has to work where they are broken.
"""

from __future__ import annotations

import ctypes
import json as json_text
import os
import platform
import re
import shutil
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, NamedTuple

from fedweave import __version__
from fedweave.cli.data_files import NEEDS, missing
from fedweave.cli.packages import EXTRAS, Requirement, extras_of, installed, packages, requirements
from fedweave.cli.parameters import Json
from fedweave.engine.machine import CPUINFO, IMITATIONS, processor_name

LEAST_FREE = 2**30  # bytes of the temporary folder; below that there is a warning
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container
SHOWN = ("torch", "numpy", "scipy", "pydantic", "numba", "scikit-learn", "pandas", "flwr", "ray")  # versions


class Finding(NamedTuple):
    """Something that is wrong, and how to mend it."""

    what: str
    way: str
    stops: bool  # whether training is impossible with it

    def __str__(self) -> str:
        return f"{self.what}. {self.way}"


def command(*, json: Json = False) -> None:
    """Show what is installed, which data is there, and what is missing and how to get it.

    The exit code is 1 if something is missing that training needs.
    """
    facts, findings = examine()
    ready = not any(finding.stops for finding in findings)
    if json:
        print(json_text.dumps({"ready": ready, **facts, "findings": [f._asdict() for f in findings]}))
    else:
        sys.stdout.write(_page(facts, shutil.get_terminal_size().columns))
        sys.stdout.flush()
        for finding in findings:
            print(f"{'error' if finding.stops else 'warning'}: {finding}", file=sys.stderr)
        print("Training is possible." if ready else "Training is not possible yet.")
    if not ready:
        sys.exit(1)


def examine() -> tuple[dict[str, Any], list[Finding]]:
    """Return what this machine and installation are like, as plain data, and what is wrong with them."""
    lines, findings = requirements(), list[Finding]()
    facts = {
        "versions": _versions(lines, findings),
        "machine": _machine(),
        "device": dict(zip(("name", "why"), device(), strict=True)),
        "temporary": _temporary(findings),
        "data": _data(),
        "cache": _cache(),
        "extras": _extras(lines, findings),
    }
    return facts, findings


def _versions(lines: list[Requirement], findings: list[Finding]) -> dict[str, str]:
    """Return the versions that matter; what every command needs is checked."""
    found = {"fedweave": __version__, "python": platform.python_version()}
    stated = installed("fedweave").found
    if stated is None:
        way = "In its folder, install it with: pip install -e ."
        findings.append(
            Finding("fedweave is not installed as a package, so the versions that it needs are unknown", way, False)
        )
    elif stated != __version__:
        what = f"The package is fedweave {stated}, but what runs is {__version__} in {Path(__file__).parents[1]}"
        findings.append(Finding(what, "Install it again, or look at PYTHONPATH.", False))
    for package in packages(lines).values():
        if package.problem:
            findings.append(Finding(package.sentence("fedweave"), f"Mend it with: {package.command}", True))
    return found | {name: number for name in SHOWN if (number := installed(name).found)}


def _extras(lines: list[Requirement], findings: list[Finding]) -> dict[str, Any]:
    """Return every extra with its packages; an unfit package is a finding, and so is what training lacks."""
    found: dict[str, Any] = {}
    reported = set[str]()
    for extra, members in extras_of(lines).items():
        way = f"pip install 'fedweave[{extra}]'"
        for package in members.values():
            if package.problem and package.name not in reported and (package.found or extra == "torch"):
                reported.add(package.name)
                mend = package.command if package.found else way
                what = package.sentence(f"The extra {extra}")
                findings.append(Finding(what, f"Mend it with: {mend}", extra == "torch"))
        found[extra] = {
            "for": EXTRAS.get(extra, ""),
            "installed": not any(package.problem for package in members.values()),
            "missing": [package.name for package in members.values() if package.found is None],
            "packages": {package.name: package.found for package in members.values()},
            "command": way,
        }
    return found


def _machine() -> dict[str, Any]:
    """Return processor, cores and memory."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    total, free = memory()
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor_name(CPUINFO),
        "imitates": {name: os.environ[name] for name in IMITATIONS if name in os.environ},
        "cores": os.cpu_count() or 1,
        "usable_cores": usable,
        "memory_bytes": total,
        "free_memory_bytes": free,
    }


def memory() -> tuple[int | None, int | None]:
    """Return the bytes of memory that this process may use, and those that are free, as far as they are known."""
    total = free = None
    with suppress(OSError, ValueError, AttributeError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError):
        said = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
        free = int(said[1]) * 1024 if said else None
    for path in LIMITS:
        with suppress(OSError, ValueError):  # "max" is no limit
            total = min(int(Path(path).read_text()), total or sys.maxsize)
    return total, min(free, total) if free and total else free


def device() -> tuple[str, str]:
    """Return what ``--device auto`` will choose and why, from torch's files and the driver; torch is not loaded."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return "none", "torch is not installed"
    built = {}
    with suppress(OSError):
        text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text()
        built = dict(re.findall(r"^(cuda|hip)\b[^=]*= *'([^']+)'", text, re.MULTILINE))
    if built.get("hip"):
        there = os.path.exists("/dev/kfd")
        return ("cuda", "an AMD GPU by ROCm") if there else ("cpu", "torch is built for ROCm, but there is no /dev/kfd")
    if not built.get("cuda"):
        return "cpu", "torch is built for CPUs only"
    count = cuda_devices()
    if count is None:
        return "cpu", f"torch is built for CUDA {built['cuda']}, but there is no driver"
    if not count:
        return "cpu", "the driver sees no CUDA device; CUDA_VISIBLE_DEVICES may hide it"
    return "cuda", f"{count} CUDA device{'s' if count > 1 else ''}"


def cuda_devices() -> int | None:
    """Return how many devices NVIDIA's driver sees; None without a driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int(0)
    started = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if started else 0


def _temporary(findings: list[Finding]) -> dict[str, Any]:
    """Return the temporary folder, which workers and large rounds need."""
    try:
        with tempfile.TemporaryFile(prefix="fedweave-") as file:
            file.write(b"fedweave")
        folder, free = tempfile.gettempdir(), shutil.disk_usage(tempfile.gettempdir()).free
    except OSError as e:
        way = "Set TMPDIR to a folder that can be written."
        findings.append(Finding(f"There is no temporary folder that can be written: {e.strerror or e}", way, True))
        return {"folder": None, "free_bytes": None}
    if free < LEAST_FREE:
        what = f"The temporary folder {folder} has {_size(free)} left, and data sets are shared through it"
        findings.append(Finding(what, "Make room, or set TMPDIR to another folder.", False))
    return {"folder": folder, "free_bytes": free}


def _data() -> dict[str, Any]:
    """Return the data folder and, of every data set, how to get what it lacks."""
    given = os.environ.get("FEDWEAVE_DATA")
    root = Path(given or "~/.cache/fedweave/data").expanduser()
    offline = os.environ.get("FEDWEAVE_OFFLINE", "0") not in ("", "0")
    return {
        "folder": str(root),
        "given_by": "FEDWEAVE_DATA" if given else "default",
        "exists": os.path.isdir(root),
        "offline": offline,
        "sets": {name: missing(name, root, offline) or "ready" for name in NEEDS},
    }


def _cache() -> dict[str, Any]:
    """Return where reproductions and compiled kernels are kept, and what is there."""
    runs = Path(os.environ.get("FEDWEAVE_CACHE") or "~/.cache/fedweave/reproduce").expanduser()
    there = []
    with suppress(OSError):
        there = sorted(entry.name for entry in os.scandir(Path("~/.cache/fedweave").expanduser()))
    kept = 0
    with suppress(OSError):
        kept = sum(1 for _ in os.scandir(runs))
    return {"folder": str(Path("~/.cache/fedweave").expanduser()), "holds": there, "runs": str(runs), "kept": kept}


def _size(count: int | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.0f} MB"


def _page(facts: dict[str, Any], width: int) -> str:
    """Return the facts as lines of text."""
    machine, data, cache = facts["machine"], facts["data"], facts["cache"]
    ready = [name for name, way in data["sets"].items() if way == "ready"]
    cores = f"{machine['usable_cores']} of {machine['cores']} cores can be used"
    memory = f"{_size(machine['memory_bytes'])}, {_size(machine['free_memory_bytes'])} free"
    rows = [
        ("versions", ", ".join(f"{name} {number}" for name, number in facts["versions"].items())),
        ("processor", f"{machine['processor']}; {cores}; {machine['platform']}"),
        *([("imitates", ", ".join(f"{k}={v}" for k, v in machine["imitates"].items()))] if machine["imitates"] else []),
        ("memory", memory),
        ("device", f"{facts['device']['name']}: {facts['device']['why']}"),
        ("temporary", f"{facts['temporary']['folder']}, {_size(facts['temporary']['free_bytes'])} free"),
        ("data", f"{data['folder']} ({_origin(data)})"),
        ("  ready", ", ".join(ready)),
        *((f"  {name}", way) for name, way in data["sets"].items() if way != "ready"),
        (
            "cache",
            f"{cache['folder']} ({', '.join(cache['holds']) or 'empty'}); {cache['kept']} runs in {cache['runs']}",
        ),
        ("extras", ""),
        *((f"  {name}", _extra(extra)) for name, extra in facts["extras"].items()),
    ]
    return "\n".join(line for name, text in rows for line in _row(name, text, width)) + "\n"


def _origin(data: dict[str, Any]) -> str:
    origin = "FEDWEAVE_DATA" if data["given_by"] == "FEDWEAVE_DATA" else "set FEDWEAVE_DATA for another"
    offline = ["offline, by FEDWEAVE_OFFLINE"] if data["offline"] else []
    return ", ".join([origin, *([] if data["exists"] else ["not there yet"]), *offline])


def _extra(extra: dict[str, Any]) -> str:
    if extra["installed"]:
        return f"installed: {extra['for']}"
    lacks = f", lacks {', '.join(extra['missing'])}" if extra["missing"] else ", has a package that does not fit"
    return f"missing: {extra['for']}{lacks}; {extra['command']}"


def _row(name: str, text: str, width: int) -> list[str]:
    head = f"{name:<16}  "
    wrap = TextWrapper(
        max(width, 40), initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return wrap.wrap(text) or [name]
