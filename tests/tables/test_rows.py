"""Tables of rows behave like arrays that are copied at every change, and forget what nobody refers to."""

import gc
import os
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave.tables import rows as module
from fedweave.tables.rows import STORED, Rows
from fedweave.tables.slots import SlotFile

N, D = 7, 11
KINDS = [(p, w) for p in STORED for w in ("ram", "disk")]
ULP = {"float64": 0.0, "float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # half a unit in the last place


def rounded(values, precision):
    """What rows become when they are stored, by other means than the table's."""
    if precision == "bfloat16":
        return torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).to(torch.float32).numpy()
    if precision == "float16":  # 11 significant bits, and none smaller than 2⁻³⁸ of the largest entry's power of two
        exact = values.astype(np.float32).astype(float)
        power = np.frexp(exact)[1]
        unit = np.ldexp(1.0, np.maximum(power - 11, np.frexp(np.abs(exact).max(axis=1, keepdims=True))[1] - 39))
        return np.where(np.isfinite(exact), np.round(exact / unit) * unit, exact).astype(np.float32)
    return values.astype(precision)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    """Several pieces and several threads even in tiny tables."""
    monkeypatch.setattr(module, "COLUMNS", 4)
    monkeypatch.setattr(module, "BLOCK", 3)
    monkeypatch.setattr(module, "WORTHWHILE", 30)


steps = st.lists(
    st.tuples(
        st.integers(0, 10**6),  # which of the living tables to start from
        st.sets(st.integers(0, N - 1)),
        st.sampled_from(["replaced", "mixed"]),
        st.booleans(),  # forget the table it came from
    ),
    max_size=12,
)


