"""The command ``fedweave flower doctor``: check a running fleet from outside."""

from __future__ import annotations

import ipaddress
import json as json_text
import ssl
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fedweave import __version__
from fedweave.cli.parameters import Json, help_text
from fedweave.core.settings import BadInput

if TYPE_CHECKING:
    from fedweave.fleet.doctor.expected import Network
    from fedweave.fleet.doctor.requests import Address

EXAMPLE = "Example: fedweave flower doctor --address fl.example.org:8000 --root-certificates ca.crt --known fleet-keys"


def command(
    *,
    address: Annotated[
        Sequence[str],
        Parameter(negative=""),
        help_text("Where to look; may be repeated. [the usual ports of this machine]", "HOST:PORT"),
    ] = (),
    root_certificates: Annotated[
        Path | None, help_text("The ca.crt of the nodes: the server's certificate must be signed by it.", "FILE")
    ] = None,
    known: Annotated[
        Sequence[Path],
        Parameter(negative=""),
        help_text("Public keys of your nodes: a folder with *.pub, or a file with a key per line.", "PATH"),
    ] = (),
    trusted: Annotated[
        Sequence[str],
        Parameter(negative=""),
        help_text("A network, such as a VPN, of which every member may run code on every node.", "NETWORK"),
    ] = (),
    json: Json = False,
) -> None:
    """Check a running fleet from outside: open ports, TLS, unknown nodes, clocks, versions; say how to mend each.

    Nothing secret is sent. If the fleet admits nodes that nobody registered, one is registered for a moment.
    The exit code is 1 if something critical or a warning was found.
    """
    for module in ("flwr", "psutil", "cryptography"):
        if find_spec(module) is None:
            raise BadInput(f"This needs {module}: pip install 'fedweave[flower]'")
    from fedweave.fleet.doctor.expected import Expected, known_keys
    from fedweave.fleet.doctor.findings import examine

    problems: list[str] = []
    addresses = [_address(text, problems) for text in address]
    networks = [_network(text, problems) for text in trusted]
    if root_certificates is not None:
        try:
            ssl.create_default_context(cafile=str(root_certificates))
        except OSError as e:
            problems.append(
                f"--root-certificates must be a file of PEM certificates. Got {str(root_certificates)!r}: {e}"
            )
    keys = None
    try:
        keys = known_keys(known) if known else None
    except BadInput as e:
        problems.append(str(e))
    if problems:
        raise BadInput(*problems)
    roots = str(root_certificates) if root_certificates else None
    found = examine([a for a in addresses if a], Expected([n for n in networks if n], keys, roots))
    serious = any(finding.serious for finding in found)
    if json:
        here = {"fedweave": __version__, "flwr": version("flwr")}
        findings = [finding.as_dict() for finding in found]
        print(json_text.dumps({"healthy": not serious, "versions": here, "findings": findings}))
    for finding in [] if json else found:
        print(f"{finding.level:<9}{finding.address:<22} {finding.check}: {finding.what}")
        if finding.mend:
            print(f"{'':<32}→ {finding.mend}")
    if serious:
        sys.exit(1)


def _address(text: str, problems: list[str]) -> Address | None:
    from fedweave.fleet.doctor.requests import Address

    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if colon and host and "/" not in host and port.isdigit() and 1 <= int(port) <= 65535:
        return Address(host, int(port))
    problems.append(f"--address must be HOST:PORT, such as fl.example.org:8000. Got {text!r} instead.")
    return None


def _network(text: str, problems: list[str]) -> Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        problems.append(f"--trusted must be a network, such as 10.8.0.0/24. Got {text!r} instead.")
        return None
