"""Clean environments: a virtual environment that has the wheel and what the wheel declares, and nothing else.

``linked`` needs no network and no time: it links the declared distributions, and theirs, from the environment that runs
the tests, so an import that nobody declared fails. ``pip_installed`` is the real thing, and takes minutes.
"""

import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import Distribution, PathDistribution, distribution, distributions
from pathlib import Path
from zipfile import Path as ZipPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def called(*command: str | Path, folder: Path | None = None, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with none of the modules of this environment but with these variables."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))} | changes
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def done(*command: str | Path, folder: Path | None = None, **changes: str) -> str:
    """Return what a program prints that must succeed."""
    result = called(*command, folder=folder, **changes)
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


def built(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and from what is in it alone the wheel."""
    done(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, folder=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        file.extractall(folder, filter="data")
    tree = folder / sdist.name.removesuffix(".tar.gz")
    done(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=tree)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def metadata(wheel: Path) -> Distribution:
    """Return what a wheel says of itself."""
    (info,) = (p for p in ZipPath(wheel).iterdir() if p.name.endswith(".dist-info"))
    return PathDistribution(info)


def asked(of: Distribution, extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield what a distribution needs here with these extras."""
    for line in of.requires or []:
        one = Requirement(line)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield one


def declared(wheel: Path, extras: str) -> dict[str, Distribution]:
    """Return the distributions that a wheel with these extras needs, and those that they need, by name."""
    ours = metadata(wheel)
    found, todo, seen = {}, [(ours, frozenset(extras.split(",")))], set()
    while todo:
        of, wanted = todo.pop()
        for one in asked(of, wanted):
            name, extra = canonicalize_name(one.name), frozenset(one.extras)
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            there = ours if name == canonicalize_name(ours.name) else distribution(one.name)
            assert one.specifier.contains(there.version, prereleases=True), f"{of.name} needs {one}: {there.version}"
            if there is not ours:
                found[name] = there
            todo.append((there, extra))
    return found


def tops(of: Distribution) -> set[str]:
    """Return the files and folders of a distribution that lie in site-packages itself."""
    return {file.parts[0] for file in of.files or [] if file.parts[0] != ".."}


@cache
def unpacked(wheel: Path) -> Path:
    """Return a folder into which pip installed the wheel alone."""
    folder = wheel.parent / "unpacked"
    done(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", folder, wheel)
    return folder


def linked(wheel: Path, extras: str, venv: Path) -> Path:
    """Make an environment that has links to the wheel and to what it declares; return its Python."""
    done(sys.executable, "-m", "venv", "--without-pip", venv)
    (site,) = venv.glob("lib/python*/site-packages")
    for path in unpacked(wheel).glob("fedweave*"):
        (site / path.name).symlink_to(path)
    (venv / "bin/fedweave").symlink_to(unpacked(wheel) / "bin/fedweave")
    owners = Counter(top for one in distributions() for top in tops(one))
    for one in declared(wheel, extras).values():
        shared = [file for file in one.files or [] if owners[file.parts[0]] > 1]  # its part of a common folder
        for path in [top for top in tops(one) if owners[top] == 1] + shared:
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).symlink_to(one.locate_file(path))
    return venv / "bin/python"


def pip_installed(wheel: Path, extras: str, venv: Path, *others: str) -> Path:
    """Make an environment as a user does, perhaps with other requirements; return its Python."""
    done(sys.executable, "-m", "venv", venv)
    python, pip = venv / "bin/python", (venv / "bin/python", "-m", "pip", "--disable-pip-version-check")
    what = f"{wheel}[{extras}]" if extras else wheel
    done(*pip, "install", "-q", "-c", ROOT / "constraints.txt", what, *others)
    done(*pip, "check")
    return python
