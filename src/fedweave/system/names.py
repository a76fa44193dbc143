"""The named worlds, as ``--system`` and ``Experiment(system=...)`` take them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedweave.core import plugins
from fedweave.core.roles import System
from fedweave.core.settings import BadInput, choice
from fedweave.system.traces import Trace
from fedweave.system.wireless import Shannon, Wireless
from fedweave.system.worlds import Dynamic, HybridPlus, Latency, Static, Uniform

SYSTEMS: dict[str, tuple[Callable[[], System], str]] = {
    "uniform": (Uniform, "the nominal work, no losses, one second for everyone"),
    "static": (Static, "work and loss rates spread evenly over the clients (FedACS I.3.1)"),
    "dynamic": (Dynamic, "redrawn every round, half slow and lossy, half fast and reliable (FedACS I.3.1)"),
    "latency": (Latency, "each client has its own seconds per participation, uniform on (0, 1]"),
    "lognormal": (Latency.heavy_tailed, "as latency, with a heavy tail: log-normal seconds of mean 0.5"),
    "hybrid": (Uniform, "uneven data makes uneven work: as uniform, give the work in epochs (FedAWARE)"),
    "wireless": (Wireless, "seconds from bytes, link rates and processors, one draw per client (FedDD table 4)"),
    "shannon": (Shannon, "as wireless, rates from bandwidth, power, gain and noise (FedDD eqs 8 and 10)"),
    "hybrid+": (HybridPlus, "random epochs and batch sizes per client and round (FedAWARE)"),
}


def info() -> dict[str, str]:
    """Return one line about each way to write a system."""
    return {**{name: about for name, (_, about) in SYSTEMS.items()}, "TRACE.csv": "a world from a file"}


def parse(text: str) -> System:
    """Return the system of this name, or the world of a trace file."""
    if text in SYSTEMS:
        return SYSTEMS[text][0]()
    if text.endswith(".csv"):
        return Trace(Path(text))
    if plugin := plugins.plugin_text("systems", text):
        return plugins.make(plugin, System, "a System")
    known = [*SYSTEMS, *plugins.offered("systems")]
    raise BadInput(f"{choice('system', text, known)} Or give a trace file, TRACE.csv.{plugins.hint(text)}")
