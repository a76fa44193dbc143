"""A testbed on this machine: a real node in each network namespace, behind a link with a rate of its own.

A hub namespace has the SuperLink and a bridge; a pair of virtual interfaces leads from the bridge to each node. What a
node sends is shaped at its end, what it is sent at the hub's (token buckets, ``tc tbf``). The machine's own network is
not touched, and no packet leaves the namespaces.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import NonNegativeFloat, PositiveFloat

from fedweave.core.settings import BadInput, settings
from fedweave.fleet.local.processes import Processes

NETWORK = "10.77.0."  # of every testbed: each has a network of its own
HUB = f"{NETWORK}1"
MOST_NODES = 250
NAME = re.compile(r"fedweave-(\d+)-(\d+)-\w+")  # process that made it, when that began, and whose it is
QUEUE = "1s"  # how long a packet waits in a token bucket before it is dropped
# As over a long link. Others take a link of no length for one without limit, and lose every other packet; and a sender
# that leaves megabytes to its kernel waits longer for the answer than Flower allows, which is 30 s.
TCP = {"tcp_congestion_control": "reno", "tcp_wmem": "4096 16384 65536"}
NEW_NETWORK = 0x40000000  # CLONE_NEWNET


@settings
class Link:
    """A node's link: bit/s up and down, and the seconds that a packet takes in each direction."""

    up: PositiveFloat
    down: PositiveFloat
    delay: NonNegativeFloat = 0.0


class Testbed(Processes):
    """A SuperLink and a SuperNode behind each of these links, in namespaces that are removed afterwards.

    They are removed also when this process is killed, and by the next testbed if even the guard was killed.
    """

    __test__ = False  # for pytest: a class of the library
    host = HUB

    def __init__(self, links: Sequence[Link], *, secure: bool = True):
        if why := refusal():
            raise BadInput(why)
        if not 1 <= len(links) <= MOST_NODES:
            raise BadInput(f"A testbed has 1 to {MOST_NODES} nodes. Got {len(links)} links.")
        remove_abandoned()
        self.links, names = links, ("hub", *(f"node{i}" for i in range(len(links))))
        self._space = {name: f"fedweave-{os.getpid()}-{_began(os.getpid())}-{name}" for name in names}
        self.spaces = tuple(self._space.values())
        super().__init__(len(links), secure=secure)

    def __enter__(self) -> Testbed:
        try:
            self._build()
        except BaseException:
            self.stop()
            raise
        super().__enter__()
        return self

    def _build(self) -> None:
        hub = self._space["hub"]
        for space in self.spaces:
            _do("ip", "netns", "add", space)
            _do("ip", "-n", space, "link", "set", "lo", "up")
            with inside(space):
                for name, value in TCP.items():
                    Path(f"/proc/sys/net/ipv4/{name}").write_text(value)
        _do("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _do("ip", "-n", hub, "address", "add", f"{HUB}/24", "dev", "bridge")
        _do("ip", "-n", hub, "link", "set", "bridge", "up")
        for i, link in enumerate(self.links):
            node, port = self._space[f"node{i}"], f"port{i}"
            _do("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", node)
            _do("ip", "-n", hub, "link", "set", port, "master", "bridge", "up")
            _do("ip", "-n", node, "address", "add", f"{NETWORK}{i + 2}/24", "dev", "eth0")
            _do("ip", "-n", node, "link", "set", "eth0", "up")
            shape(node, "eth0", link.up, link.delay)
            shape(hub, port, link.down, link.delay)

    def start_link(self) -> None:
        with inside(self._space["hub"]):  # where it is also asked whether it answers
            super().start_link()

    def _start(self, command: Sequence[str], name: str) -> Any:
        with inside(self._space.get(name, self._space["hub"])):  # a process is where the thread is that starts it
            return super()._start(command, name)


def shape(space: str, device: str, rate: float, delay: float = 0.0) -> None:
    """Have an interface send no more than so many bit/s, each packet so many seconds late."""
    burst = max(16_000, round(rate / 8 / 100))  # bytes: ten milliseconds, and a few packets at least
    bucket = ("tbf", "rate", f"{round(rate)}bit", "burst", str(burst), "latency", QUEUE)
    _do("tc", "-n", space, "qdisc", "add", "dev", device, "root", "handle", "1:", *bucket)
    if delay:
        late = ("netem", "delay", f"{round(1e6 * delay)}us", "limit", "10000")
        try:
            _do("tc", "-n", space, "qdisc", "add", "dev", device, "parent", "1:1", *late)
        except BadInput as e:
            raise BadInput(f"Links with a delay need netem in the kernel: leave 'delay' out. {e}") from None


@contextmanager
def inside(space: str) -> Generator[None]:
    """Put this thread into a namespace, with the sockets that it opens and the processes that it starts."""
    with open("/proc/thread-self/ns/net", "rb") as before, open(f"/run/netns/{space}", "rb") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(space: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(space, NEW_NETWORK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _do(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadInput(f"{' '.join(command)!r} failed: {(done.stderr or done.stdout).strip()}.")
    return done.stdout


@cache
def refusal() -> str:
    """Return why there can be no testbed here, in a sentence; "" if there can."""
    if sys.platform != "linux":
        return "A testbed is made of network namespaces, which only Linux has."
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"A testbed needs {' and '.join(missing)} (Debian's package iproute2)."
    if os.geteuid():
        return "A testbed makes network namespaces, for which it must be root: run it with sudo."
    trial = f"fedweave-{os.getpid()}-{_began(os.getpid())}-trial"
    try:
        _do("ip", "netns", "add", trial)
        _do("ip", "-n", trial, "link", "add", "one", "type", "veth", "peer", "name", "other")
        shape(trial, "one", 1e6)
        with inside(trial):
            pass
    except (BadInput, OSError) as e:
        return f"A testbed needs network namespaces and shaped links, which are not allowed here: {e}"
    finally:
        remove(trial)
    return ""


def remove(space: str) -> None:
    """Remove a namespace and end the processes in it."""
    for pid in subprocess.run(
        ["ip", "netns", "pids", space], capture_output=True, text=True, check=False
    ).stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)


def remove_abandoned() -> list[str]:
    """Remove the namespaces of testbeds whose process is gone, and return their names."""
    found = [name for line in _do("ip", "netns", "list").splitlines() if (name := line.split()[0])]
    owners = {name: match.groups() for name in found if (match := NAME.fullmatch(name))}
    gone = [name for name, (pid, began) in owners.items() if _began(int(pid)) != began]
    for name in gone:
        remove(name)
    return gone


def _began(pid: int) -> str:
    """Return when a process began, in ticks since the machine did, as numbers are used again; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
