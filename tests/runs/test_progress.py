"""Progress: shown on a terminal and in a notebook, plain lines where they are asked for, and silence elsewhere."""

import io
import re
import sys
from threading import Barrier, Thread
from types import SimpleNamespace

import pytest

import fedweave as fw
from fedweave.runs import progress
from fedweave.runs.callbacks import Running
from interrupt import StopAfter


class Terminal(io.StringIO):
    """A terminal that is the error stream for a while; what is written to it stays."""

    def isatty(self):
        return True

    def __enter__(self):
        self._before, sys.stderr = sys.stderr, self
        return self

    def __exit__(self, *_):
        assert sys.stderr is self, "what a bar takes it gives back"
        sys.stderr = self._before

    @property
    def lines(self):
        """The printed lines, with what bars leave, in order; lines that are drawn again begin with an escape."""
        return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in self.getvalue().splitlines()]


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, as far as the environment says."""
    for name, value in {"TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


@pytest.fixture
def quadratic():
    return fw.Experiment("fedavg", data="quadratics", model="quadratic", rounds=4, workers=1)


def runs(n):
    return [
        Running(
            SimpleNamespace(
                method=SimpleNamespace(name="m"), seed=i, rounds=50, task=None, validation=None, stop_after=None
            ),
            *({"device": "cpu"}, None, 0),
        )
        for i in range(n)
    ]


def row(round):
    return {"round": round, "clock": 1.0, "refused": 0}


def test_a_program_whose_output_is_read_by_another_stays_silent(quadratic, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # that is no terminal
    fw.run(quadratic)
    fw.compare(["fedavg", "fedprox"], quadratic)
    assert capfd.readouterr() == ("", "")


def test_the_score_says_that_samples_were_held_out(tiny, capfd):
    fw.run(tiny(rounds=1, validation=0.2), progress=True)
    assert "round 1/1  validation accuracy 0." in capfd.readouterr().err


def test_lines_are_printed_where_they_are_asked_for(quadratic, capfd):
    fw.run(quadratic, progress=True)
    device, line = capfd.readouterr().err.splitlines()
    assert device == "device: " + fw.run(quadratic).manifest["device"]
    assert re.fullmatch(r"fedavg  round 4/4  .*clock [\d.]+ s", line)


def test_a_terminal_shows_a_bar_that_ends_full(quadratic, terminal):
    with terminal:
        fw.run(quadratic)
    assert re.match(r"fedavg +━{30} 4/4 rounds .*clock", terminal.lines[-2])
    assert terminal.getvalue().endswith("\x1b[?25h"), "the cursor is back"


def test_bars_go_by_the_simulated_time_where_that_ends_a_run(terminal):
    (run,) = runs(1)
    run.experiment.stop_after = 20.0
    show = progress.Bars(2, progress.Console(file=terminal))
    show.begin(run)
    for i, part in ((1, 0.25), (2, 0.5), (3, 1.0)):
        show.round(run, row(i) | {"clock": 20 * part + (i == 3)}, None)
        total, mine = show._bars.tasks
        assert (mine.completed, total.completed) == (part, part), "of 50 rounds, and a time of which the last has more"
    assert mine.fields["status"].endswith("3 rounds    clock 21/20 s")
    show.close()


def test_nothing_is_shown_where_nothing_is_wanted(quadratic, terminal):
    with terminal:
        fw.run(quadratic, progress=False)
    assert terminal.getvalue() == ""


def test_what_has_ended_is_one_line_above_the_bars(quadratic, terminal, capsys):
    with terminal:
        fw.compare(["fedavg", "fedprox"], quadratic, seeds=2, callbacks=lambda row: print(row["round"]))  # noqa: T201
    done = [line for line in terminal.lines if re.search(r"^\[./4\] .*\d/4 rounds .*clock", line) and "━" not in line]
    assert [line.split("  ")[0] for line in done] == [
        f"[{i}/4] {name}-seed{seed}"
        for i, (seed, name) in enumerate([(0, "fedavg"), (0, "fedprox"), (1, "fedavg"), (1, "fedprox")], 1)
    ]
    assert re.match(r"all runs +━{30} 4/4 runs", terminal.lines[-2])
    assert capsys.readouterr().out.split() == list("1234" * 4), "what is printed goes where it always went"


def test_a_comparison_that_is_continued_counts_what_is_left(quadratic, terminal, tmp_path):
    with pytest.raises(fw.Interrupted):
        fw.compare(["fedavg", "fedprox"], quadratic, 2, tmp_path / "c", StopAfter(2, run=3), progress=False)
    with terminal:
        fw.resume_comparison(tmp_path / "c")
    assert re.match(r"all runs +━{30} 2/2 runs", terminal.lines[-2])


def test_an_interrupted_bar_ends_where_it_was(quadratic, terminal):
    with terminal, pytest.raises(fw.Interrupted):
        fw.run(quadratic, callbacks=StopAfter(3))
    assert "3/4 rounds" in terminal.lines[-2]
    with terminal:
        fw.run(quadratic)
    assert "4/4 rounds" in terminal.lines[-2], "the next one is shown too"


def test_a_run_inside_a_callback_is_silent(quadratic, terminal):
    with terminal:
        fw.run(quadratic, callbacks=lambda row: fw.run(quadratic) if row["round"] == 2 else None)
    assert terminal.getvalue().count("device: ") == 1


@pytest.mark.parametrize("kind", [progress.Bars, progress.Lines])
def test_threads_share_a_display(kind, terminal):
    console = progress.Console(file=terminal)
    show, several = kind(8, console), runs(8)
    together = Barrier(8)

    def work(run):
        together.wait()
        show.begin(run)
        for i in range(1, 51):
            show.round(run, row(i), None)
        show.end(run, None, None)

    threads = [Thread(target=work, args=(run,)) for run in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    show.close()
    last = [re.match(r"\[(./8)\] m-seed(.) .*50/50", line) for line in terminal.lines if "━" not in line]
    assert sorted(m[1] for m in last if m) == [f"{i}/8" for i in range(1, 9)], "each number once"
    assert sorted(m[2] for m in last if m) == list("01234567"), "each run once"


def test_lines_come_now_and_then_and_at_the_end(monkeypatch, terminal):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    show, (run,) = progress.Lines(1, progress.Console(file=terminal)), runs(1)
    show.begin(run)
    for i in range(1, 13):
        now[0] += 1
        show.round(run, row(i) | {"refused": int(i == 3)}, None)
    show.end(run, None, KeyboardInterrupt())
    said = [re.search(r"round (\d+)", line) for line in terminal.lines[1:]]
    assert [int(m[1]) for m in said if m] == [3, 6, 12], "a refusal, after more than five seconds, and the last"


def test_what_is_no_answer_is_refused(quadratic):
    with pytest.raises(fw.BadInput, match=r"'progress' must be True, False or None\. Got 'yes'\."):
        fw.run(quadratic, progress="yes")
