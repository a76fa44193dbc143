"""The simulator: the same bits for any number of workers, lost links, workers that end, errors that arrive."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from threadpoolctl import threadpool_limits
from torch import nn

import fedweave as fw
import worlds
from fedweave.core.records import ClientContext
from fedweave.core.settings import BadInput
from fedweave.engine.links import draw_arrivals
from fedweave.engine.pool import worker, worker_main, zygote
from fedweave.engine.pool.choose import choose_pool
from fedweave.engine.pool.mailbox import LARGE, pack
from fedweave.engine.pool.processes import Workers
from fedweave.engine.pool.protocol import WorkerDied
from fedweave.engine.simulator import Simulator
from fedweave.engine.torch_simulator import torch_simulator
from fedweave.local.solvers import SGD
from fedweave.local.torch.device import choose_device
from fedweave.local.torch.flat_module import initial_vector
from fedweave.local.trainer import attempt
from fedweave.runs.loop import run_with
from jobs import jobs_of
from worlds import N, cohort, data, dense, everyone, population


def conv():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.AlphaDropout(0.2), nn.Linear(144, 10))


def large():
    """A model whose vector goes to the workers and back beside the messages."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1700), nn.Tanh(), nn.Linear(1700, 10)
    )


def small():
    """Convolutions with so much work that a round is cut into several pieces."""
    first, second = nn.Conv2d(1, 40, 5, padding=2), nn.Conv2d(40, 21, 5, padding=2)
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.Flatten(), nn.Linear(336, 10))


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


@pytest.fixture(scope="module")
def two():
    """Two workers for all tests that do not end them."""
    with Workers(2) as workers:
        yield workers


def train(engine, round, x):
    """Return what everyone answers in a lossless world."""
    return engine.train(worlds.assignment(engine, round, x, everyone(), population(), 0.1))


def train_model(model, workers, round=3, loss_rate=0.0, seed=0):
    with Workers(workers) as processes:
        return train_with(processes, model, round, loss_rate, seed)


def train_with(processes, model, round=3, loss_rate=0.0, seed=0):
    torch.manual_seed(0)
    x = initial_vector(model())
    engine = torch_simulator(model, data(), SGD(momentum=0.5), seed, processes)
    return engine.train(worlds.assignment(engine, round, x, everyone(), population(loss_rate), 0.1)), engine.evaluate(x)


@pytest.mark.parametrize("model", [small, conv])
def test_a_round_is_cut_alike_for_any_number_of_workers(model, monkeypatch):
    def pieces(count):
        calls = []
        monkeypatch.setattr(Simulator, "_each", lambda self, x, todo: calls.extend(todo) or iter(()))
        engine = torch_simulator(model, data(), SGD(), 0, Workers(count, patience=1e9))
        train(engine, 1, initial_vector(model()))
        return [jobs.client.tolist() for _, (jobs, *_) in calls]

    one, *others = map(pieces, (1, 2, 4))
    assert len(one) > 2
    assert sorted(client for some in one for client in some) == list(range(N))
    assert others == [one, one]


def test_what_a_rounds_clients_share_is_pickled_once(two, monkeypatch):
    engine, x = torch_simulator(small, data(), SGD(), 0, two), initial_vector(small())
    train(engine, 1, x)
    done = []

    def packed(value, **how):
        done.append(value)
        return worker.packed(value, **how)

    monkeypatch.setattr("fedweave.engine.pool.processes.packed", packed)
    train(engine, 2, x)
    assert len(done) == 1


@pytest.mark.parametrize("library", [object(), None])
def test_another_c_library_keeps_no_memory(library, monkeypatch):
    def found(_name):
        if library is None:
            raise OSError("no such library")
        return library

    monkeypatch.setattr(worker_main, "CDLL", found)
    worker_main._keep_freed_memory()


def test_the_large_model_is_large():
    assert initial_vector(large()).nbytes > LARGE > initial_vector(conv()).nbytes


