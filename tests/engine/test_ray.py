"""Training on Ray: the same bits as without it, errors that arrive, actors that die, and nothing left behind."""

import ipaddress
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import nn

import fedweave as fw
from fedweave.core.settings import BadInput
from fedweave.engine.pool import ray as ours
from fedweave.engine.pool.protocol import WorkerDied
from fedweave.engine.pool.ray import RayActors
from fedweave.engine.torch_simulator import torch_simulator
from fedweave.local.solvers import SGD
from fedweave.local.torch.flat_module import initial_vector
from fedweave.runs.callbacks import callbacks_of
from fedweave.runs.loop import Interrupted, resume_with, run_with
from fedweave.store.run_folder import RunFolder

PROGRAM = [sys.executable, "-c", "from fedweave.cli.app import main; main()"]


@pytest.fixture(scope="module")
def pool():
    """Two actors for all tests, on a Ray of their own, which must leave our handler of SIGTERM alone."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        ours_before = signal.getsignal(signal.SIGTERM)
        with RayActors(2) as actors:
            actors.join()
            assert signal.getsignal(signal.SIGTERM) is ours_before, "with Ray's, a run would stop without its state"
            yield actors
        assert not actors._ray
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def small(tiny):
    """Return a maker of small experiments on Ray."""

    def make(method=None, **changes):
        return tiny(method, **{"model": conv, "rounds": 3, "pool": "ray", "workers": 2} | changes)

    return make


def conv():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.AlphaDropout(0.2), nn.Linear(144, 10))


def at(pool, experiment, out=None, *callbacks):
    return run_with(experiment, out, callbacks_of(callbacks), None, pool)


def alone(experiment, out=None):
    return fw.run(replace(experiment, pool="local", workers=1), out)


def test_actors_are_hired_as_rounds_need_them(pool):
    import worlds  # here, since actors import this file and have no path to it

    x, y = np.zeros((40, 1, 8, 8), np.uint8), np.zeros(40, np.int64)
    data = worlds.client_data(x, y, [10] * 4, mean=(0.5,), std=(0.5,))
    engine, at_x = torch_simulator(conv, data, SGD(), 0, pool), initial_vector(conv())
    engine.losses(at_x, np.arange(1))
    assert len(pool._actors) == 1
    engine.losses(at_x, np.arange(4))
    assert len(pool._actors) == 2


METHODS = {
    "fedavg": (fw.methods.fedavg(4), {"model": "cnn_small"}),
    "scaffold": (fw.methods.scaffold(4), {}),
    "feddd": (fw.methods.feddd(4), {"submodels": (1.0, 0.5)}),
    "stacked, with variances": (fw.methods.fedpracdelta(4), {"model": "mlp"}),
    "asynchronous": (fw.methods.scaffold(4), {"pacing": "buffered:5:2", "rounds": 4}),  # several versions in one call
    "calibrated, with gradients": (fw.methods.fedacs(4), {"calibrate": True, "true_gradients": True}),
}


@pytest.mark.parametrize("name", METHODS)
def test_ray_gives_the_bits_of_one_process(name, small, pool, threads):
    method, changes = METHODS[name]
    there, here = (run(small(method, **changes)) for run in (lambda e: at(pool, e), alone))
    assert there.summary["digest"] == here.summary["digest"]
    assert here.rounds["received"].any()
    for column in ("loss", "train_loss", "accuracy"):
        assert np.array_equal(there.rounds[column], here.rounds[column], equal_nan=True)
    assert "2 Ray actors" in there.manifest["device"]
    logs = pool._ray._private.worker._global_node.get_logs_dir_path()
    assert not [p for p in Path(logs).glob("worker-*.err") if "not writable" in p.read_text()]


def stop_after_two(row):
    if row["round"] == 2:
        raise KeyboardInterrupt


def test_a_run_goes_on_with_another_engine_to_the_same_bits(small, pool, tmp_path):
    there = small(fw.methods.scaffold(4), rounds=4)
    here, whole = replace(there, pool="local", workers=1), alone(there).summary["digest"]
    with pytest.raises(Interrupted):
        at(pool, there, tmp_path / "from", stop_after_two)
    assert fw.resume(tmp_path / "from", here).summary["digest"] == whole
    with pytest.raises(Interrupted):
        fw.run(here, tmp_path / "to", stop_after_two)
    assert resume_with(RunFolder.open(tmp_path / "to"), there, (), pool).summary["digest"] == whole


class Poison(nn.Module):
    """Makes nan of a sample that asks for it."""

    def forward(self, x):
        return x * torch.where(x[:, :1] > 50, torch.nan, 1.0)


def poisoned():
    return nn.Sequential(Poison(), nn.Linear(5, 3))


def test_a_bad_update_is_refused_by_name_as_without_ray(pool, tmp_path):
    rng = np.random.default_rng(0)
    x, y, client = rng.random((80, 5)), rng.integers(0, 3, 80), np.repeat(np.arange(4), 20)
    x[client == 2, 0] = 100
    data = fw.data.from_arrays(x, y, x[:20], y[:20], group=client)
    settings = {"model": poisoned, "rounds": 2, "pool": "ray", "workers": 2}
    experiment = fw.Experiment(fw.methods.fedavg(4), data, fw.partition.Natural(), **settings)
    there, here = at(pool, experiment, tmp_path / "ray"), alone(experiment, tmp_path / "alone")
    refused = []
    for name in ("ray", "alone"):
        store = RunFolder.open(tmp_path / name, write=False)
        refused.append(store.failures())
        store.close()
    assert refused[0] == refused[1]
    assert [(round, kind, failure.client) for round, kind, failure in refused[0]] == [(r, "refused", 2) for r in (1, 2)]
    assert there.summary["digest"] == here.summary["digest"]


class Away(nn.Module):
    """Behaves at home; in another process it does what ``then`` does."""

    def __init__(self, then, home):
        super().__init__()
        self.f, self.then, self.home = conv(), then, home

    def forward(self, x):
        if os.getpid() != self.home:
            self.then()
        return self.f(x)


def away(then):
    home = os.getpid()
    return lambda: Away(then, home)


def complain():
    raise LookupError("no such thing")


def test_an_error_of_a_model_arrives_with_its_traceback_and_the_pool_goes_on(small, pool):
    with pytest.raises(LookupError, match="no such thing") as caught:
        at(pool, small(model=away(complain)))
    whose, note = caught.value.__notes__
    assert whose.startswith("While clients ")
    assert note.startswith("In a training process:\n")
    assert "in forward" in note
    assert "in complain" in note
    assert not pool._actors, "the others may still be at work"
    after = small(fw.methods.fedavg(1))  # for which a single actor is hired
    assert at(pool, after).summary["digest"] == alone(after).summary["digest"]


@pytest.mark.filterwarnings("ignore:A Ray actor was lost")
def test_work_that_kills_every_actor_ends_the_run_with_one_sentence(small, pool, capfd, monkeypatch):
    monkeypatch.setattr(ours, "MOST_DEATHS", 2)
    with pytest.raises(WorkerDied, match=r"2 Ray actors .* out of memory\. The last one: The actor is dead because"):
        at(pool, small(fw.methods.fedavg(1), model=away(lambda: os._exit(3))))
    assert capfd.readouterr().out == "", "where a run may write its JSON"


def test_more_actors_than_cpus_are_refused_and_a_model_that_cannot_be_sent(small, pool):
    with pytest.raises(BadInput, match=r"3 Ray actors .* has 2"):
        fw.run(small(workers=3))
    held = threading.Lock()
    with pytest.raises(BadInput, match="pool 'local'"):
        fw.run(small(model=lambda: held and conv()))
    assert pool._ray.is_initialized(), "it was there before these runs"


def test_without_ray_one_sentence_says_how_to_get_it(small, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"pip install 'fedweave\[ray\]'"):
        fw.run(small(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_solved_in_closed_form_starts_nothing(monkeypatch):
    monkeypatch.setattr(ours, "connected", lambda cpus: pytest.fail("Ray was started"))
    experiment = fw.Experiment(fw.methods.fedavg(2), "quadratics", fw.partition.IID(4), rounds=2, pool="ray")
    result = fw.run(experiment)
    assert result.summary["digest"] == alone(experiment).summary["digest"]
    assert "a Ray actor per CPU" in result.manifest["device"]


def test_a_gpu_is_refused_and_an_address_where_nobody_is(small, monkeypatch, tmp_path):
    with pytest.raises(BadInput, match="use 'device' cpu"):
        small(device="cuda")
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(BadInput, match=r"RAY_ADDRESS='127\.0\.0\.1:9' cannot be joined"):
        fw.run(small(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


TYPED = shlex.split("--data digits --model cnn_small --clients 6 --per-round 3 --pool ray --workers 1")


def listening(process):
    """Return the addresses at which a process and its descendants listen, and the descendants."""
    family = [process, *process.children(recursive=True)]
    found = set()
    for p in family:
        with suppress(psutil.Error):
            found |= {c.laddr.ip for c in p.net_connections() if c.status == psutil.CONN_LISTEN}
    return found, family[1:]


def test_the_command_line_is_quiet_listens_at_home_and_leaves_nothing_behind(tmp_path):
    """With a Ray of its own, which is started and ended by the run."""
    command = [*PROGRAM, "run", "fedavg", *TYPED, "--rounds", "3", "--json", "--out", "run"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    addresses, family = set(), set()
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as run:
        while run.poll() is None:
            with suppress(psutil.NoSuchProcess):
                seen, children = listening(psutil.Process(run.pid))
                addresses, family = addresses | seen, family | set(children)
            time.sleep(1)
        out, err = run.communicate()
    assert run.returncode == 0, err
    _, left = psutil.wait_procs(family, timeout=30)  # Ray ends them, and does not wait for it
    assert left == []
    assert len(family) > 4, "Ray has more processes than that"
    assert addresses
    assert all(ipaddress.ip_address(a.removeprefix("::ffff:")).is_loopback for a in addresses)
    assert json.loads(out)["rounds"] == 3
    lines = [line.split("  ")[0] for line in err.strip().splitlines()]
    assert set(lines) <= {"device: cpu (Ray trains on CPUs), one Ray actor", "fedavg"}, err
