"""What fedweave requires and what is installed, from the packages' metadata: nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import NamedTuple

EXTRAS = {  # what each is for
    "torch": "training",
    "fast": "compiled training of small networks on CPUs",
    "data": "digits, mnist5k, folders of images, tables of pandas and Parquet files",
    "papers": "reproducing the papers (fedweave reproduce)",
    "flower": "real fleets (fedweave flower)",
    "ray": "workers on a Ray cluster (--pool ray)",
    "private": "differential privacy (fedacs_private)",
    "track": "TensorBoard files (--track tensorboard:DIR)",
    "docs": "the documentation as a site (make docs)",
    "all": "all of these",
    "dev": "tests and linters",
}
MODULES = {
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "import-linter": "importlinter",
    "tensorboardx": "tensorboardX",
    "ipython": "IPython",
    "pytest-xdist": "xdist",
    "pyyaml": "yaml",
}

BARE = {  # without a package there is no metadata
    "": "numpy scipy pydantic rich cyclopts safetensors matplotlib threadpoolctl",
    "torch": "torch cloudpickle",
}


class Requirement(NamedTuple):
    """A line of the metadata."""

    name: str
    extras: tuple[str, ...]  # of that package
    versions: str  # such as >=1.26,<3
    extra: str  # of fedweave; empty for what is always needed


class Package(NamedTuple):
    """A required package as it is installed."""

    name: str
    versions: str  # those that fit
    found: str | None  # the version that is installed
    problem: str = ""  # why it does not do, behind "it"; empty if it does

    def sentence(self, wanted_by: str) -> str:
        """Return what is wrong with it."""
        return f"{wanted_by} needs {self.name}{self.versions}, but it {self.problem}"

    @property
    def command(self) -> str:
        """How to get it, or a version that fits."""
        again = " --force-reinstall" if self.found and "damaged" in self.problem else ""
        return f"pip install{again} '{self.name}{self.versions}'"


def requirements() -> list[Requirement]:
    """Return what the installed fedweave requires; where it is not installed, but only found, what training needs."""
    try:
        return [_parse(line) for line in requires("fedweave") or ()]
    except PackageNotFoundError:
        return [Requirement(name, (), "", extra) for extra, names in BARE.items() for name in names.split()]


def _parse(line: str) -> Requirement:
    what, _, marker = line.partition(";")
    named = re.match(r"([\w.-]+)\s*(?:\[([^]]*)\])?(.*)", what.strip())
    extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
    name, extras, versions = named.groups() if named else (what.strip(), "", "")
    inner = tuple(part.strip() for part in (extras or "").split(",") if part.strip())
    return Requirement(name, inner, versions.strip().strip("()"), extra[1] if extra else "")


def packages(lines: Sequence[Requirement], extra: str = "") -> dict[str, Package]:
    """Return the packages of the core, or of an extra and of those that it includes, as they are installed."""
    found: dict[str, Package] = {}
    for line in lines:
        if line.extra == extra and line.name == "fedweave":
            for inner in line.extras:
                found |= packages(lines, inner)
        elif line.extra == extra:
            found[line.name] = installed(line.name, line.versions)
    return found


@cache
def installed(name: str, versions: str = "") -> Package:
    """Return a package as it is installed."""
    module = MODULES.get(name, name.replace("-", "_"))
    try:
        number = version(name)
    except PackageNotFoundError:
        return Package(name, versions, None, "is not installed")
    if find_spec(module) is None:
        return Package(name, versions, number, f"is damaged: its module {module} is missing")
    fits = all(_fits(number, rule.strip()) for rule in versions.split(",") if rule.strip())
    return Package(name, versions, number, "" if fits else f"is {number} here")


def _fits(number: str, rule: str) -> bool:
    """Return whether a version meets a bound; rules other than bounds are for pip to judge."""
    bound = re.fullmatch(r"(>=|<=|<|>)\s*([\d.]+)", rule)
    if not bound:
        return True
    ours, theirs = _numbers(number), _numbers(bound[2])
    size = max(len(ours), len(theirs))
    ours, theirs = (side + (0,) * (size - len(side)) for side in (ours, theirs))
    return {">=": ours >= theirs, "<=": ours <= theirs, "<": ours < theirs, ">": ours > theirs}[bound[1]]


def _numbers(number: str) -> tuple[int, ...]:
    """Return the release of a version: 2.13.0+cpu is (2, 13, 0)."""
    begin = re.match(r"\d+(?:\.\d+)*", number)
    return tuple(map(int, begin[0].split("."))) if begin else ()


def extras_of(lines: Sequence[Requirement]) -> dict[str, dict[str, Package]]:
    """Return the packages of every extra, in the order of ``EXTRAS``."""
    known = dict.fromkeys(line.extra for line in lines if line.extra)
    return {extra: packages(lines, extra) for extra in [*(e for e in EXTRAS if e in known), *(known.keys() - EXTRAS)]}