@pytest.mark.parametrize("model", [dense, conv, large, small])
def test_one_two_and_four_workers_give_the_same_bits(model, two, threads):
    four = train_model(model, 4) if model is conv else train_with(Workers(4, patience=1e9), model)
    (one, score), *others = train_model(model, 1), train_with(two, model), four
    for more, score2 in others:
        assert np.array_equal(one.updates, more.updates)
        assert np.array_equal(one.loss, more.loss)
        assert score["loss"] == score2["loss"]
        assert score["accuracy"] == score2["accuracy"]
    assert one.updates.any(axis=1).all()


@pytest.mark.parametrize("model", [dense, conv, large])
def test_probes_and_variances_are_the_same_for_any_number_of_workers(model, two, threads):
    torch.manual_seed(0)
    x, asked, ids = initial_vector(model()), ClientContext(measure=True), np.array([1, 4, 6])
    found = []
    for processes in (Workers(1), two):
        engine = torch_simulator(model, data(), SGD(), 0, processes)
        replies = engine.train(worlds.assignment(engine, 1, x, everyone(), population(0.5), 0.1, asked))
        assert np.array_equal(np.isnan(replies.variance), ~replies.received)
        probes = (engine.losses(x, ids), engine.variances(1, x, ids, population()), engine.gradients(x, ids))
        found.append((replies.variance, *probes))
    for here, there in zip(*found, strict=True):
        assert np.array_equal(here, there, equal_nan=True)
    assert [len(p) for p in found[0][1:]] == [3, 3, 3]
    assert train(torch_simulator(model, data(), SGD(), 0, Workers(1)), 1, x).variance is None


def test_lost_replies_are_silent_and_decided_per_client():
    replies, _ = train_model(dense, 1, loss_rate=0.5)
    fate = replies.received
    assert 0 < fate.sum() < N
    assert np.array_equal(fate, draw_arrivals(0, 3, np.arange(N), population(0.5)))
    assert np.array_equal(fate[[1, 4]], draw_arrivals(0, 3, np.array([1, 4]), population(0.5)))
    assert not replies.updates[~fate].any()
    assert np.isnan(replies.loss[~fate]).all()
    clean, _ = train_model(dense, 1)
    assert np.array_equal(replies.updates[fate], clean.updates[fate])  # others' luck changes nothing


def test_losses_happen_at_their_rate():
    lost = [~draw_arrivals(0, r, np.arange(N), population(0.3)) for r in range(2000)]
    assert np.abs(np.mean(lost, axis=0) - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 2000)


def test_nobody_asked_is_fine():
    engine = torch_simulator(dense, data(), SGD(), 0, Workers(1))
    nobody = cohort([])
    replies = engine.train(worlds.assignment(engine, 1, initial_vector(dense()), nobody, population(), 0.1))
    assert replies.updates.shape == (0, engine.layout.dim)


def test_workers_end_with_the_simulator():
    zygote.prepare()
    before = set(psutil.Process().children(recursive=True))
    train_model(dense, 2)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_dead_worker_is_an_error_that_says_so():
    with Workers(2) as workers:
        engine, x = torch_simulator(dense, data(), SGD(), 0, workers), initial_vector(dense())
        train(engine, 1, x)
        workers._processes[0].kill()
        workers._processes[0].wait()
        with pytest.raises(WorkerDied, match="-9"):
            train(engine, 2, x)


def test_an_error_in_a_worker_arrives_with_its_traceback():
    with pytest.raises(Exception, match="Unsendable") as caught:
        train_model(broken, 2)
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
    assert choose_pool(3, "cpu").count == 3
    assert choose_pool(3, "cuda").count == 1


def test_workers_serve_one_simulator_after_another(two):
    found = []
    for model in (dense, conv, dense):
        torch.manual_seed(0)
        x = initial_vector(model())
        engine = torch_simulator(model, data(), SGD(), 0, two)
        found.append(train(engine, 1, x).updates)
    assert np.array_equal(found[0], found[2])


def test_a_first_round_with_one_client_does_not_leave_one_worker():
    one = cohort([0])
    torch.manual_seed(0)
    x = initial_vector(conv())
    with Workers(2) as workers:
        engine = torch_simulator(conv, data(), SGD(), 0, workers)
        engine.train(worlds.assignment(engine, 1, x, one, population(), 0.1))
        assert len(workers._processes) == 1
        found = train(engine, 2, x).updates
        assert len(workers._processes) == 2
    assert np.array_equal(found, train(torch_simulator(conv, data(), SGD(), 0, Workers(1)), 2, x).updates)


