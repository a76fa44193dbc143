"""Find out what an address of a fleet answers, without credentials, as a stranger would.

Flower 1.41 and 1.42 serve nodes (``/v1/fleet``), running apps (``/v1/runtime``) and users (``/v1/control``) over HTTP
on one port of the SuperLink; older releases serve gRPC on 9091 to 9093.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from cryptography import x509

from fedweave.fleet.doctor.requests import Address, Clock, Control, Node, Requests, accept_any, connect, is_answered

LINK, NODE = "SuperLink API", "SuperNode API"  # as the two call themselves
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # of HTTP/2, with empty settings
HTTP2_SETTINGS = 4

Speech = Literal["closed", "silent", "tls", "http", "grpc", "other"]


@dataclass(frozen=True)
class Facts:
    """What an address answers; None is what could not be found out."""

    address: Address
    speech: Speech
    certificate: x509.Certificate | None = None
    untrusted: str | None = None  # why the given roots do not vouch for it; "": they do
    title: str | None = None  # of the API
    version: str | None = None
    control: Control = "unknown"  # whether control requests are answered
    runtime: bool | None = None  # hands on requests of running apps
    fleet: bool = False  # hands on requests of nodes
    admits: bool | None = None  # registers a node that nobody knows
    nodes: tuple[Node, ...] | None = None
    clock: Clock | None = None

    @property
    def is_link(self) -> bool:
        """Whether a SuperLink answers here, perhaps behind a proxy that filters its requests."""
        return self.title == LINK or self.fleet or self.control == "open"

    @property
    def tls(self) -> bool:
        """Whether what is sent is encrypted."""
        return self.speech == "tls" or self.certificate is not None


def probe(address: Address, roots: str | None = None) -> Facts:
    """Return what an address answers.

    If the SuperLink admits nodes that nobody registered, one is registered and removed again at once; it never goes
    online, so no run sees it.
    """
    speech = _speech(address)
    if speech not in ("tls", "http"):
        return Facts(address, speech)
    certificate = _certificate(address) if speech == "tls" else None
    untrusted = _untrusted(address, roots) if speech == "tls" and roots else None
    link = Requests(address, speech == "tls")
    title, version = link.describe()
    runtime = link.post("/v1/runtime/get-nodes")
    fleet = link.post("/v1/fleet/pull-messages")
    if certificate and runtime is None and fleet is None and _speaks_http2(address):
        return Facts(address, "grpc", certificate, untrusted)
    control, nodes, now = link.list_nodes()
    clock = now or next((a.clock() for a in (fleet, runtime) if a and a.date), None)
    served = fleet is not None and fleet.status == 401 and b"SuperNode authentication" in fleet.body
    return Facts(
        address,
        speech,
        certificate,
        untrusted,
        title,
        version,
        control,
        is_answered(runtime),
        served,
        link.admits(clock) if served else None,
        nodes,
        clock,
    )


def _speech(address: Address) -> Speech:
    """Return which protocol is spoken at an address."""
    try:
        connect(address).close()
    except ConnectionRefusedError:
        return "closed"
    except (OSError, UnicodeError):
        return "silent"
    with suppress(OSError), connect(address) as plain, accept_any().wrap_socket(plain, server_hostname=address.host):
        return "tls"
    if _first_bytes(address, b"GET /health HTTP/1.1\r\nHost: fleet\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1"):
        return "http"
    frame = _first_bytes(address, PREFACE)
    return "grpc" if len(frame) > 3 and frame[3] == HTTP2_SETTINGS else "other"


def _first_bytes(address: Address, sent: bytes) -> bytes:
    with suppress(OSError), connect(address) as s:
        s.sendall(sent)
        return s.recv(64)
    return b""


def _speaks_http2(address: Address) -> bool:
    context = accept_any()
    context.set_alpn_protocols(["h2"])
    try:
        with connect(address) as plain, context.wrap_socket(plain, server_hostname=address.host) as s:
            return s.selected_alpn_protocol() == "h2"
    except OSError:
        return False


def _certificate(address: Address) -> x509.Certificate | None:
    try:
        with connect(address) as plain, accept_any().wrap_socket(plain, server_hostname=address.host) as s:
            der = s.getpeercert(binary_form=True)
            return x509.load_der_x509_certificate(der) if der else None
    except (OSError, ValueError):
        return None


def _untrusted(address: Address, roots: str) -> str | None:
    """Return why a certificate is not trusted, apart from its name and its dates, which are looked at themselves.

    "": it is. None: the connection was cut before that could be found out.
    """
    context = ssl.create_default_context(cafile=roots)
    context.check_hostname = False
    try:
        with connect(address) as plain, context.wrap_socket(plain, server_hostname=address.host):
            return ""
    except ssl.SSLCertVerificationError as e:
        return "" if e.verify_code in (9, 10) else e.verify_message  # not yet valid, expired
    except OSError:
        return None
