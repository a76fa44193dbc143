"""The live page for minutes, with runs that go on and browsers that come and leave: memory, threads and files stay."""

import gc
import itertools
import json
import os
import threading
import time
from contextlib import closing
from http.client import HTTPConnection

import psutil
import pytest
from fleet import THOROUGH

from fedweave.watch.server import Server
from watch.folders import Writer, made, many

MINUTES = float(os.environ.get("FEDWEAVE_SOAK_MINUTES", "10"))


def ask(server, path):
    with closing(HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("GET", path)
        return json.load(connection.getresponse())


def leave_early(server):
    """Open a stream of events, read its beginning and leave."""
    with closing(HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("GET", "/events")
        assert connection.getresponse().readline().startswith(b"data: ")


@pytest.mark.skipif(not THOROUGH, reason="FEDWEAVE_FAULTS=1 tries it for FEDWEAVE_SOAK_MINUTES (10)")
def test_memory_stays_flat_for_minutes(tmp_path):
    made(tmp_path / "long", rounds=100_000, clients=50)
    many(tmp_path / "many", 200)
    process, seen = psutil.Process(), []
    with Server([tmp_path], 0, 0.05) as server, Writer(tmp_path / "live", rounds=10**6) as writer:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        keys = [run["key"] for run in ask(server, "/runs.json")["runs"]]
        metrics = ("accuracy", "loss", "train_loss", "diversity")
        begin, looks = time.monotonic(), itertools.count(1)
        while (passed := time.monotonic() - begin) < 60 * MINUTES:
            look = next(looks)
            writer("add 20", "save")
            leave_early(server)
            some = "&".join(f"run={keys[(28 * look + i) % len(keys)]}" for i in range(28))
            curves = ask(server, f"/curves.json?metric={metrics[look % 4]}&{some}")
            assert all(len(curve["x"]) <= 1000 for curve in curves.values())
            ask(server, f"/clients.json?{some}")
            gc.collect()
            seen.append((passed, process.memory_info().rss, process.num_fds(), threading.active_count()))
        server.shutdown()
        thread.join()
    late = [row for row in seen if row[0] > 30 * MINUTES]  # after all kept curves were read once
    grown = (max(rss for _, rss, *_ in late[-len(late) // 4 :]) - late[0][1]) / 2**20
    assert len(seen) > 20
    assert grown < 16, f"{grown:.1f} MB in {MINUTES / 2:g} minutes and {len(late)} looks"
    assert max(fds for *_, fds, _ in late) <= max(fds for *_, fds, _ in seen[:20]) + 4
    assert max(threads for *_, threads in seen) < 40
