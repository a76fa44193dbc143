"""Requests to a SuperLink that need no credentials, and what their answers say."""

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
from typing import Any, Literal, NamedTuple, TypeVar

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SECONDS = 5.0  # for a connection to open or an answer to come
LARGEST = 1 << 26  # bytes that are read of an answer
DATE_SECONDS = 2.0  # the server renews its Date header once a second, and it has whole seconds
NO_STRANGERS = 2001  # the code of Flower's refusal to register a node that nobody registered before
FILTERED = 403, 404, 405  # how a proxy refuses a path

T = TypeVar("T")
Control = Literal["open", "account", "filtered", "unknown"]


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


class Answer(NamedTuple):
    """An answer over HTTP, and when it came."""

    status: int
    kind: str
    body: bytes
    date: datetime | None
    asked: float
    received: float

    @property
    def code(self) -> int | None:
        """The code of an error of Flower's; a proxy's answer has none."""
        with suppress(ValueError, TypeError, KeyError):
            return int(json.loads(self.body)["code"])
        return None

    def clock(self, at: datetime | None = None) -> Clock | None:
        """Return the bounds on the clock from a time in the answer, or from its Date header."""
        if (said := at or self.date) is None:
            return None
        seconds = said.timestamp()
        return Clock(seconds - self.received, seconds + (0 if at else DATE_SECONDS) - self.asked)


def connect(address: Address) -> socket.socket:
    """Open a connection."""
    return socket.create_connection(address, SECONDS)


def accept_any() -> ssl.SSLContext:
    """Return a context that accepts any certificate: nothing secret is sent, and certificates are judged later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Requests:
    """Requests to one address, each over a connection of its own."""

    def __init__(self, address: Address, tls: bool):
        self.address, self.tls = address, tls

    def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer | None:
        """Return the answer to a request; None if none comes."""
        host, port = self.address
        if self.tls:
            connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=accept_any())
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

    def post(self, path: str, message: Any = None, headers: Mapping[str, str] | None = None) -> Answer | None:
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

    def list_nodes(self) -> tuple[Control, tuple[Node, ...] | None, Clock | None]:
        """Return whether control requests are answered, and the nodes and the clock if so."""
        from flwr.proto.control_pb2 import ListNodesResponse

        answer = self.post("/v1/control/list-nodes")
        if answer is None or answer.status != 200 or "protobuf" not in answer.kind:
            if answer is not None and answer.status == 401:
                return "account", None, None
            return ("filtered" if is_answered(answer) is False else "unknown"), None, None
        found, clock = _parsed(ListNodesResponse(), answer.body), None
        if found is None:
            return "open", None, None
        with suppress(ValueError):
            clock = answer.clock(datetime.fromisoformat(found.now))
        return "open", tuple(Node(n.node_id, n.status, n.public_key) for n in found.nodes_info), clock

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
        if answer is None or answer.status != 200:
            return False if answer is not None and answer.code == NO_STRANGERS else None
        if (made := _parsed(RegisterNodeFleetResponse(), answer.body)) is None:
            return None
        self.post("/v1/fleet/unregister-node", UnregisterNodeFleetRequest(node_id=made.node_id), headers)
        return True


def is_answered(answer: Answer | None) -> bool | None:
    """Return whether an error is Flower's own (True) or that of a proxy before it (False)."""
    if answer is not None and answer.code is not None:
        return True
    return False if answer is not None and answer.status in FILTERED else None


def _parsed(message: T, body: bytes) -> T | None:
    """Return a message of Flower's with the content of an answer, None if that is something else."""
    try:
        message.ParseFromString(body)  # pyright: ignore[reportAttributeAccessIssue]
    except Exception:  # of protobuf, which belongs to Flower
        return None
    return message