def test_a_thousand_rounds_leak_nothing():
    """The main process grows by less than 5 MB over 1,000 rounds, after 200 to fill the caches."""
    me, seen = psutil.Process(), {}
    tiny = fw.Experiment(
        fw.methods.fedavg(3), "digits", fw.partition.IID(6), model="logistic", rounds=1200, steps=1, evaluate_every=100
    )

    def watch(row):
        if row["round"] in (200, 1200):
            seen[row["round"]] = me.memory_info().rss

    fw.run(replace(tiny, workers=1), callbacks=watch)
    assert (seen[1200] - seen[200]) / 2**20 < 5


def test_answers_of_an_abandoned_call_never_reach_the_next():
    calls = [(attempt, (jobs_of((4, steps, 7)), False)) for steps in (1, 2, 3)]
    x = initial_vector(dense())
    with Workers(2) as workers:
        engine = torch_simulator(dense, data(), SGD(), 0, workers)
        engine.evaluate(x)
        some = workers.map(x, calls)
        next(some)
        some.close()
        replies = train(engine, 1, x)  # starts anew by itself
        assert np.array_equal(replies.updates, train_from(x).updates)


def train_from(x):
    return train(torch_simulator(dense, data(), SGD(), 0, Workers(1)), 1, x)


def test_two_simulators_may_take_turns(two):
    x, y = initial_vector(dense()), initial_vector(conv())
    one, other = torch_simulator(dense, data(), SGD(), 0, two), torch_simulator(conv, data(), SGD(), 0, two)
    first = train(one, 1, x)
    train(other, 1, y)
    assert np.array_equal(train(one, 1, x).updates, first.updates)


def test_busy_workers_are_ended_too():
    with Workers(2) as workers:
        torch_simulator(conv, data(), SGD(), 0, workers).evaluate(initial_vector(conv()))
        call = attempt, (jobs_of((4, 10_000_000, 7)), False), initial_vector(conv())
        workers._send(workers._links[0], pack(call))
        processes = list(workers._processes)
        workers._stop(patience=0)
    assert all(p.returncode is not None for p in processes)


def test_a_model_that_cannot_be_sent():
    import threading

    held = threading.Lock()

    def model():
        assert held
        return dense()

    with Workers(2) as workers, pytest.raises(BadInput, match="workers=1"):
        torch_simulator(model, data(), SGD(), 0, workers).evaluate(initial_vector(dense()))
    with Workers(2, patience=1e-9) as workers:  # "auto" works alone then
        engine = torch_simulator(model, data(), SGD(), 0, workers)
        engine.evaluate(initial_vector(dense()))
        assert np.isfinite(engine.evaluate(initial_vector(dense()))["loss"])


class Features(nn.Module):
    """Has a random constant that is neither parameter nor buffer, and behaves differently in evaluation."""

    def __init__(self):
        super().__init__()
        self.constant = torch.randn(64, 32)
        self.f = nn.Linear(32, 10)

    def forward(self, x):
        out = self.f(torch.tanh(x.flatten(1) @ self.constant))
        return out if self.training else out.softmax(-1)


@pytest.mark.parametrize("evaluate_every", [1, 4])
def test_constants_and_modes_of_own_modules_do_not_depend_on_workers(evaluate_every, digits, two, threads):
    e = fw.Experiment(fw.methods.fedavg(6), digits, fw.partition.IID(8), model=Features, rounds=4)
    e = replace(e, workers=1, evaluate_every=evaluate_every)
    assert fw.run(e).summary["digest"] == run_with(e, None, (), None, two).summary["digest"]


def test_the_number_of_blas_threads_does_not_matter(digits):
    """Uneven weights and 60,000 parameters: a threaded product on the server would add up in another order."""

    def big():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 900), nn.ReLU(), nn.Linear(900, 10))

    e = fw.Experiment(fw.methods.fedavg(10), digits, fw.partition.Dirichlet(20, 0.5), model=big, rounds=2, steps=2)
    found = set()
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            found.add(fw.run(replace(e, workers=1)).summary["digest"])
    assert len(found) == 1
