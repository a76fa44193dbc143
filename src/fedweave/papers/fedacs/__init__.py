"""FedACS: its figures and tables, and questions beyond it. Quadratics need no torch, so homes are opened late."""

from __future__ import annotations

from importlib import import_module
from typing import Any

HOMES = {
    "quadratics": ("fig4", "fig7"),
    "images": ("fig6", "fig9", "fig10", "table1", "table4", "table5"),
    "beyond": ("links", "effort"),
    "noise": ("private",),
}


def __getattr__(name: str) -> Any:
    for home, items in HOMES.items():
        if name in items:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
