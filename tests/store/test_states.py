"""Tables in run folders: saved by what changed, whole after any crash, never overwritten while a state needs them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedweave.core.settings import BadInput
from fedweave.store import run_folder
from fedweave.store.run_folder import RunFolder
from fedweave.store.states import pack, unpack
from fedweave.tables.rows import STORED
from fedweave.tables.slots import SlotFile
from store.toy_runs import D, N, first, following, new

EVERYONE = np.arange(N)


def after(rounds, precision="float32"):
    state = first(precision)
    for _ in range(rounds):
        state = following(state)
    return state


def content(state):
    return [t[EVERYONE].tobytes() for t in (state.aggregator["last"], state.clients["memory"])]


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("where", ["ram", "disk"])
@pytest.mark.parametrize("later", ["ram", "disk"])
def test_saved_tables_come_back_bit_for_bit_and_go_on(precision, where, later, tmp_path):
    store = new(tmp_path / "run")
    state = store.start(first(precision), where)
    for _ in range(5):
        state = following(state)
        store.save(state, always=True)
    store.close()
    again = RunFolder.open(tmp_path / "run")
    state = again.load_state(later)
    assert state.aggregator["last"].where == later
    assert content(state) == content(after(5, precision))
    for _ in range(5):
        state = following(state)
        again.save(state, always=True)
    again.close()
    assert content(RunFolder.open(tmp_path / "run").load_state()) == content(after(10, precision))


def test_the_same_state_is_the_same_bytes():
    """The library that writes them has the metadata in another order every time."""
    (packed,) = {pack(after(3)) for _ in range(20)}
    assert unpack(packed).x.tobytes() == after(3).x.tobytes()


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_a_save_writes_each_changed_row_once(where, tmp_path, monkeypatch):
    store = new(tmp_path / "run")
    state = store.start(first(), where)
    written = []
    real = SlotFile.write
    monkeypatch.setattr(SlotFile, "write", lambda self, *args: (written.append(self.path.name), real(self, *args)))
    for round in range(1, 8):
        state = following(state)
        store.save(state, always=True)
        assert len(written) == 4 * round, "two rows of two tables a round"
        store.save(state, always=True)
    sizes = [(tmp_path / "run" / name).stat().st_size for name in set(written)]
    assert len(sizes) == 2
    assert max(sizes) <= 4 * D * (N + 3 * 2), "room for the table and for what changed in the kept states"


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_both_kept_states_stay_whole_however_long_the_run_goes_on(where, tmp_path):
    """The newest state is damaged again and again: the one before must be there, after any number of saves."""
    store = new(tmp_path / "run")
    state = store.start(first(), where)
    for round in range(1, 9):
        for _ in range(3):  # rounds between the saves, whose rows nobody keeps
            state = following(state)
        store.save(state, always=True)
        if round % 3 == 0:
            store.close()
            newest = tmp_path / "run" / f"state-{state.round:06d}.safetensors"
            newest.write_bytes(b"")
            store = RunFolder.open(tmp_path / "run")
            with pytest.warns(UserWarning, match=f"round {state.round} "):
                state = store.load_state(where)
            store.rewind(state.round)
            assert content(state) == content(after(state.round))


@pytest.mark.parametrize("harm", ["flip", "cut"])
def test_a_damaged_row_is_noticed_and_the_state_before_is_used(harm, tmp_path):
    store = new(tmp_path / "run")
    one = following(store.start(first(), "disk"))
    store.save(one, always=True)
    two = following(one)
    store.save(two, always=True)
    file = tmp_path / "run" / "rows-aggregator.last.bin"
    slot = max({p.slot for p in two.aggregator["last"].rows if p} - {p.slot for p in one.aggregator["last"].rows if p})
    store.close()
    if harm == "flip":
        damaged = bytearray(file.read_bytes())
        damaged[4 * D * slot + 17] ^= 4
        file.write_bytes(damaged)
    else:
        os.truncate(file, 4 * D * slot + 17)
    again = RunFolder.open(tmp_path / "run")
    with pytest.warns(UserWarning, match="round 2"):
        state = again.load_state()
    assert content(state) == content(after(1))


def test_without_its_rows_no_state_can_be_read(tmp_path):
    store = new(tmp_path / "run")
    store.save(following(first()), always=True)
    store.close()
    (tmp_path / "run" / "rows-aggregator.last.bin").unlink()
    again = RunFolder.open(tmp_path / "run")
    with pytest.warns(UserWarning, match="round 1"), pytest.raises(BadInput, match="all are missing or damaged"):
        again.load_state()


def test_who_only_reads_results_does_not_touch_the_tables(tmp_path):
    store = new(tmp_path / "run")
    store.save(following(first()), always=True)
    for file in (tmp_path / "run").glob("rows-*"):
        file.unlink()
    state = RunFolder.open(tmp_path / "run", write=False).load_state(tables=None)
    assert (state.round, state.aggregator, state.clients) == (1, {}, {})
    assert not list((tmp_path / "run").glob("rows-*"))


@pytest.mark.parametrize("where", ["ram", "disk"])
@pytest.mark.parametrize("step", ["first row", "last row", "file", "commit"])
def test_a_save_that_breaks_off_anywhere_leaves_the_states_before(where, step, tmp_path, monkeypatch):
    store = new(tmp_path / "run")
    state = store.start(first(), where)
    for _ in range(4):
        state = following(state)
        store.save(state, always=True)
    writes, broken = [], {"first row": 1, "last row": 4}.get(step)
    real = SlotFile.write

    def write(self, slot, stored):
        writes.append(slot)
        real(self, slot, stored[:7] if len(writes) == broken else stored)
        if len(writes) == broken:
            raise KeyboardInterrupt

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SlotFile, "write", write)
        if step == "file":
            patch.setattr(run_folder, "write_file", stop)
        if step == "commit":
            patch.setattr(run_folder.hashlib, "sha256", stop)
        with pytest.raises(KeyboardInterrupt):
            store.save(following(state), always=True)
    store.close()
    again = RunFolder.open(tmp_path / "run")
    state = again.load_state(where)
    assert state.round == 4
    assert content(state) == content(after(4))
    state = following(state)
    again.save(state, always=True)
    assert content(state) == content(after(5))
    again.close()
    (tmp_path / "run" / "state-000005.safetensors").unlink()
    with pytest.warns(UserWarning, match="round 5"):
        assert content(RunFolder.open(tmp_path / "run").load_state(where)) == content(after(4))


PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from store.toy_runs import first, following, new

for line in sys.stdin:
    where, folder = line.rstrip("\\n").split(" ", 1)
    pid = os.fork()
    if not pid:
        store = new(Path(folder))
        state = store.start(first(), where)
        while True:
            state = following(state)
            store.save(state, always=True)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def writer():
    """A program that forks for every line, a place for tables and a folder: it saves until it is killed."""
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        yield program


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_a_kill_at_any_moment_leaves_a_whole_state(where, writer, tmp_path):
    """kill -9 while tables are being saved as fast as they can; what is left goes on to the same bits."""
    for turn in range(4):
        folder = tmp_path / f"run{turn}"
        writer.stdin.write(f"{where} {folder}\n")
        writer.stdin.flush()
        pid = int(writer.stdout.readline())
        deadline = time.monotonic() + 60
        while not list(folder.glob(f"state-*{turn + 3}.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.001 * turn)
        os.kill(pid, signal.SIGKILL)
        assert int(writer.stdout.readline()) == -signal.SIGKILL
        store = RunFolder.open(folder)
        state = store.load_state(where)
        assert state.round >= 2
        assert content(state) == content(after(state.round))
        state = following(state)
        store.save(state, always=True)
        assert content(state) == content(after(state.round))
        store.close()
