"""Updates that lie in a file are the updates that were put, in any order: the same bits, few pages, nothing left."""

import errno
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections import Counter

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave.core import crash_points, vectors
from fedweave.round.admission import admit
from fedweave.tables import spool
from fedweave.tables.files import NotStored
from fedweave.tables.spool import Memory, Spool

K, D = 7, 1031
FLOAT = np.dtype(np.float32)


@pytest.fixture
def in_files(monkeypatch):
    """Every matrix lies in a file, however small."""
    monkeypatch.setattr(spool, "LARGE", 0)


@pytest.fixture
def in_blocks(monkeypatch):
    """Every matrix is read in blocks: of two rows, and of columns that do not come out even."""
    monkeypatch.setattr(vectors, "LARGE", 0)
    monkeypatch.setattr(vectors, "BLOCK", 2 * D)
    monkeypatch.setattr(vectors, "COLUMNS", 100)


def values(k=K, d=D, dtype=np.float32):
    return np.random.default_rng(3).standard_normal((k, d)).astype(dtype)


def filled(rows):
    """Return these values by way of a spool."""
    made = Spool(rows.shape, rows.dtype)
    made.put(slice(None), rows)
    return made.matrix()


def lies_in_a_file(matrix):
    return vectors._mapping(matrix) is not None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("large", [0, 10**6])
def test_what_was_put_is_there_in_any_order_and_the_rest_is_zero(dtype, large, monkeypatch):
    monkeypatch.setattr(spool, "LARGE", large)
    U, rng = values(dtype=dtype), np.random.default_rng(0)
    for _ in range(5):
        made, expected = Spool((K, D), np.dtype(dtype)), np.zeros((K, D), dtype)
        for row in rng.permutation(K)[:4].tolist():
            made.put(row, U[row])
            expected[row] = U[row]
        assert np.array_equal(made.matrix(), expected)
    made = Spool((K, D), np.dtype(dtype))
    made.put(np.array([5, 0, 3]), U[[5, 0, 3]])
    made.put(slice(1, 3), U[1:3])
    made.put(np.array([6, 4]), np.asfortranarray(U[[6, 4]]).astype(np.float64))  # a piece of another layout and type
    found = made.matrix()
    assert found.dtype == dtype
    assert np.array_equal(found, U)
    assert lies_in_a_file(found) == (not large)


@pytest.mark.parametrize("large", [0, 10**6])
def test_a_row_written_in_place_counts_once_it_is_ended(large, monkeypatch):
    monkeypatch.setattr(spool, "LARGE", large)
    U, made = values(), Spool((K, D), FLOAT)
    for row in (2, 5, 4):
        made.begin(row)[:] = U[row]
        if row != 5:  # this one is given up
            made.end(row)
    expected = np.zeros_like(U)
    expected[[2, 4]] = U[[2, 4]]
    assert np.array_equal(made.matrix(), expected)


def test_memory_is_used_again_once_nobody_holds_the_matrix_before():
    memory, U = Memory(), values()

    def fill(*rows):
        made = Spool((K, D), FLOAT, memory)
        for row in rows:
            made.put(row, U[row])
        return made.matrix()

    first = fill(*range(K))
    address, part = first.ctypes.data, first[1:3].T
    del first
    second = fill(0)
    assert second.ctypes.data != address, "a view of the first matrix is held"
    assert np.array_equal(part, U[1:3].T)
    del part
    third = fill(3, 5)
    assert third.ctypes.data == address
    expected = np.zeros_like(U)
    expected[[3, 5]] = U[[3, 5]]
    assert np.array_equal(third, expected), "nothing is left of the first matrix"
    assert np.array_equal(second[0], U[0])
    assert not second[1:].any()


def test_memory_of_another_size_is_given_back():
    memory = Memory()
    Spool((K, D), FLOAT, memory).matrix()
    small = Spool((1, D), FLOAT, memory).matrix()
    assert not small.any()
    assert small.shape == (1, D)
    assert not memory._free


def test_nothing_was_put(in_files):
    assert not Spool((K, D), FLOAT).matrix().any()
    assert Spool((0, D), FLOAT).matrix().shape == (0, D)
    assert Spool((K, 0), FLOAT).matrix().shape == (K, 0)


def test_small_rounds_stay_in_memory():
    assert not lies_in_a_file(filled(values()))


