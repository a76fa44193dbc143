"""The simulator: the same bits for any number of workers, lost links, workers that end, errors that arrive."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from torch import nn

import fedweave as fw
from fedweave.engine.simulator import Simulator, choose_device, workers_for
from fedweave.engine.workers import WorkerDied, Workers
from fedweave.local.flat_module import initial_vector
from fedweave.local.solvers import SGD
from fedweave.local.torch_trainer import ClientData
from fedweave.randomness import Stream, rng_for
from fedweave.records import Cohort, Population

N = 8


def data():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (200, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, 200)
    parts = np.split(np.arange(200), [5, 30, 60, 61, 100, 130, 170])
    return ClientData(x, y, x[:120], y[:120], 10, (0.5,), (0.5,), parts)


def population(loss_rate=0.0):
    one, samples = np.ones(N), np.array([p.size for p in data().parts])
    batch = np.minimum(7, samples)
    return Population(one / N, samples, np.arange(1, N + 1), batch, loss_rate * one, 2.0 * one, one > 0)


def everyone():
    return Cohort(np.arange(N), np.ones(N, int), np.ones(N))


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def conv():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 10))


def broken():
    return nn.Sequential(nn.Flatten(), Complains(), nn.Linear(64, 10))


class Complains(nn.Module):
    """Fails on the fifth sample of a batch, and its error cannot be pickled."""

    def forward(self, x):
        if x.dim() > 1 and len(x) > 4:
            raise Unsendable(lambda: None)
        return x


class Unsendable(Exception):  # noqa: N818
    pass


def train(model, workers, round=3, loss_rate=0.0, seed=0):
    torch.manual_seed(0)
    x = initial_vector(model())
    with Workers(workers) as processes:
        engine = Simulator(model, data(), SGD(momentum=0.5), seed, processes)
        return engine.train(round, x, everyone(), population(loss_rate), 0.1), engine.evaluate(x)


@pytest.mark.parametrize("model", [dense, conv])
def test_one_two_and_four_workers_give_the_same_bits(model):
    (one, score), (two, score2), (four, score4) = (train(model, w) for w in (1, 2, 4))
    for other in (two, four):
        assert np.array_equal(one.updates, other.updates)
        assert np.array_equal(one.loss, other.loss)
    assert score["loss"] == score2["loss"] == score4["loss"]
    assert score["accuracy"] == score2["accuracy"] == score4["accuracy"]
    assert one.updates.any(axis=1).all()


def test_lost_replies_are_silent_and_decided_per_client():
    replies, _ = train(dense, 1, loss_rate=0.5)
    fate = rng_for(0, 3, Stream.LINK).random(N) >= 0.5
    assert np.array_equal(replies.received, fate)
    assert 0 < fate.sum() < N
    assert not replies.updates[~fate].any()
    assert np.isnan(replies.loss[~fate]).all()
    clean, _ = train(dense, 1)
    assert np.array_equal(replies.updates[fate], clean.updates[fate])  # others' luck changes nothing


def test_losses_happen_at_their_rate():
    lost = [rng_for(0, r, Stream.LINK).random(N) < 0.3 for r in range(2000)]
    assert np.abs(np.mean(lost, axis=0) - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 2000)


def test_nobody_asked_is_fine():
    engine = Simulator(dense, data(), SGD(), 0, Workers(1))
    nobody = Cohort(np.empty(0, int), np.empty(0, int), np.empty(0))
    replies = engine.train(1, initial_vector(dense()), nobody, population(), 0.1)
    assert replies.updates.shape == (0, engine.layout.dim)


def test_workers_end_with_the_simulator():
    before = set(psutil.Process().children())
    train(dense, 2)
    assert set(psutil.Process().children()) <= before


def test_a_dead_worker_is_an_error_that_says_so():
    with Workers(2) as workers:
        engine, x = Simulator(dense, data(), SGD(), 0, workers), initial_vector(dense())
        engine.train(1, x, everyone(), population(), 0.1)
        workers._processes[0].kill()
        workers._processes[0].wait()
        with pytest.raises(WorkerDied, match="-9"):
            engine.train(2, x, everyone(), population(), 0.1)


def test_an_error_in_a_worker_arrives_with_its_traceback():
    with pytest.raises(Exception, match="Unsendable") as caught:
        train(broken, 2)
    assert "forward" in "".join(caught.value.__notes__)


def test_a_script_without_a_main_guard_runs_with_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import torch, fedweave as fw
        class Mine(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.f = torch.nn.Linear(64, 10)
            def forward(self, x):
                return self.f(x.flatten(1))
        e = fw.Experiment(fw.methods.fedavg(4), "digits", fw.partition.IID(6), model=Mine, rounds=2, workers=2)
        print(fw.run(e).summary["digest"])
        e = fw.Experiment(fw.methods.fedavg(4), "digits", fw.partition.IID(6), model=Mine, rounds=2, workers=1)
        print(fw.run(e).summary["digest"])
    """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    first, second = done.stdout.split()
    assert first == second


def test_device_is_explained():
    assert choose_device("cpu") == ("cpu", "cpu, as asked")
    name, why = choose_device("auto")
    assert name in why
    assert workers_for(3, "cpu").count == 3
    assert workers_for(3, "cuda").count == 1


def test_workers_serve_one_simulator_after_another():
    with Workers(2) as workers:
        found = []
        for model in (dense, conv, dense):
            torch.manual_seed(0)
            x = initial_vector(model())
            engine = Simulator(model, data(), SGD(), 0, workers)
            found.append(engine.train(1, x, everyone(), population(), 0.1).updates)
    assert np.array_equal(found[0], found[2])


def test_a_thousand_rounds_leak_nothing():
    """The main process grows by less than 5 MB over 1,000 rounds, after 200 to fill the caches."""
    me, seen = psutil.Process(), {}
    tiny = fw.Experiment(
        fw.methods.fedavg(3), "digits", fw.partition.IID(6), model="logistic", rounds=1200, steps=1, evaluate_every=100
    )

    def watch(name, experiment):
        def told(row):
            if row["round"] in (200, 1200):
                seen[row["round"]] = me.memory_info().rss

        return told

    fw.run(replace(tiny, workers=1), watch=watch)
    assert (seen[1200] - seen[200]) / 2**20 < 5
