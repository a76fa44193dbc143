"""Every import of the package is declared, and what an extra brings is imported late or in the rooms of that extra."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/fedweave"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED = packages_distributions()  # the distributions of a module: sklearn comes with scikit-learn
HOMES = {  # parts of the package that need an extra as a whole, and say so where they are entered
    "local/torch": "torch",
    "local/compiled": "fast",
    "models": "torch",
    "engine": "torch",
    "local/submodels.py": "torch",
    "runs": "torch",
    "papers": "papers",
    "fleet": "flower",
}


class Import(NamedTuple):
    """A library that a file of the package imports."""

    file: str
    line: int
    library: str  # its distribution, as pip names it
    at_once: bool  # when the file is imported, not only when a function is called or types are checked


def distribution(requirement: str) -> str:
    """Return the name of what a requirement asks for, normalised."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~\[;]", requirement, maxsplit=1)[0]).lower()


def declared(extra: str | None = None) -> set[str]:
    """Return the distributions of the core, or of an extra with the extras that it includes."""
    lines = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    names = {distribution(line) for line in lines} - {"fedweave"}
    inner = [e for line in lines if (m := re.match(r"fedweave\[(.*)\]", line)) for e in m[1].split(",")]
    return names.union(*(declared(e) for e in inner))


def libraries(node: ast.AST) -> list[str]:
    """Return the libraries of an import statement that are neither Python's nor our own."""
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        modules = [node.module or ""]
    else:
        return []
    tops = {module.split(".")[0] for module in modules} - sys.stdlib_module_names - {"fedweave"}
    return [distribution(INSTALLED.get(top, [top])[0]) for top in tops]


def imports(node: ast.AST, file: str, at_once: bool = True) -> Iterator[Import]:
    """Yield every import below a node."""
    for child in ast.iter_child_nodes(node):
        yield from (Import(file, child.lineno, name, at_once) for name in libraries(child))
        late = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        yield from imports(child, file, at_once and not late)


@pytest.fixture(scope="module")
def found() -> list[Import]:
    files = {p.relative_to(SOURCE).as_posix(): p for p in SOURCE.rglob("*.py")}
    return [one for name, path in files.items() for one in imports(ast.parse(path.read_text()), name)]


def home(file: str) -> set[str]:
    """Return what a file may import at once beside the core."""
    return set().union(*(declared(extra) for place, extra in HOMES.items() if file.startswith(place)))


def undeclared(found: list[Import]) -> list[Import]:
    """Return the imports of what no extra brings, or only the one for developers."""
    everywhere = declared().union(*(declared(extra) for extra in PROJECT["optional-dependencies"] if extra != "dev"))
    return [one for one in found if one.library not in everywhere]


def too_early(found: list[Import]) -> list[Import]:
    """Return the imports of an extra where it may be missing."""
    return [one for one in found if one.at_once and one.library not in declared() | home(one.file)]


def test_every_import_is_declared(found):
    assert not undeclared(found)


def test_the_core_imports_at_once_only_what_is_always_installed(found):
    assert not too_early(found)


def test_everything_that_is_declared_is_imported(found):
    assert (declared("all") | declared()) - {one.library for one in found} == {"scikit-learn"}, (
        "read without importing it"
    )


@pytest.mark.parametrize(
    ("file", "text", "not_declared", "early"),
    [
        ("core/x.py", "import numpy", 0, 0),
        ("core/x.py", "import yaml", 1, 1),  # it is installed, since others need it
        ("core/x.py", "def f():\n    from yaml import load", 1, 0),
        ("core/x.py", "async def f():\n    import pytest", 1, 0),
        ("core/x.py", "import torch", 0, 1),
        ("core/x.py", "try:\n    import torch\nexcept ImportError:\n    pass", 0, 1),
        ("models/x.py", "import torch", 0, 0),
        ("models/x.py", "import joblib", 0, 1),
        ("fleet/x.py", "from flwr.app import Message", 0, 0),
        ("fleet/x.py", "import torch.nn as nn", 0, 1),
        ("papers/x.py", "import joblib, pandas, torch, ray", 0, 1),
    ],
)
def test_a_wrong_import_is_found(file, text, not_declared, early):
    found = list(imports(ast.parse(text), file))
    assert (len(undeclared(found)), len(too_early(found))) == (not_declared, early)


def test_late_imports_are_told_from_those_at_once():
    text = "import numpy\nif TYPE_CHECKING:\n    import pandas\nclass A:\n    import ray\ndef f():\n    import torch\n"
    seen = {one.library: one.at_once for one in imports(ast.parse(text), "x.py")}
    assert seen == {"numpy": True, "pandas": False, "ray": True, "torch": False}


def test_few_modules_lie_at_the_root():
    assert len(list(SOURCE.glob("*.py"))) <= 12
