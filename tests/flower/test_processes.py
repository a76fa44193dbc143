"""Real processes over TLS: the simulator's bits, strangers refused, nodes and servers killed, nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import fedweave as fw
import fedweave.store.run_folder
from fedweave.fleet.doctor.requests import Address, Requests
from fedweave.fleet.local import guard, keys
from fedweave.fleet.local.new_app import write_app
from fedweave.fleet.local.processes import HOST, QUIET, Processes
from flower.rehearsal import reasons

CLIENTS = 2
FEDWEAVE = [sys.executable, "-m", "fedweave"]


def simulated(method, rounds):
    """The experiment of the app that `fedweave flower new` writes, in the simulator."""
    return fw.run(
        fw.Experiment(
            method=method,
            data="digits",
            partition=fw.partition.parse("dirichlet:0.5", CLIENTS),
            rounds=rounds,
            lr=0.05,
            epochs=1,
            batch_size=20,
            workers=1,
        )
    )


def fleets():
    """Return the processes on this machine that belong to any fleet of this test's process."""
    found = []
    for process in psutil.process_iter():
        try:
            found += [process] if process.environ().get("FEDWEAVE_TEST") == str(os.getpid()) else []
        except (psutil.Error, OSError):
            continue
    return [p for p in found if p.pid != os.getpid() and p.status() != psutil.STATUS_ZOMBIE]


def test_the_demonstration_over_tls_gives_the_simulators_bits_and_leaves_nothing(tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    # Both are asked in both rounds, and what SCAFFOLD's clients remember outlives the process of each message.
    command = [*FEDWEAVE, "flower", "demo", "--nodes", str(CLIENTS), "--method", "scaffold", "--per-round", "2"]
    command += ["--rounds", "2", "--answer-seconds", "120", "--secure", "--out", str(tmp_path / "run"), "--json"]
    env = {**os.environ, "TMPDIR": str(temporary), "FEDWEAVE_TEST": str(os.getpid())}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["digest"] == simulated(fw.methods.scaffold(CLIENTS), 2).summary["digest"]
    assert shown["failed"] == shown["killed"] == []
    assert shown["simulated_seconds"] > 1, "its clock is a real one"
    assert fw.load_result(tmp_path / "run").manifest["engine"] == "flower"
    assert not fleets()
    assert not list(temporary.iterdir())


def test_without_keys_a_second_node_does_not_get_the_seat_of_one_that_is_there(tmp_path):
    write_app(tmp_path / "trial", "fedavg", per_round=CLIENTS)
    hold_node_1(tmp_path)
    config = {"rounds": 2, "clients": CLIENTS, "answer-seconds": 300.0, "out": str(tmp_path / "run")}
    with Processes(CLIENTS, secure=False) as fleet:
        link = Requests(Address(HOST, fleet.port), tls=False)

        def attack(line):
            if "fedweave: round 1 asks" not in line:
                return
            fleet.start_node(9, "--node-config", f"partition-id=0 num-partitions={CLIENTS}")  # has batches of its own
            end = time.monotonic() + 120
            while sum(node.status == "online" for node in link.list_nodes()[1] or ()) <= CLIENTS:
                assert time.monotonic() < end, fleet.log("node9")
                time.sleep(0.2)
            (tmp_path / "go").touch()

        fleet.run(tmp_path / "trial", config, attack)
        refused = r"client 0 \(partition-id=0\) and is not asked: the seat is that of node \d+, which is there"
        assert re.search(refused, fleet.log("run", 1000))
    digest = simulated(fw.methods.fedavg(CLIENTS), 2).summary["digest"]
    assert fw.load_result(tmp_path / "run").summary["digest"] == digest


def test_strangers_get_nothing_and_a_run_outlives_its_nodes_and_its_server(tmp_path):
    write_app(tmp_path / "trial", "fedavg", per_round=CLIENTS)
    own_task(tmp_path)
    hold_node_1(tmp_path)
    folder = tmp_path / "run"
    config = {"rounds": 2, "clients": CLIENTS, "answer-seconds": 10.0, "start-seconds": 120.0, "out": str(folder)}
    with Processes(CLIENTS) as fleet:
        config["keys"] = str(fleet.folder / "keys")
        alone = "--isolation", "process"  # without the process that would start its app: none gets that far
        stranger = fleet.start_node(7, *alone, key=keys.node_key(tmp_path, "stranger"))
        impostor = keys.node_key(tmp_path, "impostor")  # which may take part, but not as client 0
        fleet.register([impostor])
        fleet.start_node(9, "--node-config", f"partition-id=0 num-partitions={CLIENTS}", key=impostor)
        plaintext = fleet.start_node(8, *alone, "--max-retries", "2", "--max-wait-time", "15", secure=False)
        killed_at_the_deadline(fleet, tmp_path, config)
        assert {p.environ()[name] for p in fleet.members() for name in QUIET} == {"0", "1"}
        first = fw.load_result(folder)
        assert first.rounds["round"].tolist() == [1]
        assert first.clients["received"][1] == 0
        late = (1, "client 1: did not answer within 10 s")
        assert late in reasons(folder), "a minute later Flower would have said that its node is gone"
        fleet.run(tmp_path / "trial", {**config, "answer-seconds": 120.0})
        refused = r"node \d+ says that it is client 0 \(partition-id=0\) and is not asked: its key is not node0.pub"
        assert re.search(refused, fleet.log("run", 1000)), "a registered node that claims another's seat"
        assert stranger.wait(timeout=60) != 0, "a key that nobody registered is refused"
        assert stranger.returncode > 0
        assert plaintext.wait(timeout=60) != 0
        for client in (7, 8):
            assert "Receiving" not in fleet.log(f"node{client}", 1000), "no message, so no model"
        members, folder_of_fleet = fleet.members(), fleet.folder
    result = fw.load_result(folder)
    assert result.rounds["round"].tolist() == [1, 2], "each round once: the finished one was kept"
    second = result.clients["round"] == 2
    assert set(result.clients["client"][second & (result.clients["received"] == 1)]) == {0}, "training goes on"
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in members)
    assert not folder_of_fleet.exists()