@pytest.mark.usefixtures("in_files")
def test_a_matrix_in_a_file_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        filled(values())[0] = 1


QUESTIONS = {
    "squared_lengths": vectors.squared_lengths,
    "lengths": vectors.lengths,
    "of the parameters": lambda U: vectors.squared_lengths(U[:, :900]),
    "weighted_sum": lambda U: vectors.weighted_sum(np.linspace(-1, 2, K).astype(U.dtype), U),
    "weighted_sum of the parameters": lambda U: vectors.weighted_sum(np.linspace(-1, 2, K).astype(U.dtype), U[:, :900]),
    "all_finite": lambda U: np.array(vectors.all_finite(U)),
    "keep_only_rows": lambda U: vectors.keep_only_rows(U, np.arange(K) % 3 > 0),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_file_has_the_bits_of_memory(question, dtype, in_files, request):
    """Read whole, and read in blocks; the sums of rows have the same bits in blocks as whole."""
    U, ask = values(dtype=dtype), QUESTIONS[question]
    whole = ask(U)
    assert ask(filled(U)).tobytes() == whole.tobytes()
    request.getfixturevalue("in_blocks")
    blocks = ask(U)
    assert ask(filled(U)).tobytes() == blocks.tobytes()
    if "weighted" in question:  # libraries may add the last columns of a block in another way
        np.testing.assert_allclose(blocks, whole, rtol=1e-5 if dtype == np.float32 else 1e-13, atol=1e-6)
    else:
        assert blocks.tobytes() == whole.tobytes()


@pytest.mark.usefixtures("in_blocks")
def test_blocks_compute_what_the_formulas_say():
    U, w = values(), np.linspace(-1, 2, K).astype(np.float32)
    exact = U.astype(np.longdouble)
    np.testing.assert_allclose(vectors.squared_lengths(U), (exact**2).sum(1).astype(float), rtol=1e-5)
    np.testing.assert_allclose(vectors.lengths(U), np.sqrt((exact**2).sum(1)).astype(float), rtol=1e-6)
    total = sum(float(w[i]) * exact[i] for i in range(K))
    np.testing.assert_allclose(vectors.weighted_sum(w, U), total.astype(float), atol=1e-5)
    for row, column in [(0, 0), (K - 1, D - 1), (3, 500)]:
        for bad in (np.nan, np.inf):
            broken = U.copy()
            broken[row, column] = bad
            assert not vectors.all_finite(broken)
    assert vectors.all_finite(U)
    assert vectors.all_finite(np.full((K, D), 3e38, np.float32)), "finite, although their sum is not"


@pytest.mark.usefixtures("in_files")
def test_dropping_rows_leaves_the_matrix_as_it_was():
    U, kept = values(), np.array([True, False, True, True, False, False, True])
    before = filled(U)
    after = vectors.keep_only_rows(before, kept)
    assert lies_in_a_file(after)
    assert np.array_equal(after, U * kept[:, None])
    assert np.array_equal(before, U)


@pytest.mark.usefixtures("in_files", "in_blocks")
@pytest.mark.parametrize("ratio", [None, 10.0])
def test_admission_refuses_the_same_answers_for_the_same_reasons(ratio):
    U, layout, cohort = values(), worlds.layout(D, 1000), worlds.cohort(range(K))
    U[2, 1003], U[4, [5, 6]], U[5] = np.nan, np.inf, 50 * U[5]
    received = [True, True, True, False, True, True, True]
    memory = worlds.replies(U, received)
    file = memory._replace(updates=filled(memory.updates))
    (a, why), (b, same) = (admit(replies, cohort, layout, ratio) for replies in (memory, file))
    assert why == same
    assert [failure.client for failure in why] == ([2, 4] if ratio is None else [2, 4, 5])
    assert np.array_equal(a.received, b.received)
    assert a.updates.tobytes() == b.updates.tobytes()
    assert lies_in_a_file(b.updates)


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read as Linux tells it")
@pytest.mark.usefixtures("in_files")
@pytest.mark.parametrize("question", QUESTIONS)
def test_what_was_read_is_given_back(question, in_blocks):
    matrix = filled(values())
    _ = matrix.sum()
    assert resident(matrix) > 0
    QUESTIONS[question](matrix)
    assert resident(matrix) == 0


def resident(matrix):
    """Return how much of a mapped matrix is in the memory of this process, in kB."""
    begin, found = matrix.__array_interface__["data"][0], None
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                low, high = (int(n, 16) for n in line.split()[0].split("-"))
                found = low <= begin < high
            elif found and line.startswith("Rss:"):
                return int(line.split()[1])
    raise AssertionError("not mapped")


NAMES = [  # with every sampler that learns from updates, and every aggregator
    "fedavg", "fedacs", "fedacs_measured", "fedacs_private", "fedau", "fedavg_is", "fednova", "fedos", "cluster_is",
    "fedis", "fedpracis", "fedpracdelta", "fedvarp", "fedvarp_reuse", "scaffold", "feddyn", "fedaware", "fedmgda",
    "fedavg_trimmed", "feddd",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_run_from_files_is_the_run_from_memory(name, tiny, request, tmp_path):
    """With lost and refused answers, every row and the audit log included."""
    system = fw.system.Wireless() if name == "feddd" else fw.system.Dynamic()
    same = tiny(getattr(fw.methods, name)(4), rounds=3, system=system, audit=True, max_length_ratio=1.2)
    whole = fw.run(same)
    request.getfixturevalue("in_files")
    assert_same(fw.run(same), whole)
    request.getfixturevalue("in_blocks")
    blocks = fw.run(same, out=tmp_path / "file")
    spool.LARGE = 10**9  # put back by the fixture
    assert_same(fw.run(same, out=tmp_path / "memory"), blocks)
    logs = {(tmp_path / where / "audit.jsonl").read_text() for where in ("file", "memory")}
    assert len(logs) == 1


def assert_same(a, b):
    assert a.summary["digest"] == b.summary["digest"]
    for columns, others in ((a.rounds, b.rounds), (a.clients, b.clients)):
        for name in columns.keys() - {"wall_seconds"}:
            assert np.array_equal(columns[name], others[name], equal_nan=True), name


@pytest.mark.usefixtures("in_files")
def test_rounds_hand_out_arrays_whose_files_go_with_them(tiny):
    held = [happened.replies.updates for _, happened in fw.rounds(tiny(rounds=2))]
    assert all(lies_in_a_file(updates) and updates.any() for updates in held)
    assert not np.array_equal(*held)


@pytest.mark.usefixtures("in_files")
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(tiny, tmp_path, monkeypatch):
    whole, passed = fw.run(tiny(rounds=4)), Counter()

    def strike(point):
        passed[point] += 1
        if point == "row being written" and passed[point] > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(crash_points, "strike", strike)
    said = (
        r"^A temporary file in '.+' cannot be written: No space left on device "
        r"\([\d,]+ bytes needed, [\d,]+ bytes free\)\. TMPDIR can name another folder\.$"
    )
    with pytest.raises(NotStored, match=said):
        fw.run(tiny(rounds=4), out=tmp_path / "run")
    assert fw.load_result(tmp_path / "run").summary["rounds"] >= 1
    monkeypatch.setattr(crash_points, "strike", None)
    assert fw.resume(tmp_path / "run").summary["digest"] == whole.summary["digest"]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are a POSIX thing")
@pytest.mark.usefixtures("in_files")
def test_a_real_limit_is_a_sentence_too():
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    made = Spool((K, D), FLOAT)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(NotStored, match=r"A temporary file in .* cannot be written: File too large"):
            made.put(6, values()[6])
        with pytest.raises(NotStored, match=r"A temporary file in .* cannot be written: File too large"):
            made.matrix()  # rather than a signal when its pages are touched
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


SCRIPT = """
import os, signal, sys
import fedweave as fw
from fedweave.core import crash_points
from fedweave.local.torch import trainer
from fedweave.tables import spool

def strike(point):
    if point == sys.argv[1]:
        with open("/proc/self/maps") as lines:
            print("mapped" if os.environ["TMPDIR"] in lines.read() else "in memory", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

spool.LARGE, crash_points.strike, trainer.WORTHWHILE = 0, strike, 1
fw.run(fw.Experiment(fw.methods.fedavg(4), "digits", fw.partition.IID(clients=6), workers=1))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="open files are read as Linux tells them")
@pytest.mark.parametrize("point", ["row being written", "combined"])
def test_a_kill_leaves_no_file(point, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), point]
    done = subprocess.run(
        command, env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout == ("mapped\n" if point == "combined" else "in memory\n")
    assert not list(folder.iterdir())
