"""Files that rot: every damaged byte of a state is noticed, and loaders answer rubbish with one sentence."""

import shutil
import sqlite3
import warnings
from contextlib import closing

import numpy as np
import pytest
from fleet import STRINGS, THOROUGH, assert_same, rubbish

import fedweave as fw
from fedweave.cli.clients_csv import read_clients
from fedweave.cli.options import experiments_of
from fedweave.runs.plain import from_plain
from fedweave.store.run_folder import RunFolder
from fedweave.store.states import unpack


@pytest.fixture
def half(zygote, tmp_path):
    """A run killed after its fourth round, with two states kept."""
    folder = tmp_path / "run"
    zygote("aware", folder, strike={"point": "recorded", "nth": 5, "how": "SIGKILL"})
    return folder


def newest(folder):
    return sorted(folder.glob("state-*.safetensors"))[-1]


def test_every_damaged_byte_of_a_state_is_noticed(half):
    """A thousand places, one bit each, and cuts at every so many bytes: the loader falls back and says so each time."""
    state, rng = newest(half), np.random.default_rng(0)
    content = state.read_bytes()
    broken = []
    for at in rng.integers(0, len(content), 1000):
        flipped = bytearray(content)
        flipped[at] ^= 1 << int(rng.integers(8))
        broken.append(flipped)
    broken += [content[:end] for end in range(0, len(content), 1 if THOROUGH else 97)]
    with closing(RunFolder.open(half, write=False)) as store:
        last = store.load_state(None).round
        for damaged in broken:
            state.write_bytes(damaged)
            with pytest.warns(UserWarning, match="missing or damaged; trying the one before"):
                assert store.load_state(None).round == last - 1
        state.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert store.load_state(None).round == last


def test_a_damaged_newest_state_falls_back_and_ends_the_same(half, zygote, whole):
    state = newest(half)
    state.write_bytes(state.read_bytes()[:-1])
    assert zygote("aware", half) == 0
    assert_same(half, whole["aware"])


def test_a_damaged_row_of_a_table_is_noticed(half, zygote, whole, tmp_path):
    (table,) = half.glob("rows-*.bin")
    content = bytearray(table.read_bytes())
    rng = np.random.default_rng(1)
    for at in rng.integers(0, len(content), 10):
        copy = tmp_path / "copy"
        shutil.copytree(half, copy)
        broken = bytearray(content)
        broken[at] ^= 16
        (copy / table.name).write_bytes(broken)
        assert zygote("aware", copy) in (0, 1)  # 1: the row was part of both kept states, and that is said
        if (tmp_path / "error.txt").exists():
            assert "all are missing or damaged" in (tmp_path / "error.txt").read_text()
            (tmp_path / "error.txt").unlink()
        else:
            assert_same(copy, whole["aware"])
        shutil.rmtree(copy)


def refusals(read, contents):
    """Return the share of contents that a reader refuses with a sentence; any other error ends the test."""
    refused = []
    for content in contents:
        try:
            read(content)
            refused.append(False)
        except fw.BadInput:
            refused.append(True)
    return np.mean(refused)


def test_rubbish_as_a_state(half):
    valid = newest(half).read_bytes()
    assert refusals(unpack, [valid]) == 0
    assert refusals(unpack, rubbish(0, valid)) > 0.5, "half of it is random, and nothing of that is a state"


def test_rubbish_as_an_experiment_file(tmp_path):
    path = tmp_path / "e.toml"

    def read(content):
        path.write_bytes(content)
        experiments_of([str(path)], {})

    valid = b'method = "fedacs"\ndata = "quadratics"\npartition = "iid"\nrounds = 3\nlr = 0.1\n'
    assert refusals(read, [valid]) == 0
    assert refusals(read, rubbish(1, valid)) > 0.5


def test_rubbish_as_a_fleet(tmp_path):
    path = tmp_path / "clients.csv"

    def read(content):
        path.write_bytes(content)
        read_clients(path)

    valid = b"client,latency_seconds,samples,gradient_bound\na,1.5,20,0.3\nb,0.5,10,0.1\n"
    assert refusals(read, [valid]) == 0
    assert refusals(read, rubbish(2, valid)) > 0.5


def test_rubbish_as_the_settings_of_a_run(half):
    valid = (half / "experiment.json").read_bytes()
    with closing(RunFolder.open(half, write=False)) as store:

        def read(content):
            (half / "experiment.json").write_bytes(content)
            from_plain(store.experiment)

        assert refusals(read, [valid]) == 0
        assert refusals(read, rubbish(3, valid)) > 0.5


def test_rubbish_as_the_rows_of_a_run(half):
    """SQLite notices what breaks its own structure; whatever it says becomes one sentence that names the file."""
    file = half / "run.sqlite"
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    refused = 0
    for n, content in enumerate(rubbish(4, file.read_bytes())):
        if n == STRINGS // 20:
            break
        file.write_bytes(content)
        for beside in half.glob("run.sqlite-*"):
            beside.unlink()
        try:
            fw.load_result(half)
        except fw.BadInput as e:
            refused += "run.sqlite" in str(e)
    assert refused > STRINGS / 80


def test_no_pickle_can_be_reached_from_a_loaded_file(half, zygote):
    """Reading a run loads with an unpickler that refuses to work."""
    assert zygote("aware", half, only_read=True) == 0
