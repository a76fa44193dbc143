"""Find out what an address of a fleet answers, without credentials, as a stranger would.

Flower 1.41 and 1.42 serve nodes (``/v1/fleet``), running apps (``/v1/runtime``) and users (``/v1/control``) over HTTP
on one port of the SuperLink; older releases serve gRPC on 9091 to 9093.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf.message import DecodeError, Message

SECONDS = 5.0  # for a connection to open or an answer to come
LARGEST = 1 << 26  # bytes that are read of an answer
LINK, NODE = "SuperLink API", "SuperNode API"  # as the two call themselves
DATE_SECONDS = 2.0  # the server renews its Date header once a second, and it has whole seconds
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # of HTTP/2, with empty settings
HTTP2_SETTINGS = 4

Speech = Literal["closed", "silent", "tls", "http", "grpc", "other"]


class Address(NamedTuple):
    """A host, by name or address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Clock(NamedTuple):
    """Bounds on the seconds by which the server's clock is ahead of this machine's."""

    low: float
    high: float


@dataclass(frozen=True)
class Node:
    """A node as the SuperLink lists it."""

    id: int
    status: str
    key: bytes  # the public one, PEM


@dataclass(frozen=True)
class Facts:
    """What an address answers; None is what could not be found out."""

    address: Address
    speech: Speech
    certificate: x509.Certificate | None = None
    untrusted: str | None = None  # why the given roots do not vouch for it
    title: str | None = None  # of the API
    version: str | None = None
    control: bool | None = None  # answers control requests: to anyone (True), with an account (False)
    runtime: bool = False  # hands on requests of running apps
    fleet: bool = False  # hands on requests of nodes
    admits: bool | None = None  # registers a node that nobody knows
    nodes: tuple[Node, ...] | None = None
    clock: Clock | None = None

    @property
    def is_link(self) -> bool:
        """Whether a SuperLink answers here, perhaps behind a proxy that filters its requests."""
        return self.title == LINK or self.fleet or self.control is True


class Answer(NamedTuple):
    """An answer over HTTP, and when it came."""

    status: int
    kind: str
    body: bytes
    date: datetime | None
    asked: float
    received: float

    def clock(self, at: datetime | None = None) -> Clock | None:
        """Return the bounds on the clock from a time in the answer, or from its Date header."""
        if (said := at or self.date) is None:
            return None
        seconds = said.timestamp()
        return Clock(seconds - self.received, seconds + (0 if at else DATE_SECONDS) - self.asked)


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
    link = _Requests(address, speech == "tls")
    title, version = link.describe()
    runtime = link.post("/v1/runtime/get-nodes")
    fleet = link.post("/v1/fleet/pull-messages")
    control, nodes, now = link.list_nodes()
    from_date = next((a.clock() for a in (fleet, runtime) if a and a.date), None)
    clock = now or from_date
    served = fleet is not None and fleet.status == 401 and b"SuperNode authentication" in fleet.body
    return Facts(
        address,
        speech,
        certificate,
        untrusted,
        title,
        version,
        control,
        runtime is not None and runtime.status == 401 and b'"code"' in runtime.body,
        served,
        link.admits(clock) if served else None,
        nodes,
        clock,
    )


def _speech(address: Address) -> Speech:
    """Return which protocol is spoken at an address."""
    try:
        _connect(address).close()
    except ConnectionRefusedError:
        return "closed"
    except (OSError, UnicodeError):
        return "silent"
    with suppress(OSError), _connect(address) as plain, _unverified().wrap_socket(plain, server_hostname=address.host):
        return "tls"
    if _first_bytes(address, b"GET /health HTTP/1.1\r\nHost: fleet\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1"):
        return "http"
    frame = _first_bytes(address, PREFACE)
    return "grpc" if len(frame) > 3 and frame[3] == HTTP2_SETTINGS else "other"


def _first_bytes(address: Address, sent: bytes) -> bytes:
    with suppress(OSError), _connect(address) as s:
        s.sendall(sent)
        return s.recv(64)
    return b""


def _connect(address: Address) -> socket.socket:
    return socket.create_connection(address, SECONDS)


