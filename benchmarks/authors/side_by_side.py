"""What the comparisons with the authors' code share: taking definitions out of a checkout, the table of differences.

Their files are scripts that begin to train when they are imported, so nothing is imported: the named functions and
classes are cut out of a file and executed alone, with stand-ins for what they use.
"""

from __future__ import annotations

import argparse
import ast
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


def checkout_of(doc: str | None, address: str, marker: str) -> Path:
    """Return the folder given on the command line; end with one sentence if the authors' code is not in it."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help=f"a clone of {address}")
    folder: Path = parser.parse_args().checkout
    if not (folder / marker).is_file():
        sys.exit(f"There is no {marker} in {str(folder)!r}: give the folder of a clone of {address}.")
    return folder


def take(file: Path, names: Iterable[str], uses: Mapping[str, Any]) -> SimpleNamespace:
    """Return these functions and classes of a file, executed among the names ``uses``; methods are "Class.method"."""
    if not file.is_file():
        sys.exit(f"There is no file {str(file)!r}: the checkout is another version than the one compared here.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # formulas in their docstrings are no valid escapes
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = node
                found |= {f"{node.name}.{m.name}": m for m in node.body if isinstance(m, ast.FunctionDef)}
        if missing := sorted(set(names) - set(found)):
            sys.exit(f"{str(file)!r} has no {', '.join(missing)}: the checkout is another version.")
        scope = dict(uses)
        program = ast.Module([found[name] for name in names], [])
        exec(compile(program, str(file), "exec"), scope)
    return SimpleNamespace(scope=scope, **{name.split(".")[-1]: scope[name.split(".")[-1]] for name in names})


def apart(theirs: Any, ours: Any) -> float:
    """Return ‖theirs − ours‖/‖ours‖."""
    a, b = (np.asarray(v.detach() if hasattr(v, "detach") else v, float) for v in (theirs, ours))
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), np.finfo(float).tiny))


class Table:
    """Relative differences by quantity, a column each for the first round, the largest and the last."""

    def __init__(self, title: str):
        print(f"\n{title}\n{'quantity':<78} {'first':>8} {'largest':>8} {'last':>8}")

    def add(self, quantity: str, differences: Iterable[float], tolerance: float = 1e-5) -> None:
        """Print a row; it agrees where no difference exceeds the tolerance."""
        rounds = list(differences)
        verdict = "agrees" if max(rounds) <= tolerance else "DIFFERS"  # nan differs
        print(f"{quantity:<78} {rounds[0]:8.1e} {max(rounds):8.1e} {rounds[-1]:8.1e}  {verdict}", flush=True)

    def fact(self, what: str, value: Any) -> None:
        """Print a number that is no difference."""
        print(f"{what:<78} {value}", flush=True)
