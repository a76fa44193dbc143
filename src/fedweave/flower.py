"""fedweave over a real network, on Flower: ``client``, ``server``, and ``Strategy`` for an app that already exists."""

from __future__ import annotations

try:
    import flwr as _flwr  # noqa: F401
except ModuleNotFoundError as e:
    if e.name != "flwr":
        raise
    raise ImportError("fedweave.flower needs Flower: pip install 'fedweave[flower]'") from None

from fedweave.engine.flower.client import client as client
from fedweave.engine.flower.local_grid import LocalGrid as LocalGrid
from fedweave.engine.flower.serve import run as run
from fedweave.engine.flower.serve import server as server
from fedweave.engine.flower.terms import Terms as Terms
