"""The numbers in the table of faults of docs/reliability.md are those of the tests."""

from math import prod
from pathlib import Path

import pytest
import test_commands as commands
import test_disk as disk
import test_hostile as hostile
import test_kill as kill
import test_messages as messages
import test_signals as signals
import test_wrong_parts as parts
from fleet import POINTS, RUNS, STRINGS, THOROUGH

from fedweave.cli.options import OPTIONS

PAGE = (Path(__file__).parents[2] / "docs/reliability.md").read_text(encoding="utf-8")


def cases(test):
    """Return how many cases a test has."""
    return prod(len(list(mark.args[1])) for mark in test.pytestmark if mark.name == "parametrize")


KILLED = ("comparison", "extension", "report", "export", "reproduction")
NUMBERS = {
    "`kill -9` at every named point": f"{len(POINTS)} points × {cases(kill.test_a_kill_at_every_point)} kinds of run",
    "`kill -9` again": f"{cases(kill.test_killed_again_while_resuming)} points; ",
    "`kill -9` of `compare`": f"{sum(cases(getattr(commands, f'test_a_killed_{what}')) for what in KILLED)} kills",
    "a run folder from somebody else": f"{hostile.FOLDERS} folders × {len(hostile.COMMANDS)} commands",
    "parts of your own": f"{parts.WRONG:,}",
    "Ctrl-C and SIGTERM": f"{cases(signals.test_a_signal_at_every_point)} points, ",
    "a disk that is full": f"{cases(disk.test_a_disk_that_does_not_want_at_every_write)}, "
    f"{cases(disk.test_a_disk_that_is_full_while_the_folder_is_made)} while the folder is made, "
    f"and {cases(disk.test_no_file_handles_left)}",
    "random content as state": f"{STRINGS:,} for each; ",
    "random content over the wire": f"{STRINGS:,} of each of {cases(messages.test_rubbish_as_the_bytes_of_a_message)} ",
    "a header that claims": f"{cases(messages.test_what_is_too_large_is_refused_before_anything_is_allocated)} |",
    "every option wrong at once": f"{len(OPTIONS)} options",
}


@pytest.mark.skipif(THOROUGH, reason="the table has the numbers of `make test`")
@pytest.mark.parametrize("fault", NUMBERS)
def test_the_table_of_faults_has_the_numbers_of_the_tests(fault):
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {fault}")]
    assert NUMBERS[fault] in f"{row.split(' | ')[-1]} |"


def test_the_page_says_on_how_many_kinds_of_run_make_faults_tries_all_points():
    words = ["seven", "eight", "nine", "ten", "eleven", "twelve"]
    assert f"tries all points on {words[len(RUNS) - 7]} kinds of run" in PAGE
