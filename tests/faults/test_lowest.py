"""The lowest versions that pyproject.toml allows: they can be installed together, and the suite passes with them."""

import re
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fleet import THOROUGH

from clean import ROOT, built, called, pip_installed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = {"torch"}  # by constraints.txt: of older releases only builds for CUDA are offered, gigabytes large
TOOLS = ("ruff", "import-linter", "basedpyright", "pre-commit")  # they check the sources and import nothing
LEFT_OUT = ("tests/faults", "tests/flower/test_processes.py")  # the longest
NOT_OURS = "tests/solve/test_min_norm.py::test_as_short_as_another_solver_finds_on_1000_random_sets"  # the other: nnls


def lowest() -> list[str]:
    """Return the lowest version of every requirement, as pip takes it."""
    lines = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]
    found = [re.fullmatch(r"([\w-]+)>=([\w.]+)(,<[\w.]+)?", line) for line in lines if not line.startswith("fedweave[")]
    assert all(found), "a requirement without a lowest version"
    return sorted({f"{m[1]}=={m[2]}" for m in found if m and m[1] not in {*PINNED, *TOOLS}})


def test_every_requirement_has_one_lowest_version():
    names = [line.partition("==")[0] for line in lowest()]
    assert len(names) == len(set(names)) >= 20


@pytest.mark.skipif(not THOROUGH, reason="installs everything anew, which takes minutes: make faults")
def test_the_suite_passes_with_the_lowest_versions(tmp_path):
    tests = ["-n", "2", "-p", "no:cacheprovider", "--deselect", NOT_OURS, *(f"--ignore={name}" for name in LEFT_OUT)]
    with TemporaryDirectory() as venv:  # it is large
        python = pip_installed(built(tmp_path)[1], "all", Path(venv), *lowest())
        result = called(python, "-m", "pytest", *tests, folder=ROOT, FEDWEAVE_FAULTS="")
    assert result.returncode == 0, result.stdout
    print(result.stdout.splitlines()[-1])  # noqa: T201 - the figures, with -s
