"""Runs wherever they are called: in forked, spawned and daemonic children, threads, event loops and notebooks."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

import fedweave as fw
from fedweave.core.determinism import deterministic
from fedweave.core.roles import Parcel, Upload
from fedweave.engine.pool import zygote
from fedweave.engine.pool.choose import choose_pool
from fedweave.engine.pool.processes import Workers
from fedweave.local.torch.threads import one_thread
from fedweave.runs.loop import run_with
from fedweave.store.run_folder import RunFolder
from fedweave.tables import rows

OWN = """
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 1000), nn.Dropout(0.5), nn.Linear(1000, 10))

    def forward(self, x):
        return self.layers(x)
"""


def defined(source, **names):
    """Return the names that a session without a file has after it executed this source."""
    exec(textwrap.dedent(source), names)
    return names


def digest(experiment):
    return fw.run(experiment).summary["digest"]


# Children of multiprocessing

CHILDREN = """
import multiprocessing
import sys

import torch

import fedweave as fw


def check(want, workers):
    sys.exit(digest(workers) != want)


def digest(workers):
    experiment = fw.Experiment(
        method=fw.methods.fedavg(2),
        data=fw.data.load("digits"),
        partition=fw.partition.IID(4),
        model=Own,
        rounds=1,
        workers=workers,
    )
    return fw.run(experiment).summary["digest"]


if __name__ == "__main__":
    torch.set_num_threads(2)
    want = digest(1)
    for how, daemon, workers in (("fork", False, 1), ("fork", True, 2), ("spawn", True, 2)):
        child = multiprocessing.get_context(how).Process(target=check, args=(want, workers), daemon=daemon)
        child.start()
        child.join(120)
        ended = child.exitcode
        child.kill()
        print(how, daemon, workers, ended)
"""


def test_children_of_multiprocessing_run_with_and_without_workers(tmp_path):
    """Forked after a run in the parent, spawned, and daemonic, which may have no children of multiprocessing."""
    script = tmp_path / "script.py"
    script.write_text(OWN + CHILDREN)
    done = subprocess.run([sys.executable, script], timeout=450, check=False, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["fork False 1 0", "fork True 2 0", "spawn True 2 0"], done.stderr


# Threads

Own = defined(OWN, __name__="__main__")["Own"]


@pytest.fixture
def two_threads():
    """Two threads for torch and for NumPy's algebra, as users have them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with threadpool_limits(2, user_api="blas"):
        yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_that_run_at_the_same_time_get_the_bits_they_would_get_alone(workers, tiny, two_threads):
    """Dropout draws from a generator that all threads of a process share."""
    base = tiny(model=Own, rounds=2)
    experiments = [replace(base, seed=seed, workers=workers) for seed in range(3)]
    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(digest, experiments))
    assert together == [digest(replace(e, workers=1)) for e in experiments]
    assert torch.get_num_threads() == 2


@contextmanager
def another_thread(context):
    """Enter a context in another thread, which leaves it when the function is called that this yields."""
    entered, leave = threading.Event(), threading.Event()

    def stay():
        with context():
            entered.set()
            leave.wait(60)

    def end():
        leave.set()
        thread.join()

    thread = threading.Thread(target=stay)
    thread.start()
    entered.wait(60)
    try:
        yield end
    finally:
        end()


def blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_a_run_that_ends_does_not_change_the_blas_threads_of_another(two_threads):
    """Their number belongs to the process, whichever thread has set it; another one would add up in another order."""
    with another_thread(deterministic) as end:
        assert blas_threads() == {1}
        with deterministic():
            end()
            assert blas_threads() == {1}
    assert blas_threads() == {2}


def test_a_run_in_a_thread_leaves_torch_as_many_threads_as_it_had(two_threads):
    with one_thread():
        others = ExitStack()
        others.enter_context(another_thread(one_thread))
    others.close()
    with ThreadPoolExecutor(1) as new:
        assert new.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2


def test_a_fork_is_not_held_up_by_a_thread_that_trains(tiny):
    """What other threads of the parent hold is free in the child."""
    entered, leave = threading.Event(), threading.Event()

    class Waits(nn.Linear):
        def forward(self, x):
            if self.training and threading.current_thread() is not threading.main_thread():
                entered.set()
                leave.wait(60)
            return super().forward(x)

    experiment = tiny(model=lambda: nn.Sequential(nn.Flatten(), Waits(64, 10)), rounds=1)
    thread = threading.Thread(target=fw.run, args=(experiment,))
    thread.start()
    entered.wait(60)
    child = multiprocessing.get_context("fork").Process(target=fw.run, args=(experiment,))
    child.start()
    child.join(120)
    ended = child.exitcode
    child.kill()
    leave.set()
    thread.join()
    assert ended == 0


# Event loops and notebooks


def test_a_run_inside_an_event_loop(tiny):
    async def inside():
        return digest(tiny(model=Own, rounds=1, workers=2))

    assert asyncio.run(inside()) == digest(tiny(model=Own, rounds=1))


