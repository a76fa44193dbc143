"""A server in a thread, on a port of its own."""

from contextlib import ExitStack
from threading import Thread

import pytest

from fedweave.watch.server import Server


@pytest.fixture
def serve():
    """Return a function that serves folders until the end of the test."""
    with ExitStack() as stack:

        def start(*roots, seconds=0.02):
            server = Server(roots, 0, seconds)
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server

        yield start
