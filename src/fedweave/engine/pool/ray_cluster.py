"""A Ray cluster: how to join it, and whether its machines give the same bits."""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import threading
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from fedweave.core.settings import BadInput, brief
from fedweave.engine.machine import SOFTWARE, processor, versions

# A cluster of our own tells nobody that it is used and listens to this machine alone. Ray has the second as a switch
# for Windows and macOS, where it is the default, and looks at it when it is imported.
ALONE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def connected(cpus: int | None) -> tuple[Any, bool]:
    """Return Ray and whether we connected it: to the cluster of RAY_ADDRESS, or to a new one on this machine."""
    address = os.environ.get("RAY_ADDRESS") or "local"
    with _environment(ALONE if address == "local" else {}), _same_handler(signal.SIGTERM):
        import ray

        if ray.is_initialized():
            return ray, False
        own = {"num_cpus": cpus, "include_dashboard": False} if address == "local" else {}
        try:
            _knock(address)
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (OSError, ValueError) as e:
            raise BadInput(
                f"The Ray cluster at RAY_ADDRESS={address!r} cannot be joined: {e} "
                "If it wants a token, RAY_AUTH_MODE=token is needed here too."
            ) from None
        _raylet_messages(ray, False)
        return ray, True


def leave(ray: Any) -> None:
    """Leave a cluster that we joined, or end one that we started."""
    _raylet_messages(ray, True)
    ray.shutdown()


def _raylet_messages(ray: Any, wanted: bool) -> None:
    """Whether Ray prints what happens to its nodes: on the standard output, where a run may write its JSON."""
    ray._private.worker._worker_logs_enabled = wanted


def _knock(address: str) -> None:
    """Raise an OSError if nobody listens there: Ray itself would try for minutes."""
    if ":" in address:  # and not "auto" or "local"
        host, port = address.removeprefix("ray://").rsplit(":", 1)
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


@contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    """Set environment variables for a while, unless the user has set them."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


@contextmanager
def _same_handler(number: signal.Signals) -> Generator[None]:
    """Keep the handler of a signal: with the one that Ray puts in its place, a run would not say how to go on."""
    if threading.current_thread() is not threading.main_thread():  # where neither we nor Ray can set one
        yield
        return
    before = signal.getsignal(number)
    try:
        yield
    finally:
        signal.signal(number, before)


def about_here() -> dict[str, Any]:
    """Say where in a cluster this process is, and with what software and processor."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    return {"node": node, "machine": platform.node(), "versions": versions(), "processor": processor()}


def check_machine(about: Mapping[str, Any]) -> None:
    """Refuse a machine that has other software than this one, and warn of another kind of processor."""
    here, there, name = versions(), about["versions"], brief(about["machine"])
    if other := [
        f"{what} {there.get(what)}, not {here.get(what)}" for what in SOFTWARE if there.get(what) != here.get(what)
    ]:
        raise BadInput(
            f"The machine {name!r} of the Ray cluster has other software than this one: {', '.join(other)}. "
            "Install the same versions on all machines."
        )
    if about["processor"] != processor():
        kinds = [brief(", ".join(kind.values()), 200) for kind in (about["processor"], processor())]
        warnings.warn(
            f"The Ray cluster has another kind of processor, {kinds[0]}, than this machine, {kinds[1]}: the last bits "
            "may differ, and from run to run.",
            stacklevel=2,
        )