def test_a_model_defined_in_a_notebook_trains_in_workers(tiny):
    """Its class belongs to the main module of an interactive session, which no worker can import."""
    cell = """
        class Net(Own):
            pass

        found = fw.run(tiny(model=lambda: Net(), rounds=1, workers=2))
    """
    notebook = defined(OWN, __name__="__main__", fw=fw, tiny=tiny)
    exec(textwrap.dedent(cell), notebook)
    assert "__file__" not in notebook
    assert notebook["found"].summary["digest"] == digest(tiny(model=Own, rounds=1))


def test_an_upload_defined_in_a_notebook_trains_in_workers(tiny):
    """Local, so that it has no name by which a worker could find it."""

    class Half(Upload):
        def size(self, model, budget):
            return 2 * model.layout.dim

        def encode(self, update, x, start, budget, kept, rng, model):
            return Parcel(update.astype("<f2").tobytes())

        def decode(self, payload, model):
            return np.frombuffer(payload, "<f2").astype(np.float32), None

    half = fw.Method(fw.sample.Everyone(), upload=fw.settings(Half)())
    assert digest(tiny(half, model=Own, rounds=1, workers=2)) == digest(tiny(half, model=Own, rounds=1))


def test_a_model_of_a_module_that_workers_cannot_import_is_refused_or_trained_here(tiny, monkeypatch):
    module = ModuleType("only_here")
    exec(OWN, module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    experiment = tiny(model=module.Own, rounds=1)
    with pytest.raises(
        fw.BadInput, match=r"cannot be sent to worker processes: No module named 'only_here'\..*workers=1"
    ):
        fw.run(replace(experiment, workers=2))
    with Workers(2, patience=1e-9) as auto:
        found = run_with(replace(experiment, rounds=2), None, (), None, auto)
    assert found.summary["digest"] == digest(replace(experiment, rounds=2))


# Other systems


def test_workers_that_are_not_forked(tiny, monkeypatch):
    monkeypatch.setattr(zygote, "FORKS", False)
    assert digest(tiny(model=Own, rounds=1, workers=2)) == digest(tiny(model=Own, rounds=1))


def test_without_affinity_there_are_as_many_workers_as_processors(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert choose_pool("auto", "cpu").count == 3
    monkeypatch.setattr(rows, "WORTHWHILE", 0)
    monkeypatch.setattr(rows, "COLUMNS", 4)
    table = rows.Rows.zeros(2, 9).replaced(np.arange(2), np.ones((2, 9)))
    assert table.combine(np.ones(2)).tolist() == [2] * 9


def test_without_fcntl_a_second_writer_is_refused_too(tiny, tmp_path, monkeypatch):
    """Locks of Windows are for a byte at the file's position, and keep everybody else from reading it."""
    fcntl, places = pytest.importorskip("fcntl"), set()

    def locking(descriptor, mode, count):
        places.add(os.lseek(descriptor, 0, os.SEEK_CUR))
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    fw.run(tiny(rounds=1), tmp_path / "run")
    with (
        closing(RunFolder.open(tmp_path / "run")),
        pytest.raises(fw.BadInput, match=f"written by process {os.getpid()} on"),
    ):
        fw.resume(tmp_path / "run")
    (place,) = places
    assert place > (tmp_path / "run" / ".lock").stat().st_size


def test_a_system_with_none_of_it(tmp_path):
    """What only some systems have is not needed to import fedweave, nor to run."""
    program = """
        import asyncio, logging, multiprocessing.connection, os, signal, socket, subprocess, sys, torch

        for module, names in {
            os: ("fork", "register_at_fork", "sched_getaffinity", "pidfd_open", "O_DIRECTORY"),
            signal: ("pthread_sigmask", "pidfd_send_signal"),
            socket: ("send_fds", "recv_fds"),
        }.items():
            for name in names:
                if hasattr(module, name):
                    delattr(module, name)
        sys.modules |= dict.fromkeys(("fcntl", "resource", "pwd", "grp", "termios"))
        import fedweave as fw
        from fedweave.engine.pool.processes import Workers

        Workers.supported = False
        experiment = fw.Experiment("fedavg", data="digits", rounds=1, workers=2, tables="disk")
        raise SystemExit(fw.run(experiment).summary["rounds"] != 1)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=120, check=False)
    assert done.returncode == 0


def test_a_run_in_a_thread_goes_on_after_the_main_thread_has_ended(tmp_path):
    """Python then refuses work to its pools of threads; those of small clients and of tables are plain threads."""
    program = """
        import sys, threading
        import fedweave as fw
        from fedweave.local.torch import trainer
        from fedweave.tables import rows

        class Counted(threading.Thread):
            begun = 0
            def start(self):
                Counted.begun += 1
                super().start()

        def run():
            threading.main_thread().join()
            print(fw.run(experiment).summary["digest"], Counted.begun > 0, file=open(sys.argv[1], "w"))

        trainer.Thread, trainer.THREAD, rows.WORTHWHILE = Counted, 1, 0
        experiment = fw.Experiment("fedvarp", "digits", model="mlp", rounds=2, epochs=4, workers=2)
        threading.Thread(target=run).start()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "told")]
    done = subprocess.run(command, timeout=120, check=False, stderr=subprocess.PIPE, text=True)
    alone = digest(fw.Experiment("fedvarp", "digits", model="mlp", rounds=2, epochs=4, workers=1))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "told").read_text() == f"{alone} True\n"
