"""What the user knows of the fleet, against which a check compares what it finds."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from fedweave.core.settings import BadInput
from fedweave.fleet.doctor.machine import own_addresses, resolve

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Expected:
    """What the user knows of the fleet."""

    trusted: Sequence[Network] = ()  # networks of which every member may control the fleet
    known: Mapping[bytes, str] | None = None  # names of the nodes by their public keys
    roots: str | None = None
    own: Collection[str] = field(default_factory=own_addresses)

    def is_here(self, host: str) -> bool:
        """Whether an address is one of this machine."""
        return any(is_loopback(a) or a in self.own for a in resolve(host))

    def is_open(self, host: str) -> bool:
        """Whether others than this machine and the members of trusted networks may reach an address."""
        return any(not is_loopback(a) and not self._trusts(a) for a in resolve(host))

    def _trusts(self, address: str) -> bool:
        return any(ipaddress.ip_address(address) in network for network in self.trusted)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    return ipaddress.ip_address(address).is_loopback


def known_keys(paths: Sequence[Path]) -> dict[bytes, str]:
    """Return the names of the public keys in these files and folders (of which ``*.pub`` are read)."""
    found: dict[bytes, str] = {}
    for path in paths:
        files = sorted(path.glob("*.pub")) if path.is_dir() else [path]
        if not files:
            raise BadInput(f"--known: there is no *.pub in {str(path)!r}.")
        for file in files:
            try:
                lines = [line for line in file.read_bytes().splitlines() if line.strip()]
                for number, line in enumerate(lines, 1):
                    found[in_one_form(line)] = file.stem if len(lines) == 1 else f"{file.name}:{number}"
            except (OSError, ValueError, UnsupportedAlgorithm) as e:
                raise BadInput(f"--known: {str(file)!r} must have an OpenSSH public key on each line: {e}") from None
    return found


def in_one_form(key: bytes) -> bytes:
    """Return a public key, PEM or OpenSSH, in the form in which keys are compared."""
    load = load_pem_public_key if key.startswith(b"-----BEGIN") else load_ssh_public_key
    return load(key).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
