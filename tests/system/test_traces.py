"""A trace is a world from a file: rows hold from their round on, and a broken file is told line by line."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fedweave.core.settings import BadInput
from fedweave.sample.fedcs import link_seconds
from fedweave.system import Devices, Trace
from worlds import equal_clients

EXAMPLE = Path(__file__).parents[2] / "examples" / "trace.csv"
VALID = "client, round, on, off, available, steps, loss_rate, seconds, compute_seconds, up_mbit, down_mbit"


@pytest.fixture
def trace(tmp_path):
    """Return a maker of traces from text."""

    def make(text, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Trace(path)

    return make


def base(n=3):
    return equal_clients(n, samples=50, steps=7, batch_size=20, loss_rate=0.25, latency=1.5)


def column(world, name, rounds):
    return [getattr(world.population(base(), r, 0), name).tolist() for r in rounds]


def test_a_row_holds_from_its_round_until_the_clients_next(trace):
    world = trace("client,round,steps\n0,2,5\n0,4,9\n1,3,1\n")
    assert column(world, "steps", range(1, 6)) == [[7, 7, 7], [5, 7, 7], [5, 1, 7], [9, 1, 7], [9, 1, 7]]


def test_the_order_of_the_lines_does_not_matter_but_within_a_round_the_last_wins(trace):
    world = trace("client,round,steps\n0,4,9\n0,2,5\n0,2,6\n")
    assert column(world, "steps", (1, 2, 4)) == [[7, 7, 7], [6, 7, 7], [9, 7, 7]]


def test_every_column_sets_its_quantity(trace):
    world = trace("client,available,steps,loss_rate,seconds\n1,0,3,0.5,2.5\n")
    found = world.population(base(), 1, 0)
    assert found.available.tolist() == [True, False, True]
    assert found.available.dtype == bool
    assert found.steps.tolist() == [7, 3, 7]
    assert found.steps.dtype.kind == "i"
    assert found.loss_rate.tolist() == [0.25, 0.5, 0.25]
    assert found.latency.tolist() == [1.5, 2.5, 1.5]
    assert found.samples.tolist() == [50, 50, 50]


def test_an_empty_cell_keeps_what_was(trace):
    world = trace("client,round,steps,seconds\n0,1,5,\n0,2,,4.5\n0,3, ,\n")
    assert column(world, "steps", (1, 2, 3)) == [[5, 7, 7]] * 3
    assert column(world, "latency", (1, 2, 3)) == [[1.5, 1.5, 1.5], [4.5, 1.5, 1.5], [4.5, 1.5, 1.5]]


def test_on_and_off_are_rounds_between_which_a_client_is_there(trace):
    world = trace("client,on,off\n0,2,4\n0,4,5\n0,7,\n1,1,3\n")
    there = column(world, "available", range(1, 9))
    assert [row[0] for row in there] == [r in (2, 3, 4, 7, 8) for r in range(1, 9)]
    assert [row[1] for row in there] == [r in (1, 2) for r in range(1, 9)]
    assert all(row[2] for row in there), "a client without rows is always there"


def test_a_trace_can_begin_again(trace):
    world = dataclasses.replace(trace("client,on,off,steps\n0,2,4,5\n"), repeat=4)
    assert [row[0] for row in column(world, "available", range(1, 10))] == [r in (2, 3, 6, 7) for r in range(1, 10)]
    assert [row[0] for row in column(world, "steps", range(1, 6))] == [7, 5, 5, 5, 7]


def test_computing_and_links_have_columns_of_their_own(trace):
    """A megabyte at 2 Mbit/s takes 4 s, at 8 Mbit/s 1 s; a client without a rate has a link that takes no time."""
    world = trace("client,round,compute_seconds,up_mbit,down_mbit\n0,1,3,2,8\n0,3,,4,\n1,2,0.5,,\n")
    clients = dataclasses.replace(base(), model_bytes=np.full(3, 1_000_000))
    found = [world.population(clients, r, 0) for r in (1, 2, 3)]
    assert np.allclose([p.latency for p in found], [[8, 1.5, 1.5], [8, 0.5, 1.5], [6, 0.5, 1.5]], rtol=1e-6)
    assert [p.up_rate[0] for p in found] == [2e6, 2e6, 4e6]
    assert [p.down_rate[0] for p in found] == [8e6] * 3


def test_a_trace_around_another_world_changes_what_it_has(trace):
    inner, clients = Devices(), dataclasses.replace(base(), model_bytes=np.full(3, 1000))
    plain = inner.population(clients, 1, 5)
    there = dataclasses.replace(trace("client,available\n1,0\n"), inner=inner).population(clients, 1, 5)
    assert there.available.tolist() == [True, False, True]
    assert np.array_equal(there.latency, plain.latency)
    assert np.array_equal(there.up_rate, plain.up_rate)
    whole = dataclasses.replace(trace("client,seconds\n1,9\n"), inner=inner).population(clients, 1, 5)
    assert whole.latency.tolist() == [plain.latency[0], 9, plain.latency[2]]
    assert whole.up_rate is None, "seconds of a whole participation, whatever it sends"
    busy = dataclasses.replace(trace("client,steps\n1,14\n"), inner=inner).population(clients, 1, 5)
    compute = plain.latency - sum(link_seconds(plain))
    assert np.allclose(busy.latency - plain.latency, [0, compute[1], 0]), "twice the steps, twice the computing"


def test_the_example_is_a_day_and_a_night_in_two_zones():
    world = Trace(EXAMPLE)
    there = np.array([world.population(equal_clients(8, model_bytes=1000), r, 0).available for r in range(1, 25)])
    assert there.sum(0).tolist() == [12] * 8
    assert np.array_equal(there[:, 0], ~there[:, 7])
    p = world.population(equal_clients(8, model_bytes=1000), 1, 0)
    assert (p.latency > 0).all()
    assert np.unique(p.up_rate).size > 1


def test_the_nominal_clients_are_not_changed(trace):
    clients = base()
    trace("client,steps\n0,1\n").population(clients, 1, 0)
    assert clients.steps.tolist() == [7, 7, 7]


def test_spreadsheet_files_are_read(trace):
    assert column(trace(b"\xef\xbb\xbfclient,steps\r\n2,4\r\n"), "steps", [1]) == [[7, 7, 4]]


def test_seconds_may_be_called_as_in_a_file_of_clients(trace):
    given = [column(trace(f"client,{name}\n2,4\n"), "latency", [1]) for name in ("latency_seconds", "seconds")]
    assert given[0] == given[1]
    assert given[0][0][2] == 4


def test_an_edited_file_is_read_again(trace):
    assert column(trace("client,steps\n0,1\n"), "steps", [1]) == [[1, 7, 7]]
    assert column(trace("client,steps\n0,2\n"), "steps", [1]) == [[2, 7, 7]]


@pytest.mark.parametrize("line", ["3,1", "0,5\n3,9", "0,9\n7,9\n3,1"])
def test_a_client_that_does_not_exist_is_refused_from_the_first_round(trace, line):
    world = trace(f"client,round\n{line}\n")
    with pytest.raises(BadInput, match=r"client [37] is in the trace, but there are only 3 clients"):
        world.population(base(), 1, 0)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["1: the column 'client' is missing."]),
        ("client,steps\n", [" there are no rows."]),
        ("steps\n3\n", ["1: the column 'client' is missing."]),
        (
            "client,stps\n0,3\n",
            [(f"1: there is no column 'stps'. Did you mean 'steps'? Valid: {VALID}.")],
        ),
        ("client,steps\n,3\n", ["2: the column 'client' is empty."]),
        ("client\n-1\n", ["2: the column 'client' must be a whole number >= 0. Got '-1' instead."]),
        ("client\nx\n", ["2: the column 'client' must be a whole number >= 0. Got 'x' instead."]),
        ("client,round\n0,0\n", ["2: the column 'round' must be a whole number >= 1. Got '0' instead."]),
        ("client,round\n0,1.5\n", ["2: the column 'round' must be a whole number >= 1. Got '1.5' instead."]),
        ("client,available\n0,2\n", ["2: the column 'available' must be 0 or 1. Got '2' instead."]),
        ("client,available\n0,yes\n", ["2: the column 'available' must be 0 or 1. Got 'yes' instead."]),
        ("client,steps\n0,0\n", ["2: the column 'steps' must be a whole number from 1 to 1000000. Got '0' instead."]),
        ("client,loss_rate\n0,1\n", ["2: the column 'loss_rate' must be a number in [0, 1). Got '1' instead."]),
        ("client,loss_rate\n0,nan\n", ["2: the column 'loss_rate' must be a number in [0, 1). Got 'nan' instead."]),
        ("client,seconds\n0,0\n", ["2: the column 'seconds' must be a number > 0, at most 1e+15. Got '0' instead."]),
        (
            "client,seconds\n0,inf\n",
            ["2: the column 'seconds' must be a number > 0, at most 1e+15. Got 'inf' instead."],
        ),
        ("client,on\n0,1\n", ["1: the column 'off' is missing, which goes with 'on'."]),
        (
            "client,on,off,available\n0,1,2,1\n",
            ["1: 'on' and 'off' and 'available' both say when the client is available: leave one of them out."],
        ),
        (
            "client,seconds,compute_seconds,up_mbit\n0,1,2,1\n",
            [
                (
                    "1: 'seconds' and 'compute_seconds' and 'up_mbit' both say how long a participation takes: "
                    "leave one of them out."
                ),
                "1: the column 'down_mbit' is missing, which goes with 'up_mbit'.",
            ],
        ),
        ("client,on,off\n0,,3\n", ["2: the column 'on' is empty."]),
        ("client,on,off\n0,5,5\n", ["2: the column 'off' must be after 'on'. Got 5 instead."]),
        ("client,on,off\n0,4,9\n1,1,2\n0,8,\n", ["4: client 0 is on already in round 8."]),
        ("client,on,off\n0,4,\n0,8,9\n", ["3: client 0 is on already in round 8."]),
        (
            "client,up_mbit,down_mbit\n0,0,1e10\n",
            [
                "2: the column 'up_mbit' must be a number from 1e-09 to 1e+09. Got '0' instead.",
                "2: the column 'down_mbit' must be a number from 1e-09 to 1e+09. Got '1e10' instead.",
            ],
        ),
        ("client,steps\n0,1,9\n", ["2: there is a cell beyond the last column. Got '9'."]),
        (
            "client,steps,seconds\n0,1,1\nx,-1,1\n1,1,\n,2,b\n",
            [
                "3: the column 'client' must be a whole number >= 0. Got 'x' instead.",
                "3: the column 'steps' must be a whole number from 1 to 1000000. Got '-1' instead.",
                "5: the column 'client' is empty.",
                "5: the column 'seconds' must be a number > 0, at most 1e+15. Got 'b' instead.",
            ],
        ),
        (
            "clientt,stps\n0,1\n",
            [
                (f"1: there is no column 'clientt'. Did you mean 'client'? Valid: {VALID}."),
                (f"1: there is no column 'stps'. Did you mean 'steps'? Valid: {VALID}."),
                "1: the column 'client' is missing.",
            ],
        ),
    ],
)
def test_all_errors_are_told_at_once_by_line_and_column(trace, tmp_path, text, problems):
    with pytest.raises(BadInput) as caught:
        trace(text)
    assert list(caught.value.problems) == [f"{tmp_path / 'trace.csv'}:{problem}" for problem in problems]


def test_a_file_that_is_missing_or_not_text_is_named(trace, tmp_path):
    with pytest.raises(BadInput, match=r"no trace file .*nowhere.csv.* columns client, round, on, off, available"):
        Trace(tmp_path / "nowhere.csv")
    with pytest.raises(BadInput, match=r"trace\.csv: the trace file cannot be read"):
        trace(b"client,steps\n\xff\xfe,1\n")
