"""A Ray cluster of several nodes: actors and nodes that are lost change no bit, and comparisons spread over it."""

import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psutil
import pytest
from torch import nn

import fedweave as fw
from fedweave.core.settings import BadInput
from fedweave.engine.pool import ray as ours
from fedweave.engine.pool import ray_cluster
from fedweave.engine.pool.protocol import WorkerDied
from fedweave.engine.pool.ray import RayActors
from fedweave.runs.callbacks import callbacks_of
from fedweave.runs.loop import run_with

PATIENCE = 600.0  # seconds until a test gives up: Ray starts slowly, and the machine may be busy
LONG = pytest.mark.skipif(os.environ.get("FEDWEAVE_FAULTS") != "1", reason="half a minute: `make faults` does it")
HERE = {"node_ip_address": "127.0.0.1", "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster():
    """A head without CPUs, where the tests are, and nodes of one CPU each; nothing of it is left."""
    before = signal.getsignal(signal.SIGTERM)
    with ray_cluster._environment(ray_cluster.ALONE), pytest.MonkeyPatch.context() as patch:
        import ray
        from ray.cluster_utils import Cluster

        patch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)  # also if it was imported before
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "wait": False, **HERE})
        try:
            assert nodes.address.startswith("127.0.0.1:")
            ray.init(nodes.address, log_to_driver=False)
            yield nodes
            mine = {p.pid for p in psutil.Process().children(recursive=True)}
            family = [p for p in psutil.process_iter(["name"]) if p.pid in mine and "ray" in p.info["name"]]
        finally:
            ray.shutdown()
            nodes.shutdown()
            signal.signal(signal.SIGTERM, before)
    _, left = psutil.wait_procs(family, timeout=30)
    assert left == []
    assert family


@pytest.fixture(scope="module")
def shared_pool(cluster):
    with RayActors(2) as actors:
        yield actors


@pytest.fixture
def pool(cluster, shared_pool):
    """Two actors, with a node for each: what is missing is added."""
    import ray

    while len(cluster.worker_nodes) < 2:
        added = cluster.add_node(wait=False, num_cpus=1, **HERE)  # Ray would wait for half a minute at most
        until(lambda node=added: node.node_id in {n["NodeID"] for n in ray.nodes() if n["Alive"]})
    return shared_pool


class Waits(nn.Module):
    """Says in a file that its first step away from home has begun, and goes on when the test has done its deed."""

    def __init__(self, folder, home):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 10))
        self.folder, self.home = folder, home

    def forward(self, x):
        if self.training and os.getpid() != self.home and not (done := self.folder / "done").exists():
            import ray

            (self.folder / f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}").touch()
            until(done.exists)
        return self.f(x)


def until(true):
    end = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@pytest.fixture
def waiting(tiny, tmp_path):
    """A small experiment on Ray whose first round waits for a deed, with memories of clients."""
    home = os.getpid()
    method = fw.methods.scaffold(4)
    return tiny(method, model=lambda: Waits(tmp_path, home), rounds=3, pool="ray", workers=2)


def at(pool, experiment):
    return run_with(experiment, None, (), None, pool)


def alone(experiment):
    return fw.run(replace(experiment, pool="local", workers=1))


def run_while(deed, pool, experiment, folder):
    """Run, and do the deed to an actor that is in the middle of a piece: its node's name and its process."""

    def act():
        try:
            node, pid = until(lambda: list(folder.glob("*-*")))[0].name.split("-")
            deed(node, int(pid))
        finally:
            (folder / "done").touch()

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(act)
        try:
            return at(pool, experiment)
        finally:
            (folder / "done").touch()
            done.result(PATIENCE)


def kill_actor(cluster, node, pid):
    os.kill(pid, signal.SIGKILL)


def remove_node(cluster, name, pid):
    (node,) = [node for node in cluster.worker_nodes if node.node_id == name]
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.parametrize("deed", [kill_actor, remove_node])
def test_what_is_lost_in_mid_round_is_done_elsewhere_to_the_same_bits(deed, cluster, pool, waiting, tmp_path):
    struck = []

    def act(node, pid):
        deed(cluster, node, pid)
        struck.append(pid)

    with pytest.warns(UserWarning, match="A Ray actor was lost; another one does its work"):
        there = run_while(act, pool, waiting, tmp_path)
    here = alone(waiting)
    assert there.summary["digest"] == here.summary["digest"]
    assert there.rounds["loss"].tolist() == here.rounds["loss"].tolist()
    assert there.rounds["received"].all()
    assert len(struck) == 1


