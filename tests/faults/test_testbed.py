"""Real nodes behind shaped links: methods learn which link is slow, and nothing of the testbed is left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fleet import THOROUGH

import fedweave as fw
from fedweave.fleet.local import testbed
from fedweave.fleet.local.rehearsal import rehearse
from fedweave.fleet.local.testbed import Link, Testbed
from fedweave.method import Method
from fedweave.papers.common.recorded import read_recorded
from fedweave.papers.common.scale import reduce_data
from fedweave.papers.feddd.testbed import _experiment, _methods, links_of
from fedweave.sample import Everyone
from fedweave.upload import DifferentialDropout

needs_root = pytest.mark.skipif(bool(testbed.refusal()), reason=testbed.refusal() or "it is allowed")
long = pytest.mark.skipif(not THOROUGH, reason="takes minutes: make faults")


def spaces():
    """Return the namespaces of testbeds."""
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for line in found if testbed.NAME.fullmatch(name := line.split()[0])]


def mine(found):
    return [name for name in found if f"-{os.getpid()}-" in name]


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.1)
    return true()


@needs_root
@long
def test_feddd_learns_the_slow_link_of_four_and_halves_the_round():
    """One node has a tenth of the others' rate: its dropout rises to the maximum, and the round no longer waits."""
    rate, tenth = 1e6, 1e5  # bit/s up, and forty times that down, as in FedDD's table 4
    links = [Link(up=r, down=40 * r) for r in (rate, rate, tenth, rate)]
    feddd = DifferentialDropout(max_rate=0.8, keep=0.6, refresh=1)
    plain = fw.Experiment(
        method=Method(Everyone(), name="fedavg"),
        data=reduce_data(fw.data.load("mnist5k"), 400, 200),
        partition=fw.partition.IID(4),
        model="cnn2",  # 1.5 MB
        rounds=1,
        lr=0.05,
        batch_size=20,
    )
    with Testbed(links, secure=False) as bed:  # with TLS Flower gives an array 30 s to get through
        whole = rehearse(bed, plain)
        less = rehearse(bed, replace(plain, rounds=5, method=Method(Everyone(), upload=feddd, name="feddd")))
    assert not mine(spaces())
    for result in (whole, less):
        assert result.clients["received"].all()
    by = less.clients
    size = whole.clients["bytes_up"].max()
    slow = by["bytes_up"][by["client"] == 2] / size
    assert slow[0] > 0.95, "nobody knows anything in the first round"
    assert slow[-1] == pytest.approx(1 - feddd.max_rate, abs=0.03), "the maximum, but for the rounding of channels"
    others = by["bytes_up"][(by["client"] != 2) & (by["round"] == 5)] / size
    assert others.max() > 0.9, "the budget is spent where links are fast"
    assert by["bytes_up"][by["round"] == 5].sum() / (4 * size) == pytest.approx(feddd.keep, abs=0.03)
    waits = whole.clients["seconds"]
    assert whole.clients["client"][waits.argmax()] == 2
    assert np.sort(waits)[-2] < 0.8 * waits.max(), "a slow upload does not make the others seem slow"
    assert less.rounds["seconds"][-1] < 0.5 * whole.rounds["seconds"][0]


SENDER = """
import socket, time
s = socket.create_connection((HOST, 5000))
print(time.monotonic())
s.sendall(b"x" * SIZE)
s.shutdown(socket.SHUT_WR)
s.recv(1)
"""


@needs_root
def test_a_link_has_the_rate_that_it_was_given():
    """Two megabits at 1 Mbit/s take two seconds from the first byte on, but for what the bucket holds at first."""
    size, rate, burst = 250_000, 1e6, 16_000
    bed = Testbed([Link(up=rate, down=1e9)], secure=False)
    try:
        bed._build()
        hub, node = bed.spaces
        with testbed.inside(hub):
            listening = socket.create_server((testbed.HUB, 5000))
        program = SENDER.replace("HOST", repr(testbed.HUB)).replace("SIZE", str(size))
        with testbed.inside(node):
            sender = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        with listening, listening.accept()[0] as connection:
            received = 0
            while chunk := connection.recv(65536):
                received += len(chunk)
            end = time.monotonic()
        begin = float(sender.communicate(timeout=30)[0])
        assert received == size
        assert end - begin > 8 * (size - burst) / rate
    finally:
        bed.stop()
    assert not mine(spaces())


@needs_root
def test_nothing_is_left_when_it_cannot_start(monkeypatch):
    def broken(self):
        raise RuntimeError("no SuperLink")

    monkeypatch.setattr(Testbed, "start_link", broken)
    bed = Testbed([Link(up=1e6, down=1e6)] * 2)
    with pytest.raises(RuntimeError, match="no SuperLink"), bed:
        pass
    assert not mine(spaces())
    assert not bed.folder.exists()


PROGRAM = """
import sys, time
from fedweave.fleet.local.testbed import Link, Testbed
bed = Testbed([Link(up=1e6, down=1e6)] * 2, secure=False)
bed._build()
bed._start([sys.executable, "-c", "import time; time.sleep(600)"], "node1")
print(bed._guard.pid, *bed.spaces, flush=True)
time.sleep(600)
"""


@needs_root
@pytest.mark.parametrize("guarded", [True, False], ids=["killed", "killed with its guard"])
def test_a_killed_driver_leaves_no_namespace_behind(guarded, tmp_path):
    """The guard removes them; if that was killed too, the next start does, with the processes in them."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    driver = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=env)
    assert driver.stdout
    guard, *made = driver.stdout.readline().split()
    assert len(made) == 3
    assert set(made) <= set(spaces())
    assert not set(testbed.remove_abandoned()) & set(made), "its owner is there"
    command = ["ip", "netns", "pids", made[2]]
    assert until(lambda: subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    (inside,) = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if not guarded:
        os.kill(int(guard), signal.SIGKILL)
    driver.kill()
    driver.wait()
    if guarded:
        assert until(lambda: not set(made) & set(spaces()))
    else:
        assert set(testbed.remove_abandoned()) == set(made)
        assert not set(made) & set(spaces())
    assert until(lambda: not testbed._began(int(inside)))


@long
def test_the_recorded_simulated_order_comes_of_computing_and_not_of_the_links():
    """As docs/testbed.md says: simulated with the same computing, the methods have the order of the real nodes."""
    recorded = read_recorded(Path(__file__).parents[2] / "results/feddd-fig8-testbed-iid.laptop.json")
    real, simulated = (recorded.measures["paper"][name] for name in ("round, s", "simulated round, s"))
    plain, compute, transfer = _experiment("iid", "laptop"), 10.0, {}
    world = replace(links_of(plain), compute=compute)
    for name, method in _methods("laptop").items():
        rounds = fw.run(replace(plain, method=method, system=world, workers=1, device="cpu")).rounds
        transfer[name] = rounds["seconds"][1:].mean() - compute
    assert sorted(transfer, key=transfer.__getitem__) == sorted(real, key=real.__getitem__)
    given = {name: round(simulated[name][0] - seconds, 1) for name, seconds in transfer.items()}
    assert given == {"latency_optimal": 10.3, "fedcs": 13.9, "oort": 16.7, "fedavg": 17.6, "feddd": 19.5}
    assert {name: round(seconds, 1) for name, seconds in transfer.items()} == {
        "feddd": 9.1, "fedcs": 14.4, "oort": 15.5, "latency_optimal": 15.9, "fedavg": 16.3,
    }  # fmt: skip
