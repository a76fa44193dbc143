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
from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Carried, Cohort, Population
from fedweave.core.settings import BadInput
from fedweave.engine.pool import zygote
from fedweave.engine.pool.processes import WorkerDied, Workers
from fedweave.engine.simulator import Simulator, choose_device, workers_for
from fedweave.local.client_data import ClientData
from fedweave.local.solvers import SGD
from fedweave.local.torch.flat_module import initial_vector
from fedweave.local.trainer import attempt
from fedweave.runs.loop import run_with
from jobs import jobs_of

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


def small():
    """Convolutions that train in lockstep, with so much work that a round is cut into several pieces."""
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


def train(model, workers, round=3, loss_rate=0.0, seed=0):
    with Workers(workers) as processes:
        return train_with(processes, model, round, loss_rate, seed)


def train_with(processes, model, round=3, loss_rate=0.0, seed=0):
    torch.manual_seed(0)
    x = initial_vector(model())
    engine = Simulator(model, data(), SGD(momentum=0.5), seed, processes)
    return engine.train(round, x, everyone(), population(loss_rate), 0.1), engine.evaluate(x)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_round_is_cut_alike_for_any_number_of_workers(count, monkeypatch):
    """Six clients have batches of 7; two have less to train on, and batches of their own size."""
    calls = []
    monkeypatch.setattr(Simulator, "_each", lambda self, x, todo: calls.extend(todo) or iter(()))
    engine = Simulator(small, data(), SGD(), 0, Workers(count, patience=1e9))
    engine.train(1, initial_vector(small()), everyone(), population(), 0.1)
    clients = [jobs.client.tolist() for _, (jobs, _) in calls]
    assert sorted(clients) == [[0], [3], [6, 4, 1], [7, 5, 2]]


@pytest.mark.parametrize("model", [dense, conv, small])
def test_one_two_and_four_workers_give_the_same_bits(model, two, threads):
    four = train(model, 4) if model is conv else train_with(Workers(4, patience=1e9), model)
    (one, score), *others = train(model, 1), train_with(two, model), four
    for more, score2 in others:
        assert np.array_equal(one.updates, more.updates)
        assert np.array_equal(one.loss, more.loss)
        assert score["loss"] == score2["loss"]
        assert score["accuracy"] == score2["accuracy"]
    assert one.updates.any(axis=1).all()


@pytest.mark.parametrize("model", [dense, conv])
def test_probes_and_variances_are_the_same_for_any_number_of_workers(model, two, threads):
    torch.manual_seed(0)
    x, asked, ids = initial_vector(model()), Carried(measure=True), np.array([1, 4, 6])
    found = []
    for processes in (Workers(1), two):
        engine = Simulator(model, data(), SGD(), 0, processes)
        replies = engine.train(1, x, everyone(), population(0.5), 0.1, asked)
        assert np.array_equal(np.isnan(replies.variance), ~replies.received)
        probes = (engine.losses(x, ids), engine.variances(1, x, ids, population()), engine.gradients(x, ids))
        found.append((replies.variance, *probes))
    for here, there in zip(*found, strict=True):
        assert np.array_equal(here, there, equal_nan=True)
    assert [len(p) for p in found[0][1:]] == [3, 3, 3]
    assert Simulator(model, data(), SGD(), 0, Workers(1)).train(1, x, everyone(), population(), 0.1).variance is None


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
    zygote.prepare()
    before = set(psutil.Process().children(recursive=True))
    train(dense, 2)
    assert set(psutil.Process().children(recursive=True)) <= before


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


def test_workers_serve_one_simulator_after_another(two):
    found = []
    for model in (dense, conv, dense):
        torch.manual_seed(0)
        x = initial_vector(model())
        engine = Simulator(model, data(), SGD(), 0, two)
        found.append(engine.train(1, x, everyone(), population(), 0.1).updates)
    assert np.array_equal(found[0], found[2])


def test_a_first_round_with_one_client_does_not_leave_one_worker():
    one = Cohort(np.array([0]), np.array([1]), np.array([1.0]))
    torch.manual_seed(0)
    x = initial_vector(conv())
    with Workers(2) as workers:
        engine = Simulator(conv, data(), SGD(), 0, workers)
        engine.train(1, x, one, population(), 0.1)
        assert len(workers._processes) == 1
        found = engine.train(2, x, everyone(), population(), 0.1).updates
        assert len(workers._processes) == 2
    assert np.array_equal(
        found, Simulator(conv, data(), SGD(), 0, Workers(1)).train(2, x, everyone(), population(), 0.1).updates
    )


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


def test_answers_of_an_abandoned_call_never_reach_the_next():
    calls = [(attempt, (jobs_of((4, steps, 7)), False)) for steps in (1, 2, 3)]
    x = initial_vector(dense())
    with Workers(2) as workers:
        engine = Simulator(dense, data(), SGD(), 0, workers)
        engine.evaluate(x)
        some = workers.map(x, calls)
        next(some)
        some.close()
        replies = engine.train(1, x, everyone(), population(), 0.1)  # starts anew by itself
        assert np.array_equal(replies.updates, train_from(x).updates)


def train_from(x):
    return Simulator(dense, data(), SGD(), 0, Workers(1)).train(1, x, everyone(), population(), 0.1)


def test_two_simulators_may_take_turns(two):
    x, y = initial_vector(dense()), initial_vector(conv())
    one, other = Simulator(dense, data(), SGD(), 0, two), Simulator(conv, data(), SGD(), 0, two)
    first = one.train(1, x, everyone(), population(), 0.1)
    other.train(1, y, everyone(), population(), 0.1)
    assert np.array_equal(one.train(1, x, everyone(), population(), 0.1).updates, first.updates)


def test_busy_workers_are_ended_too():
    with Workers(2) as workers:
        Simulator(conv, data(), SGD(), 0, workers).evaluate(initial_vector(conv()))
        workers._send(workers._links[0], ("model", initial_vector(conv())))
        workers._send(workers._links[0], (attempt, (jobs_of((4, 10_000_000, 7)), False)))
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
        Simulator(model, data(), SGD(), 0, workers).evaluate(initial_vector(dense()))
    with Workers(2, patience=1e-9) as workers:  # "auto" works alone then
        engine = Simulator(model, data(), SGD(), 0, workers)
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
    assert fw.run(e).summary["digest"] == run_with(e, None, None, None, two).summary["digest"]


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