@pytest.mark.parametrize(("precision", "where"), KINDS)
@given(steps=steps, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_old_and_new_tables_are_like_arrays_that_were_copied(precision, where, steps, seed):
    rng = np.random.default_rng(seed)
    living = [(Rows.zeros(N, D, precision, where), np.zeros((N, D)), np.zeros(N, bool))]
    for pick, ids, how, forget in steps:
        at = pick % len(living)
        rows, table, written = living[at]
        ids, values = np.array(sorted(ids), int), rng.standard_normal((len(ids), D)) * 10.0 ** rng.integers(-9, 9)
        table, written = table.copy(), written.copy()
        if how == "replaced":
            rows = rows.replaced(ids, values)
            table[ids] = rounded(values, precision)
        else:
            a = rng.random(len(ids)).astype(rows.out)
            rows = rows.mixed(ids, a, values)
            mixture = a[:, None] * table[ids].astype(rows.out) + (1 - a)[:, None] * values.astype(rows.out)
            table[ids] = rounded(mixture, precision)
        written[ids] = True
        living = [t for i, t in enumerate(living) if not (forget and i == at)] + [(rows, table, written)]
    u, w = rng.standard_normal((3, D)), rng.standard_normal(N) * (rng.random(N) < 0.7)
    some = np.flatnonzero(rng.random(N) < 0.5)
    for rows, table, written in living:
        scale, close = np.abs(table).max(initial=0) + 1e-30, 1e-13 if precision == "float64" else 1e-5
        assert np.array_equal(rows[np.arange(N)], table.astype(rows.out))
        assert rows[some].dtype == rows.combine(w).dtype == (np.float64 if precision == "float64" else np.float32)
        assert np.array_equal(rows.written, written)
        assert np.allclose(rows.dot(u) / scale, u @ table.T / scale, atol=close)
        assert np.allclose(rows.gram(some) / scale**2, table[some] @ table.T / scale**2, atol=close)
        assert np.allclose(rows.combine(w) / scale, w @ table / scale, atol=close)


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_storing_rounds_to_the_nearest_at_every_scale(precision, scale):
    values = np.random.default_rng(0).uniform(0.5, 1, (3, 500)) * scale
    values[:, ::2] *= -1
    exact = values.astype(np.float64 if precision == "float64" else np.float32)
    found = Rows.zeros(3, 500, precision).replaced(np.arange(3), values)[np.arange(3)]
    assert (np.abs(found - exact) <= ULP[precision] * np.abs(exact)).all()


@pytest.mark.parametrize("precision", STORED)
def test_what_is_not_a_number_stays_so_and_zero_stays_zero(precision):
    values = np.array([[np.nan, 1.0], [np.inf, -np.inf], [0.0, -0.0]])
    strange = Rows.zeros(3, 2, precision).replaced(np.arange(3), values)[np.arange(3)]
    assert np.array_equal(strange, [[np.nan, 1], [np.inf, -np.inf], [0, 0]], equal_nan=True)


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_the_bits_do_not_depend_on_the_number_of_cores(where, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(module, "COLUMNS", 256)
    results = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, c=cores: set(range(c)))
        rng = np.random.default_rng(0)
        rows = Rows.zeros(9, 3000, where=where).replaced(np.arange(1, 9), rng.standard_normal((8, 3000)))
        rows = rows.mixed(np.array([0, 3]), 0.3, rng.standard_normal((2, 3000)))
        u, w = rng.standard_normal((4, 3000)), rng.random(9)
        results.append((rows[np.arange(9)], rows.dot(u), rows.gram(np.array([1, 2])), rows.combine(w)))
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_disk_and_memory_give_the_same_bits():
    rng = np.random.default_rng(0)
    values, u, w = rng.standard_normal((N, D)), rng.standard_normal((2, D)), rng.random(N)
    for precision in STORED:
        a, b = (Rows.zeros(N, D, precision, where).replaced(np.arange(N), values) for where in ("ram", "disk"))
        assert np.array_equal(a.dot(u), b.dot(u))
        assert np.array_equal(a.combine(w), b.combine(w))


def test_without_positioned_reads_and_writes_the_position_is_shared(monkeypatch):
    """As on Windows."""
    for name in ("preadv", "pwrite"):
        monkeypatch.delattr(os, name)
    values = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    rows = Rows.zeros(N, D, where="disk").replaced(np.arange(N), values)
    assert np.array_equal(rows[np.arange(N)], values)
    assert np.allclose(rows.dot(values), values @ values.T, atol=1e-4)


@pytest.mark.parametrize("precision", STORED)
def test_a_table_that_moves_keeps_its_bits(precision):
    values = np.random.default_rng(0).standard_normal((3, D)) * np.logspace(-12, 0, D)
    there = Rows.zeros(N, D, precision).replaced(np.array([0, 2, 5]), values)
    file = SlotFile(None, D, STORED[precision])
    disk = there.moved(file)
    assert disk.moved(file) is disk
    assert (disk.where, disk.moved(None).where) == ("disk", "ram")
    for table in (disk, disk.moved(None), disk.moved(None).moved(SlotFile(None, D, STORED[precision]))):
        assert np.array_equal(table[np.arange(N)], there[np.arange(N)])
        assert np.array_equal(table.written, there.written)


def test_changing_the_values_afterwards_changes_no_row():
    values = np.ones((1, D), np.float32)
    rows = Rows.zeros(N, D).replaced(np.array([2]), values)
    values[:] = 5
    rows[np.array([2])][:] = 7
    assert (rows[np.array([2])] == 1).all()


def test_rows_of_weight_zero_are_not_read_and_unwritten_ones_do_not_exist(monkeypatch):
    rows = Rows.zeros(N, D, where="disk").replaced(np.array([1, 4]), np.full((2, D), 2.0))
    seen = []
    real = SlotFile.read
    monkeypatch.setattr(SlotFile, "read", lambda self, slot, *rest: (seen.append(slot), real(self, slot, *rest)))
    assert (rows.combine(np.arange(N) == 4) == 2).all()
    assert len(set(seen)) == 1
    rows.dot(np.ones((1, D)))
    assert len(set(seen)) == 2


def test_slots_are_used_again_once_nobody_refers_to_them():
    """A hundred rounds of replacing, with the last three tables alive, take no more slots than they have rows."""
    rng, slots = np.random.default_rng(0), set()
    living = [Rows.zeros(N, D, where="disk")]
    for _ in range(100):
        ids = np.sort(rng.choice(N, 3, replace=False))
        living = [*living[-2:], living[-1].replaced(ids, rng.standard_normal((3, D)))]
        slots |= {place.slot for place in living[-1].rows if place}
    assert len(slots) <= N + 3 * 3


def test_an_interrupted_change_leaves_the_table_and_its_slots(monkeypatch):
    rows = Rows.zeros(N, D, where="disk").replaced(np.arange(4), np.ones((4, D)))
    real, calls = SlotFile.write, []

    def struck(self, *args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(self, *args)

    monkeypatch.setattr(SlotFile, "write", struck)
    with pytest.raises(KeyboardInterrupt):
        rows.replaced(np.arange(3), np.zeros((3, D)))
    monkeypatch.setattr(SlotFile, "write", real)
    gc.collect()  # the traceback held on to what had been begun
    assert (rows[np.arange(4)] == 1).all()
    again = rows.replaced(np.arange(3), np.zeros((3, D)))
    assert {place.slot for place in again.rows if place} <= set(range(7))


def test_a_table_on_disk_leaves_no_file_and_no_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = threading.active_count()
    rows = Rows.zeros(N, D, where="disk").replaced(np.arange(N), np.ones((N, D)))
    rows.dot(np.ones((5, D)))
    assert threading.active_count() == before
    del rows
    assert not list(tmp_path.iterdir())


def test_zeros_take_no_space():
    for where in ("ram", "disk"):
        rows = Rows.zeros(10**4, 10**12, where=where)  # 40 petabytes
        assert not rows.written.any()
        assert rows.shape == (10**4, 10**12)


@pytest.mark.parametrize(
    ("ids", "shape", "words"),
    [
        ([0, 1], (1, D), "are needed for 2 ids"),
        ([0, 0], (2, D), "distinct"),
        ([0, N], (2, D), "0 … 6"),
        ([-1], (1, D), "0 … 6"),
    ],
)
def test_rows_that_do_not_fit_are_refused(ids, shape, words):
    with pytest.raises(ValueError, match=words):
        Rows.zeros(N, D).replaced(np.array(ids), np.zeros(shape))
