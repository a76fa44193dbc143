"""Small servers on the loopback interface that answer as a SuperLink does, or as one that is badly run."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flwr.proto.control_pb2 import ListNodesResponse
from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest, RegisterNodeFleetResponse, UnregisterNodeFleetRequest
from flwr.proto.node_pb2 import NodeInfo

from fedweave.fleet.doctor.requests import Address

PROTOBUF = "application/protobuf"


@dataclass
class FakeLink:
    """What a SuperLink would answer: a path that is not handed on is 403, as behind a filtering proxy."""

    title: str | None = "SuperLink API"
    version: str = "1.41.0"
    control: str = "open"  # open, account, filtered; garbage, failing, silent
    runtime: bool = True
    fleet: bool = True
    admits: bool = False
    nodes: Sequence[NodeInfo] = ()
    ahead: float = 0.0  # seconds of its clock
    date: bool = True  # answers have a Date
    http: bool = True  # otherwise HTTP/2, as gRPC has it
    asked: list[tuple[str, bytes, dict[str, str]]] = field(default_factory=list)

    def answer(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        """Return status, content type and body."""
        if path == "/openapi.json" and self.title:
            return (
                200,
                "application/json",
                json.dumps({"info": {"title": self.title, "version": self.version}}).encode(),
            )
        if path == "/v1/control/list-nodes" and self.control != "filtered":
            now = datetime.fromtimestamp(time.time() + self.ahead, UTC).isoformat()
            listed = ListNodesResponse(nodes_info=self.nodes, now=now).SerializeToString()
            return {
                "open": (200, PROTOBUF, listed),
                "garbage": (200, PROTOBUF, b"\xff\xff"),
                "account": (401, "application/json", b"{}"),
                "failing": (500, "application/json", b'{"detail":"Internal server error."}'),
                "silent": (0, "", b""),
            }[self.control]
        if path == "/v1/runtime/get-nodes" and self.runtime:
            return 401, "application/json", b'{"code":1008,"detail":"Authentication failed."}'
        if path == "/v1/fleet/pull-messages" and self.fleet:
            return 401, "application/json", b'{"detail":"Invalid SuperNode authentication"}'
        if path == "/v1/fleet/register-node" and self.fleet:
            RegisterNodeFleetRequest.FromString(body)
            made = RegisterNodeFleetResponse(node_id=77).SerializeToString()
            return (200, PROTOBUF, made) if self.admits else (412, "application/json", b'{"code":2001}')
        if path == "/v1/fleet/unregister-node" and self.fleet:
            UnregisterNodeFleetRequest.FromString(body)
            return 200, PROTOBUF, b""
        return 403, "text/html", b"<h1>Forbidden</h1>"


@contextmanager
def serving(link: FakeLink, files=None, address=("127.0.0.1", 0)) -> Iterator[Address]:
    """Serve a fake link, with TLS if there are files for it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            link.asked.append((self.path, body, dict(self.headers)))
            status, kind, content = link.answer(self.path, body)
            if not status or not link.http:
                return
            self.send_response_only(status)
            if link.date:
                self.send_header("Date", formatdate(time.time() + link.ahead, usegmt=True))
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        def finish_request(self, request, client_address):
            if files:  # in the thread of the request, so that a client that does not shake hands holds up nobody
                request.settimeout(60)
                try:
                    request = context.wrap_socket(request, server_side=True)
                except OSError:
                    return
            self.RequestHandlerClass(request, client_address, self)

        def handle_error(self, *_):
            pass

    if files:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        context.set_alpn_protocols(["http/1.1"] if link.http else ["h2"])
    with Server(address, Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield Address(*server.server_address[:2])
        finally:
            server.shutdown()


@contextmanager
def saying(reply) -> Iterator[Address]:
    """Serve ``reply(first bytes of the client)`` to every connection, and close it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(60)  # clients speak first, or hang up
                    try:
                        connection.sendall(reply(connection.recv(1024)))
                    except OSError:
                        continue

        threading.Thread(target=serve, daemon=True).start()
        yield Address(*listening.getsockname()[:2])
        listening.shutdown(socket.SHUT_RDWR)