@LONG
@pytest.mark.filterwarnings("ignore:A Ray actor was lost")
def test_a_node_that_goes_between_two_rounds_is_no_fault_of_the_work(cluster, pool, waiting, tmp_path):
    (tmp_path / "done").touch()

    def gone(row):
        return row["round"] == 1 and remove_node(cluster, next(iter(pool._node.values())), None)

    there = run_with(waiting, None, callbacks_of(gone), None, pool)
    assert there.summary["digest"] == alone(waiting).summary["digest"]


def test_without_any_node_left_the_run_ends_with_one_sentence(cluster, pool, waiting, tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "START_SECONDS", 2.0)
    (tmp_path / "done").touch()
    pool.join()  # which it did, unless this is its first test
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node)
    with pytest.raises(WorkerDied, match=r"No Ray actor has started within 2 s: .* its machines are gone"):
        at(pool, waiting)


@LONG
def test_other_software_is_refused_and_another_processor_named(pool, waiting, tmp_path, monkeypatch):
    (tmp_path / "done").touch()
    real = ray_cluster.versions()
    monkeypatch.setattr(ray_cluster, "versions", lambda: real | {"torch": "99.1"})
    with pytest.raises(BadInput, match=re.escape(f"software than this one: torch {real['torch']}, not 99.1. Inst")):
        at(pool, waiting)
    monkeypatch.setattr(ray_cluster, "versions", lambda: real | {"scikit-learn": "99.1"})  # which trains nothing
    monkeypatch.setattr(ray_cluster, "processor", lambda: {"name": "abacus", "vectors": "beads"})
    with pytest.warns(UserWarning, match="than this machine, abacus, beads: the last bits may differ"):
        there = at(pool, waiting)
    assert there.summary["digest"] == alone(waiting).summary["digest"]


METHODS = [fw.methods.scaffold(4), fw.methods.fedyogi(4)]


@pytest.fixture
def several(pool, waiting, tmp_path):
    """What a comparison takes, with two free CPUs for it, and the digests of its runs one after another."""
    pool.join()
    pool._end()
    until(lambda: pool._ray.available_resources().get("CPU") == 2)
    (tmp_path / "done").touch()
    experiment = replace(waiting, workers="auto")
    return experiment, digests(fw.compare(METHODS, replace(experiment, pool="local", workers=1), seeds=2))


def digests(comparison):
    return [(r.summary["method"], r.summary["seed"], r.summary["digest"]) for r in comparison.results]


class TwoBeginTogether(fw.Callback):
    """Lets a run begin together with another one only."""

    def __init__(self):
        self._both = threading.Barrier(2, timeout=PATIENCE)

    def begin(self, run):
        self._both.wait()


@LONG
def test_runs_of_a_comparison_go_on_at_the_same_time_to_the_same_bits(several, tmp_path):
    experiment, one_by_one = several
    there = fw.compare(METHODS, experiment, 2, tmp_path / "c", TwoBeginTogether())
    assert digests(there) == one_by_one
    assert digests(fw.compare(METHODS, experiment, 2)) == one_by_one


@LONG
def test_a_sweep_spreads_its_grid_and_tests_its_best_point_to_the_same_bits(several):
    experiment, over = several[0], {"lr": [0.02, 0.1]}
    there = fw.sweep(METHODS[1:], experiment, over)
    here = fw.sweep(METHODS[1:], replace(experiment, pool="local", workers=1), over)
    assert digests(there) == digests(here)
    assert digests(there.tested) == digests(here.tested)


class UnhappyError(Exception):
    pass


@LONG
@pytest.mark.parametrize(("raised", "seen"), [(KeyboardInterrupt, fw.Interrupted), (UnhappyError, UnhappyError)])
def test_one_run_that_ends_badly_ends_the_others_and_all_can_be_continued(raised, seen, several, tmp_path):
    experiment, one_by_one = several
    gone = threading.Event()

    class Ends(fw.Callback):
        def round(self, run, row, state):
            if run.name != METHODS[0].name:
                assert gone.wait(PATIENCE)  # so that it is under way meanwhile
            elif row["round"] == 2:
                gone.set()
                raise raised

    with pytest.raises(seen):
        fw.compare(METHODS, experiment, 2, tmp_path / "c", Ends())
    assert len(list(tmp_path.glob("c/*-seed0"))) == 2
    assert digests(fw.compare(METHODS, experiment, 2, tmp_path / "c")) == one_by_one


@LONG
@pytest.mark.filterwarnings("ignore:A Ray actor was lost")
def test_a_comparison_outlives_a_node(cluster, several, tmp_path):
    experiment, one_by_one = several
    once = threading.Lock()

    def lost(row):
        if once.acquire(blocking=False):
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    assert (
        digests(fw.compare(METHODS[:1], experiment, 2, tmp_path / "c", [TwoBeginTogether(), lost])) == one_by_one[::2]
    )
