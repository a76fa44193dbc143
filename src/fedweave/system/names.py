"""The named worlds, as ``--system`` and ``Experiment(system=...)`` take them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedweave.core import plugins
from fedweave.core.roles import System
from fedweave.core.settings import BadInput, choice
from fedweave.system.devices import Devices, Spread
from fedweave.system.layers import DayNight, Jittered, OnOff
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
    "devices": (
        Devices,
        "seconds per step and Mbit/s up and down, log-normal, one draw per client; devices:0.1:5:20 gives the medians",
    ),
}


class Form(NamedTuple):
    """How a layer is written, behind the world that it is laid around and a comma."""

    make: type[Any]
    form: str  # the values are the first fields behind ``inner``; all can be left out
    about: str


LAYERS = {
    "jitter": Form(
        Jittered, "jitter:COMPUTE:LINK", "around any world: seconds times factors of mean one, new every round"
    ),
    "day-night": Form(
        DayNight,
        "day-night:PERIOD:SHARE:ZONES",
        "around any world: clients are there by day, a SHARE of every PERIOD rounds; ZONES: drawn or ordered",
    ),
    "on-off": Form(
        OnOff, "on-off:UP:DOWN", "around any world: clients come and go, UP rounds there, DOWN rounds not, on average"
    ),
}


def info() -> dict[str, str]:
    """Return one line about each way to write a system."""
    layers = {f",{layer.form}": layer.about for layer in LAYERS.values()}
    trace = {"TRACE.csv": "a world from a file; behind a comma it is laid around another one"}
    return {**{name: about for name, (_, about) in SYSTEMS.items()}, **layers, **trace}


def parse(text: str) -> System:
    """Return the world that is written as a name or a trace file, and the layers around it behind commas.

    ``lognormal,jitter:0.3,day-night:24:0.5`` has log-normal seconds, jitter on them, and days and nights. Without a
    world in front of them layers are laid around ``uniform``.
    """
    parts = [text] if os.path.isfile(text) else [part.strip() for part in text.split(",")]
    system = None if parts[0].partition(":")[0] in LAYERS else _world(parts.pop(0))
    for part in parts:
        system = _around(system or Uniform(), part)
    return system or Uniform()


def _world(text: str) -> System:
    if text in SYSTEMS:
        return SYSTEMS[text][0]()
    if text.endswith(".csv"):
        return Trace(Path(text))
    if text.startswith("devices:") and not plugins.is_plugin(text):
        return _devices(text.split(":")[1:])
    if plugin := plugins.plugin_text("systems", text):
        return plugins.make(plugin, System, "a System")
    known = [*SYSTEMS, *LAYERS, *plugins.offered("systems")]
    raise BadInput(f"{choice('system', text, known)} Or give a trace file, TRACE.csv.{plugins.hint(text)}")


def _devices(medians: list[str]) -> Devices:
    """Return devices with these medians and the usual spreads."""
    form = "Write devices:STEP_SECONDS:UP_MBIT:DOWN_MBIT, the medians of log-normal distributions."
    usual: dict[str, Spread] = {name: getattr(Devices(), name) for name in ("step_seconds", "up_mbit", "down_mbit")}
    if len(medians) > len(usual):
        raise BadInput(f"The system 'devices' has {len(medians)} values. {form}")
    given: dict[str, Any] = {
        name: (spread.law, median, spread.second)
        for (name, spread), median in zip(usual.items(), medians, strict=False)
    }
    try:
        return Devices(**given)
    except BadInput as e:
        raise BadInput(*e.problems, form) from None


def _around(inner: System, text: str) -> System:
    """Return the layer of this text around ``inner``."""
    kind, *values = text.split(":")
    if text.endswith(".csv"):
        return Trace(Path(text), inner=inner)
    if kind not in LAYERS:
        raise BadInput(f"{choice('layer around a system', text, LAYERS)} Or give a trace file, TRACE.csv.")
    make, form, _ = LAYERS[kind]
    if len(values) > form.count(":"):
        raise BadInput(f"The system {text!r} has too many values. Write {form}.")
    try:
        return make(inner, *values)  # settings turn the written numbers into numbers
    except BadInput as e:
        raise BadInput(*e.problems, f"It is written {form}.") from None
