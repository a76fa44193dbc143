"""A web server for this machine alone: the page, the runs as JSON, and an event for every change."""

from __future__ import annotations

import json
import select
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedweave.core.settings import BadInput
from fedweave.watch.catalog import SECONDS, Catalog
from fedweave.watch.follow import AXES
from fedweave.watch.page import TYPES, page_file

ADDRESS = "127.0.0.1"
MOST_STREAMS = 32  # pages that are open at the same time; each has a thread
MOST_CHOSEN = 28  # runs in one figure: as many as have a colour and a dash of their own
SILENCE = 15  # looks without news after which an empty line is sent, so that a connection that is gone is noticed
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """Serves the page over some folders until ``shutdown``; ``port`` 0 chooses a free one."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, roots: Sequence[Path], port: int = 0, seconds: float = SECONDS):
        if missing := [str(root) for root in roots if not root.is_dir()]:
            raise BadInput(*(f"There is no folder {name!r}." for name in missing))
        self.catalog, self.seconds = Catalog(roots, seconds), seconds
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        self.ending = threading.Event()
        try:
            super().__init__((ADDRESS, port), Handler)
        except PermissionError:
            raise BadInput(f"Port {port} is not for every user: choose one above 1023, or --port 0.") from None
        except OSError as e:
            raise BadInput(
                f"Port {port} cannot be used: {e.strerror}. Choose another with --port; 0 takes one that is free."
            ) from None
        self.port: int = self.server_address[1]
        self.hosts = hosts(self.port)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{ADDRESS}:{self.port}/"

    def shutdown(self) -> None:
        """Stop serving; streams of events end at their next look."""
        self.ending.set()
        super().shutdown()

    def server_close(self) -> None:
        """Close the port."""
        self.ending.set()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of browsers that close a connection; anything else is a defect and is shown."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers one browser; reads only."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fedweave", ""
    timeout = 30  # seconds for a browser to send a request, or to take what it is sent

    def do_GET(self) -> None:
        """Answer a request for the page, its data or its events."""
        if self.headers.get("Host") not in self.server.hosts:  # another site's name may lead to this address
            return self._refuse(HTTPStatus.FORBIDDEN, f"This page is at {self.server.url} alone.")
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query)
        except ValueError:
            return self._refuse(HTTPStatus.BAD_REQUEST, "This address cannot be read.")
        if url.path == "/events":
            return self._stream()
        if url.path in ("/", "/page.js", "/page.css"):
            kind = Path(url.path).suffix[1:] or "html"
            return self._send(page_file(kind), TYPES[kind])
        answers: dict[str, Callable[[dict[str, list[str]]], Any]] = {
            "/runs.json": self._runs,
            "/curves.json": self._curves,
            "/clients.json": self._clients,
        }
        if url.path not in answers:
            return self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")
        try:
            return self._send(_json(answers[url.path](query)))
        except BadInput as e:
            return self._refuse(HTTPStatus.BAD_REQUEST, str(e))

    def _runs(self, _query: dict[str, list[str]]) -> Any:
        rows, _, more = self.server.catalog.changes({})
        return {"runs": rows, "more": more}

    def _curves(self, query: dict[str, list[str]]) -> Any:
        metric, axis = query.get("metric", ["accuracy"])[0], query.get("axis", ["round"])[0]
        if axis not in AXES:
            raise BadInput(f"There is no such axis. Valid: {', '.join(AXES)}.")
        return self.server.catalog.curves(_chosen(query), metric, axis)

    def _clients(self, query: dict[str, list[str]]) -> Any:
        return self.server.catalog.clients(_chosen(query))

    def _stream(self) -> None:
        """Send what changes, as server-sent events, until the browser leaves."""
        if not self.server.streams.acquire(blocking=False):
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"More than {MOST_STREAMS} pages are open.")
        self.close_connection = True
        try:
            self._head(HTTPStatus.OK, "text/event-stream", {"Connection": "close"})
            seen, silence = dict[str, int](), SILENCE  # the first message comes at once, though there may be no run
            while not self.server.ending.is_set():
                rows, now, more = self.server.catalog.changes(seen)
                gone = [key for key in seen if key not in now]
                if rows or gone or silence >= SILENCE:
                    self.wfile.write(
                        b"data: " + _json({"runs": rows, "gone": gone, "more": more, "all": not seen}) + b"\n\n"
                    )
                    silence = 0
                seen, silence = now, silence + 1
                if select.select([self.connection], [], [], self.server.seconds)[0]:
                    return None  # closed: a browser says nothing more here
        finally:
            self.server.streams.release()

    def _send(self, content: bytes, kind: str = "application/json", status: HTTPStatus = HTTPStatus.OK) -> None:
        self._head(status, f"{kind}; charset=utf-8", {"Content-Length": str(len(content))})
        self.wfile.write(content)

    def _refuse(self, status: HTTPStatus, problem: str) -> None:
        self._send(_json({"problem": problem}), status=status)

    def _head(self, status: HTTPStatus, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the user."""


def hosts(port: int) -> set[str]:
    """Return the names under which a browser may ask for the page; browsers leave out the usual port."""
    return {f"{name}{end}" for name in (ADDRESS, "localhost") for end in (f":{port}", *([""] if port == 80 else []))}


def _chosen(query: dict[str, list[str]]) -> list[str]:
    keys = list(dict.fromkeys(query.get("run", [])))
    if len(keys) > MOST_CHOSEN:
        raise BadInput(f"At most {MOST_CHOSEN} runs fit into one figure.")
    return keys


def _json(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
