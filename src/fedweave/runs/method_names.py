"""The methods of ``fedweave.methods`` by name, as the command line and ``Experiment(method=...)`` take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from fedweave import methods
from fedweave.core import plugins
from fedweave.core.settings import BadInput, choice, shown
from fedweave.method import Method

PER_ROUND = 5  # clients of a round, where a method is given by its name alone


def method_names() -> dict[str, str]:
    """Return the named methods and what they are."""
    zoo = inspect.getmembers(methods, lambda f: inspect.isfunction(f) and f.__module__ == methods.__name__)
    return {name: (f.__doc__ or "").strip().split("\n")[0] for name, f in zoo if name not in methods.RENAMED}


def method_groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Return these names by what the methods cure, in the order of ``methods.GROUPS``; those in no group come last."""
    left = dict.fromkeys(names)
    found = {group: [n for n in named.split() if n in left] for group, (_, named) in methods.GROUPS.items()}
    rest = [n for n in left if not any(n in some for some in found.values())]
    return found | ({"plug-ins": rest} if rest else {})


def parse(name: str, per_round: int = PER_ROUND) -> Method:
    """Return the method of this name, with so many clients in a round; of a plug-in, if it is a function of that."""
    if name in method_names() or name in methods.RENAMED:
        return getattr(methods, name)(per_round)
    if not (plugin := plugins.plugin_text("methods", name)):
        raise unknown(name)

    def call(make: Callable[..., Any]) -> Any:
        return make(per_round) if inspect.signature(make).parameters else make()

    method = plugins.make(plugin, Method, "a Method", call)
    unnamed = method.name == Method.__dataclass_fields__["name"].default
    return replace(method, name=plugin.rpartition(":")[2]) if unnamed else method


def method_of(given: Any) -> Method:
    """Return a method that is given itself or by its name."""
    if not isinstance(given, str | Method):
        raise BadInput(f"A method must be a Method, or the name of one. Got {shown(given)}.")
    return parse(given) if isinstance(given, str) else given


def unknown(name: Any) -> BadInput:
    """Return the error for what is the name of no method."""
    return BadInput(choice("method", name, [*method_names(), *plugins.offered("methods")]) + plugins.hint(name))
