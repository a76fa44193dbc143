"""What this machine can tell of itself: its addresses, and the processes of a fleet that run on it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

PORTS = {"flower-superlink": 8000, "flower-supernode": 9094}  # by default


@dataclass(frozen=True)
class Running:
    """A running program: its command line, and whether it runs as root."""

    words: Sequence[str]
    root: bool

    def option(self, name: str) -> str | None:
        """Return the value of an option; None without it."""
        for word, following in zip(self.words, [*self.words[1:], None], strict=True):
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
            if word == name:
                return following
        return None

    @property
    def port(self) -> int:
        """The port on which it listens."""
        given = self.option("--port")
        return int(given) if given and given.isdigit() else PORTS[Path(self.words[0]).name]


def running(program: str) -> list[Running]:
    """Return the running processes of a program; others may be hidden from this account."""
    found = []
    for process in psutil.process_iter(["cmdline", "uids"]):
        words, uids = process.info["cmdline"] or [], process.info["uids"]
        at = next((i for i, word in enumerate(words[:3]) if Path(word).name == program), None)
        if at is not None:
            found.append(Running(words[at:], uids is not None and uids.effective == 0))
    return found


def own_addresses() -> list[str]:
    """Return the addresses of this machine at which others may reach it."""
    found = []
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                ip = ipaddress.ip_address(address.address.split("%")[0])
                if not ip.is_loopback and not ip.is_link_local:
                    found.append(str(ip))
    return found


def resolve(host: str) -> set[str]:
    """Return the addresses of a host; none if its name is not known."""
    try:
        return {str(info[4][0]).split("%")[0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return set()
