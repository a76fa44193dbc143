"""A trace is a world from a file: rows hold from their round on, and a broken file is told line by line."""

import pytest

from fedweave.core.settings import BadInput
from fedweave.system import Trace
from worlds import equal_clients


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


def test_the_nominal_clients_are_not_changed(trace):
    clients = base()
    trace("client,steps\n0,1\n").population(clients, 1, 0)
    assert clients.steps.tolist() == [7, 7, 7]


def test_spreadsheet_files_are_read(trace):
    assert column(trace(b"\xef\xbb\xbfclient,steps\r\n2,4\r\n"), "steps", [1]) == [[7, 7, 4]]


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
            [
                (
                    "1: there is no column 'stps'. Did you mean 'steps'? "
                    "Valid: client, round, available, steps, loss_rate, seconds."
                )
            ],
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
                (
                    "1: there is no column 'clientt'. Did you mean 'client'? "
                    "Valid: client, round, available, steps, loss_rate, seconds."
                ),
                (
                    "1: there is no column 'stps'. Did you mean 'steps'? "
                    "Valid: client, round, available, steps, loss_rate, seconds."
                ),
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
    with pytest.raises(BadInput, match=r"no trace file .*nowhere.csv.* columns client, round, available"):
        Trace(tmp_path / "nowhere.csv")
    with pytest.raises(BadInput, match=r"trace\.csv: the trace file cannot be read"):
        trace(b"client,steps\n\xff\xfe,1\n")