REQUEST = """
import numpy as np
from fedweave.data import Dataset

def part(where):
    x, y = (np.load(FOLDER + "/" + name) for name in ("x.npy", "y.npy"))
    return Dataset("part", x[where], y[where], x[:200], y[:200], 10)

MODEL, TEST = "logistic", part(slice(0, 200))

def load_partition(client, clients):
    return part(slice(client, None, clients))
"""


def own_task(tmp_path):
    """Give the app data and model of its own: an app is yours to change."""
    digits = fw.data.load("digits")
    np.save(tmp_path / "x.npy", digits.x.astype(np.float32) / 255)
    np.save(tmp_path / "y.npy", digits.y)
    app = tmp_path / "trial/trial"
    (app / "task.py").write_text(f"FOLDER = {str(tmp_path)!r}\n{REQUEST}")
    server = (app / "server_app.py").read_text()
    assert 'TEST = "digits"' in server
    (app / "server_app.py").write_text(server.replace('TEST = "digits"', "from trial.task import TEST"))


HOLD = """
import pathlib
import time

_load = load_partition

def load_partition(client, clients):
    if client == 1:
        try:
            pathlib.Path(FOLDER, "hello").touch(exist_ok=False)
        except FileExistsError:
            while not pathlib.Path(FOLDER, "go").exists():
                time.sleep(0.1)
    return _load(client, clients)
"""


def hold_node_1(tmp_path):
    """Have node 1 say who it is, and train only when there is a file "go"."""
    with (tmp_path / "trial/trial/task.py").open("a") as task:
        task.write(f"\nFOLDER = {str(tmp_path)!r}\n{HOLD}")


def killed_at_the_deadline(fleet, tmp_path, config):
    """Kill node 1 in round 1 and the server in round 2; the round must close at its deadline all the same."""
    process, asked = fleet.begin(tmp_path / "trial", config), []
    for line in fleet.follow(process, "run"):
        if found := re.search(r"fedweave: round (\d) asks clients", line):
            asked.append(found[1])
            if found[1] == "2":
                break
            fleet.kill(1)
    assert asked == ["1", "2"], fleet.log("run")
    servers = [p for p in fleet.members() if "flwr-serverapp" in " ".join(p.cmdline())]
    assert servers
    for server in servers:
        server.send_signal(signal.SIGKILL)
    process.kill()
    process.wait()


def test_a_fleet_ends_with_the_one_that_started_it(tmp_path):
    """Also when that one is killed: the guard sees its input end."""
    folder = tmp_path / "fleet"
    folder.mkdir()
    mark = f"test-{os.getpid()}"
    env = {**os.environ, guard.MARK: mark}
    left = subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        watch = subprocess.Popen([sys.executable, "-P", guard.__file__, mark, str(folder)], stdin=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            watch.wait(timeout=0.3)
        assert left.poll() is None
        watch.stdin.close()
        assert watch.wait(timeout=30) == 0
        assert left.wait(timeout=10) == -signal.SIGKILL
        assert other.poll() is None, "not one of the fleet"
        assert not folder.exists()
    finally:
        for process in (left, other):
            process.kill()
            process.wait()
