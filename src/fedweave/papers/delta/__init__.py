"""DELTA: its toy example, regressions, figures and tables; imported lazily, because the first two need no torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = {
    "toy": ("fig3",),
    "regression": ("fig4", "fig11", "fig12", "fig13"),
    "motivation": ("fig2", "fig6", "fig7"),
    "images": ("table2", "table8", "fig14", "fig15"),
    "beyond": ("variants",),
    "combined": ("table3", "table4", "table5", "table6", "table7", "table9"),
}


def __getattr__(name: str) -> Any:
    for module, items in MODULES.items():
        if name in items:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
