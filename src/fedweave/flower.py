"""fedweave over a real network, on Flower: ``client``, ``server``, and ``Strategy`` for an app that already exists."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("flwr") is None:
    raise ImportError("fedweave.flower needs Flower: pip install 'fedweave[flower]'")

if TYPE_CHECKING:
    from fedweave.fleet.client import client as client
    from fedweave.fleet.client import dealt as dealt
    from fedweave.fleet.local.grid import LocalGrid as LocalGrid
    from fedweave.fleet.server.app import run as run
    from fedweave.fleet.server.app import server as server
    from fedweave.fleet.server.terms import Terms as Terms
    from fedweave.fleet.strategy import Strategy as Strategy

_HOME = {
    "client": "client",
    "dealt": "client",
    "LocalGrid": "local.grid",
    "run": "server.app",
    "server": "server.app",
    "Strategy": "strategy",
    "Terms": "server.terms",
}
_NEEDS_TORCH = ("client", "run", "server")


def __getattr__(name: str) -> Any:
    """Import a part when it is used: Flower starts a process for every message, and torch takes seconds to load."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedweave.flower' has no attribute {name!r}")
    if name in _NEEDS_TORCH and not (find_spec("torch") and find_spec("cloudpickle")):
        raise ImportError(f"fedweave.flower.{name} needs torch: pip install 'fedweave[flower,torch]'")
    return getattr(import_module(f"fedweave.fleet.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
