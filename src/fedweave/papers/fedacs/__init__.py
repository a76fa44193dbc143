"""FedACS: its figures and tables, and questions beyond it; imported lazily, because quadratics need no torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = {
    "quadratics": ("fig4", "fig7"),
    "images": ("fig6", "fig9", "fig10", "table1", "table4", "table5"),
    "beyond": ("links", "effort"),
    "noise": ("private",),
}


def __getattr__(name: str) -> Any:
    for module, items in MODULES.items():
        if name in items:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