def _unverified() -> ssl.SSLContext:
    """Return a context that accepts any certificate: nothing secret is sent, and certificates are judged later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _certificate(address: Address) -> x509.Certificate | None:
    try:
        with _connect(address) as plain, _unverified().wrap_socket(plain, server_hostname=address.host) as s:
            der = s.getpeercert(binary_form=True)
            return x509.load_der_x509_certificate(der) if der else None
    except (OSError, ValueError):
        return None


def _untrusted(address: Address, roots: str) -> str | None:
    """Return why a certificate is not trusted, apart from its name and its dates, which are looked at themselves."""
    context = ssl.create_default_context(cafile=roots)
    context.check_hostname = False
    try:
        with _connect(address) as plain, context.wrap_socket(plain, server_hostname=address.host):
            return None
    except ssl.SSLCertVerificationError as e:
        return None if e.verify_code in (9, 10) else e.verify_message  # not yet valid, expired
    except OSError:
        return None


class _Requests:
    """Requests to one address, each over a connection of its own."""

    def __init__(self, address: Address, tls: bool):
        self.address, self.tls = address, tls

    def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer | None:
        host, port = self.address
        if self.tls:
            connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=_unverified())
        else:
            connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
        try:
            asked = time.time()
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            received = time.time()
            date, kind = answer.getheader("date"), answer.getheader("content-type") or ""
            said = None
            with suppress(ValueError):
                said = parsedate_to_datetime(date) if date else None
            return Answer(answer.status, kind, answer.read(LARGEST), said, asked, received)
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def post(
        self, path: str, message: Message | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer | None:
        """Send a message as Flower's own programs do."""
        kind = "application/protobuf"
        body = message.SerializeToString() if message is not None else b""
        return self.send("POST", path, body, {"content-type": kind, "accept": kind, **(headers or {})})

    def describe(self) -> tuple[str | None, str | None]:
        """Return the title and the version of the API, which its description has."""
        answer = self.send("GET", "/openapi.json")
        with suppress(ValueError, KeyError, TypeError):
            info = json.loads(answer.body)["info"] if answer and answer.status == 200 else {}
            return str(info["title"]), str(info["version"])
        return None, None

    def list_nodes(self) -> tuple[bool | None, tuple[Node, ...] | None, Clock | None]:
        """Return whether anyone may send control requests, and the nodes and the clock if so."""
        from flwr.proto.control_pb2 import ListNodesResponse

        answer = self.post("/v1/control/list-nodes")
        if answer is None or answer.status != 200 or "protobuf" not in answer.kind:
            return (False if answer is not None and answer.status == 401 else None), None, None
        found = ListNodesResponse()
        try:
            found.ParseFromString(answer.body)
            now = answer.clock(datetime.fromisoformat(found.now))
        except (DecodeError, ValueError):
            return None, None, None
        return True, tuple(Node(n.node_id, n.status, n.public_key) for n in found.nodes_info), now

    def admits(self, clock: Clock | None) -> bool | None:
        """Return whether a node with a key that nobody registered is admitted."""
        from flwr.proto.fleet_pb2 import (
            RegisterNodeFleetRequest,
            RegisterNodeFleetResponse,
            UnregisterNodeFleetRequest,
        )

        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        ahead = sum(clock) / 2 if clock else 0.0  # signed with the server's time: it is not about the clock
        at = datetime.fromtimestamp(time.time() + ahead, UTC).isoformat()
        signature = key.sign(at.encode(), ec.ECDSA(hashes.SHA256()))
        headers = {
            "flwr-public-key": b64encode(public).decode(),
            "flwr-timestamp": at,
            "flwr-signature": b64encode(signature).decode(),
        }
        answer = self.post("/v1/fleet/register-node", RegisterNodeFleetRequest(public_key=public), headers)
        if answer is None or answer.status not in (200, 412):
            return None
        if answer.status == 412:
            return False
        made = RegisterNodeFleetResponse()
        with suppress(DecodeError):
            made.ParseFromString(answer.body)
            self.post("/v1/fleet/unregister-node", UnregisterNodeFleetRequest(node_id=made.node_id), headers)
            return True
        return None
