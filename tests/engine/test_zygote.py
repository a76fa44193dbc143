"""Workers are forked by a process that has loaded torch: like new programs, and never left behind."""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedweave.engine.pool import zygote, zygote_main
from fedweave.engine.pool.processes import Workers
from fedweave.engine.pool.protocol import WorkerDied
from worlds import client_data

X = np.zeros(1, np.float32)


class Tells:
    """What a worker holds here instead of a trainer."""

    def __init__(self, data):
        self.data = data

    def surroundings(self, x):
        drawn = random.random(), np.random.random()  # noqa: NPY002 - the generators that nobody seeded
        return os.getcwd(), dict(os.environ), list(sys.path), drawn

    def handles(self, x):
        return sorted(os.readlink(f"/proc/self/fd/{n}") for n in range(3, 20) if Path(f"/proc/self/fd/{n}").exists())

    def leave(self, x, how):
        if how > 0:
            os._exit(how)
        os.kill(os.getpid(), -how)

    def number(self, x):
        return os.getpid()


def call(held, x, name, *arguments):
    return getattr(held, name)(x, *arguments)


def ask(workers, name, *arguments, count=2):
    workers.load(Tells, nothing(), count) if workers.holds is None else None
    return dict(workers.map(X, [(call, (name, *arguments))] * count))


def nothing():
    none = np.zeros(1, np.float32)
    return client_data(none, none, [1], mean=(0.0,), std=(1.0,))


@pytest.fixture
def pair():
    with Workers(2) as workers:
        yield workers


def test_workers_take_over_folder_paths_and_environment_and_draw_luck_of_their_own(pair, tmp_path, monkeypatch):
    zygote.prepare()  # it was there before
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDWEAVE_NEW", "ö\udcff")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.syspath_prepend("")
    found = ask(pair, "surroundings")
    assert len({luck for *_, luck in found.values()}) == len(found)
    for folder, environment, path, _ in found.values():
        assert folder == str(tmp_path)
        assert environment.pop("PYTHONPATH").split(os.pathsep) == path == [p or str(tmp_path) for p in sys.path]
        assert {environment.pop(name) for name in zygote.ONE_THREAD} == {"1"}
        assert environment == {k: v for k, v in os.environ.items() if k not in {*zygote.ONE_THREAD, "PYTHONPATH"}}


@pytest.mark.skipif(not zygote.FORKS, reason="each worker is a new program here")
def test_workers_hold_nothing_of_each_other(pair):
    """A pipe that another worker held open would not end with the main process."""
    ask(pair, "number")
    for handles in ask(pair, "handles").values():
        assert len([name for name in handles if name.startswith(("socket:", "pipe:"))]) == 1


@pytest.mark.parametrize(("how", "forks"), [(3, True), (-signal.SIGKILL, True), (-signal.SIGTERM, True), (3, False)])
def test_the_exit_code_of_a_worker_is_reported(how, forks, pair, monkeypatch):
    monkeypatch.setattr(zygote, "FORKS", forks and zygote.FORKS)
    with pytest.raises(WorkerDied, match=f"exit code {how}"):
        ask(pair, "leave", how, count=1)


@pytest.mark.skipif(not zygote.FORKS, reason="there is no zygote here")
def test_a_zygote_has_one_thread_or_its_children_might_wait_for_others(pair):
    ask(pair, "number")
    assert psutil.Process(zygote._zygote.process.pid).num_threads() == 1


@pytest.mark.skipif(not zygote.FORKS, reason="there is no zygote here")
def test_workers_outlive_their_zygote_and_the_next_come_from_another_that_ends_once_idle(pair, monkeypatch):
    monkeypatch.setattr(zygote, "IDLE_SECONDS", 0.05)  # of the next one
    before = set(ask(pair, "number").values())
    first = zygote._zygote.process
    first.kill()
    first.wait()
    assert set(ask(pair, "number").values()) <= before
    old = [psutil.Process(n) for n in before]
    pair._stop(patience=0)
    assert not psutil.wait_procs(old, timeout=30)[1]
    assert not set(ask(pair, "number").values()) & before
    second = zygote._zygote.process
    assert second.pid != first.pid
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(timeout=0.5)  # it has workers
    pair._stop(patience=5)
    assert second.wait(timeout=30) == 0


@pytest.mark.skipif(not zygote.FORKS, reason="there is no zygote here")
def test_a_zygote_that_ends_at_once_is_an_error_that_says_so(pair, monkeypatch):
    zygote.close()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="ended with code 1"):
        ask(pair, "number")


