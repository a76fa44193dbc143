"""The methods of ``fedweave.methods`` by name, as the command line and ``Experiment(method=...)`` take them."""

from __future__ import annotations

import inspect

from fedweave import methods
from fedweave.core.settings import BadInput, choice
from fedweave.method import Method

PER_ROUND = 5  # clients of a round, where a method is given by its name alone


def method_names() -> dict[str, str]:
    """Return the named methods and what they are."""
    zoo = inspect.getmembers(methods, lambda f: inspect.isfunction(f) and f.__module__ == methods.__name__)
    return {name: (f.__doc__ or "").strip().split("\n")[0] for name, f in zoo if name not in methods.RENAMED}


def parse(name: str, per_round: int = PER_ROUND) -> Method:
    """Return the method of this name, with so many clients in a round."""
    if name not in method_names() and name not in methods.RENAMED:
        raise BadInput(choice("method", name, method_names()))
    return getattr(methods, name)(per_round)