@pytest.mark.skipif(not zygote.FORKS, reason="there is no zygote here")
def test_an_environment_larger_than_a_pipe_arrives_whole(pair, monkeypatch):
    for i in range(8):
        monkeypatch.setenv(f"FEDWEAVE_LARGE_{i}", str(i) * 100_000)
    for _, environment, _, _ in ask(pair, "surroundings").values():
        assert all(environment[f"FEDWEAVE_LARGE_{i}"] == str(i) * 100_000 for i in range(8))


class Looks(Tells):
    """Sees which temporary files there are while it gets its data."""

    def __init__(self, data):
        super().__init__(data)
        self.files = os.listdir(os.environ["TMPDIR"])  # a forked worker may remember another temporary folder

    def received(self, x):
        return self.files, self.data


def test_workers_get_the_data_without_a_file_that_has_a_name(pair, tmp_path, monkeypatch):
    """One copy of the arrays for all of them, of any type and size, which nobody can leave behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    x, y = np.arange(21, dtype=np.uint8).reshape(7, 3)[::-1], np.linspace(0, 1, 7)
    data = client_data(x, y, [3, 4])._replace(test_x=x[:0], test_y=y[:0])
    pair.load(Looks, data, 2)
    for files, found in dict(pair.map(X, [(call, ("received",))] * 2)).values():
        assert files == []
        for name in ("x", "y", "test_x", "test_y"):
            ours, theirs = getattr(data, name), getattr(found, name)
            assert (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape)
            assert np.array_equal(ours, theirs)


HELD = """
import os

class Tells:
    def __init__(self, data): pass

class Kills:
    def __init__(self, data): os.kill(int(os.environ["MAIN"]), 9)

def number(held, x): return os.getpid()
"""
SCRIPT = """
import os, resource, signal, sys, tempfile
import numpy as np
from fedweave.engine.pool.processes import Workers
from fedweave.engine.pool import zygote

from held import Kills, Tells, number

from fedweave.local.client_data import ClientData
none = np.zeros(1, np.float32)
data = ClientData(
    x=none, y=none, test_x=none, test_y=none, mean=(0.0,), std=(1.0,), parts=[np.arange(1)]
)

def pool():
    workers = Workers(2)
    workers.load(Tells, data, 2)
    return workers, [number for _, number in workers.map(none, [(number, ())] * 2)]

awkward = sys.argv[1] == "forgotten"
if awkward:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]  # more than select can count
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
workers, numbers = pool()
if awkward:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
    ended, _ = pool()
    os.chdir("/")
    processes = list(ended._processes)
    ended._stop(60)
    assert [p.returncode for p in processes] == [0, 0]
if awkward and not os.fork():
    forked, own = pool()  # from a zygote of its own: the other one's pipes are not for it
    assert not set(own) & set(numbers) and zygote._zygote.owner == os.getpid()
    forked._stop(60)
    workers.__exit__(None)  # as if the fork left the block in which the main process has its pool
    zygote.close()
    os._exit(0)
assert not awkward or os.wait()[1] == 0
assert sorted({n for _, n in workers.map(none, [(number, ())] * 2)}) == sorted(set(numbers))
print(zygote._zygote.process.pid if zygote._zygote else 0, *numbers, flush=True)
if not awkward:
    os.environ["MAIN"] = str(os.getpid())
    Workers(2).load(Kills, data, 2)
"""


@pytest.mark.parametrize("how", ["killed", "forgotten"])
def test_nothing_outlives_the_main_process(how, tmp_path):
    """No process and no file, not even when it was killed while its workers were given the data, or forgot to close its
    pool; and a fork of it gets workers of its own.

    The second also has many files open, SIGCHLD blocked, and a folder that is no longer there.
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "temporary").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, str(script), how]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    with program:
        numbers = [int(n) for n in program.stdout.readline().split() if n != "0"]
        assert len(set(numbers)) >= 2
        left = [psutil.Process(n) for n in numbers if psutil.pid_exists(n)]
        assert program.wait(timeout=60) == (-signal.SIGKILL if how == "killed" else 0)
    assert not psutil.wait_procs(left, timeout=30)[1]
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("message", [b"", b"\x00\x00", None], ids=["its end", "half a request", "idle"])
def test_the_zygote_leaves_no_wakeup_descriptor_behind(message):
    """A worker's end that comes after the sockets are closed would be written to a closed descriptor."""
    requests, ours = socket.socketpair()
    if message is not None:
        ours.send(message)
        ours.close()
    assert zygote_main._fork_workers(requests, idle_seconds=0.01 if message is None else 60) is None
    assert signal.set_wakeup_fd(-1) == -1
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    assert requests.fileno() == -1
    ours.close()
