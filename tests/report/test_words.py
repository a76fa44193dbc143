"""Number formats, the headline and the terminal table."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fedweave.report import client_table, compare_rows, cost_table, page, terminal_table, units
from fedweave.report.headline import headline
from fedweave.report.terminal import caption, worst_clients
from fedweave.runs.compare import Comparison
from fedweave.runs.results import Result, stalled_since
from report.fabricate import comparison, tiny, with_scores


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (units.percent(0.8417, 0.0061), "84.2 % ± 0.6"),
        (units.percent(None), "–"),
        (units.size(1_900_000), "1.9 MB"),
        (units.size(1_900_000, 120_000), "1.9 MB ± 0.1"),
        (units.size(999_960), "1.0 MB"),
        (units.size(812), "812 B"),
        (units.size(0), "0 B"),
        (units.seconds(0.25), "0.25 s"),
        (units.seconds(12.34), "12.3 s"),
        (units.seconds(59.99), "1 min 00 s"),
        (units.seconds(200), "3 min 20 s"),
        (units.seconds(200, 12.2), "3 min 20 s ± 12 s"),
        (units.seconds(3599.9), "1 h 00 min"),
        (units.seconds(7500), "2 h 05 min"),
        (units.seconds(90000), "1 d 1 h"),
        (units.rounds(12.0), "12"),
        (units.rounds(12.5, 0.7), "12.5 ± 0.7"),
        (units.loss(0.5123, 0.0123), "0.512 ± 0.012"),
        (units.ratio(0.6), "0.60×"),
        (units.ratio(14.2), "14×"),
        (units.difference("accuracy")(-0.0123), "-1.23 points"),
        (units.difference("seconds_to_target")(-200.0), "-3 min 20 s"),
        (units.difference("bytes_to_target")(1_900_000), "+1.9 MB"),
        (units.difference("total_bytes_to_target")(-812), "-812 B"),
        (units.difference("rounds_to_target")(-2.5), "-2.5"),
        (units.difference("rounds_to_target")(None), "–"),
    ],
)
def test_number_formats(written: str, expected: str):
    assert written == expected


def words(*runs: Result) -> str:
    return " ".join(headline(compare_rows(runs)))


def test_a_stalled_training_is_said():
    stalled = {"stalled": np.array([0, 1, 0, 1, 1, 1, 1, 1.0])}
    runs = [tiny("fedaware", [0.5] * 8, seed, **kind) for seed, kind in enumerate((stalled, {}, {}))]
    assert runs[0].summary["stalled_since"] == 4
    assert "Training stalled (1 of 3 of fedaware)" in words(*runs, *(tiny("fedavg", [0.6] * 8, s) for s in range(3)))
    assert "stalled" not in words(runs[1], runs[2])


@pytest.mark.parametrize(
    ("stalled", "since"),
    [
        ([0] * 8, None),
        ([1] * 8, 1),
        ([0] * 3 + [1] * 5, 4),
        ([0] * 4 + [1] * 4, None),
        ([1] * 7 + [0], None),
        ([], None),
    ],
)
def test_stalled_is_what_lasts_to_the_end(stalled: list[int], since: int | None):
    assert stalled_since(np.arange(1, len(stalled) + 1), np.array(stalled) == 1) == since


def test_a_clear_winner_is_named_with_its_ratio():
    runs = [tiny("fedavg", [0.1, 0.2, 0.3, 0.8], seed=s) for s in (0, 1)]
    runs += [tiny("fedyogi", [0.1, 0.85], seed=s) for s in (0, 1)]
    first = headline(compare_rows(runs))[0]
    assert (
        first
        == "fedyogi reached 80 % first: in 2 rounds, 20.0 s of simulated time, 0.50× the simulated time of fedavg."
    )


def test_a_winning_baseline_names_the_next():
    runs = [tiny("fedavg", [0.1, 0.85], seed=s) for s in (0, 1)]
    runs += [tiny("fedyogi", [0.1, 0.2, 0.3, 0.8], seed=s) for s in (0, 1)]
    assert "20.0 s of simulated time; the next, fedyogi, took 2.00× as long in simulated time." in words(*runs)


def test_the_best_method_is_named_with_its_price():
    """Two rounds of 20 s and 3,000 bytes each: against two of 10 s, then against three of 10 s."""
    slow = [tiny("fedavg", [0.1, 0.9 + s / 100], seed=s, seconds=20.0, target=None) for s in (0, 1, 2)]
    fast = [tiny("fedyogi", [0.1, 0.5 + s / 100], seed=s, target=None) for s in (0, 1, 2)]
    said = "the paired 95 % interval excludes zero; it took 2.00× the simulated time."
    assert words(*slow, *fast).startswith("fedavg (91.0 % ± 1.0) has the highest final test accuracy, ahead of fedyogi")
    assert said in words(*slow, *fast)
    long = [tiny("oort", [0.1, 0.2, 0.5 + s / 100], seed=s, target=None) for s in (0, 1, 2)]
    assert "; it took 1.33× the simulated time and 0.67× the bytes." in words(*slow, *long)
    assert "excludes zero." in words(
        *(tiny("a", [0.9 + s / 100], s, None) for s in (0, 1)), *(tiny("b", [s / 100], s, None) for s in (0, 1))
    )


def test_no_winner_within_the_spread():
    runs = [tiny("fedavg", [0.1, 0.8]), tiny("fedavg", [0.1, 0.2, 0.3, 0.9], seed=1)]
    runs += [tiny("fedyogi", [0.85]), tiny("fedyogi", [0.1, 0.2, 0.3, 0.85], seed=1)]
    text = words(*runs)
    assert "No clear winner in the simulated time to 80 %" in text
    assert "No clear winner in final test accuracy" in text
    assert "first:" not in text


def test_one_seed_claims_nothing():
    text = words(tiny("fedavg", [0.1, 0.8]), tiny("fedyogi", [0.9]))
    assert "perhaps by chance" in text
    assert "may be chance" in text


def test_two_leaders_share_the_headline():
    runs = [tiny("fedavg", [0.1] * 9 + [0.8], seed=s) for s in (0, 1)]
    runs += [tiny(m, [0.1] * n + [0.8], seed=n - 1) for m in ("fedyogi", "fedadam") for n in (1, 2)]
    assert words(*runs).startswith(
        "fedyogi and fedadam reached 80 % first, in 0.25× and 0.25× the simulated time of fedavg"
    )


def test_misses_and_interruptions_are_reported():
    text = words(tiny("fedavg", [0.9]), tiny("oort", [0.1], planned=3), tiny("feddd", [0.1]))
    assert "Only fedavg reached 80 %" in text
    assert "oort and feddd never reached 80 %." in text
    assert "1 of 1 of oort" in text
    assert "No method reached 80 %." in words(tiny("oort", [0.1]), tiny("feddd", [0.1]))
    runs = [
        tiny("fedavg", [0.9]),
        tiny("fedavg", [0.9], seed=1),
        tiny("oort", [0.1]),
        tiny("oort", [0.9], seed=1),
    ]
    assert "oort in 1 of 2 seeds reached 80 %" in words(*runs)


def test_a_single_run():
    assert words(tiny("fedavg", [0.1, 0.8])) == (
        "fedavg ended at 80.0 % test accuracy after 2 rounds. It reached 80 % in 2 rounds, 20.0 s of simulated time."
    )
    assert words(tiny("fedavg", [0.1])).endswith("fedavg never reached 80 %.")
    assert words() == "There are no runs to report."


def test_runs_without_a_common_measure():
    """A classification beside a regression, which has no accuracy."""
    assert words(tiny("a", [0.5], target=None), tiny("b", [np.nan], target=None)) == (
        "The runs have no measure in common."
    )


def shown(runs: Sequence[Result], width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system="standard", force_terminal=True).print(terminal_table(runs, width))
    return out.getvalue()


def test_the_terminal_table_fits_and_marks_the_best():
    runs = [*comparison(), tiny("fedpracdelta_consistent", [0.1, 0.2])]
    text = shown(runs)
    assert Console(width=300).measure(terminal_table(runs)).maximum <= 100
    assert "fedpracdelta_consistent" in text
    assert "0 of 1" in text
    line = next(line for line in text.splitlines() if "fedyogi" in line)
    assert "\x1b[1m" in line  # bold


def test_a_narrow_terminal_gets_fewer_columns_and_whole_names():
    runs = [tiny(m, [0.1, 0.9], seed=s) for m in ("fedavg", "latency_optimal") for s in range(3)]
    text = shown(runs, 100)
    assert "left out" not in text
    assert "upload" in text
    text = shown(runs, 70)
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    heading, *lines = [line.rstrip() for line in plain.splitlines() if line.strip()]
    assert len(heading) <= 70
    assert "upload" not in heading
    assert "left out for lack of width: upload" in " ".join(lines)
    assert "bytes" in heading
    assert any("latency_optimal" in line for line in lines), "no name is broken"


def test_what_the_columns_of_the_target_leave_open_is_said():
    """The bytes of the whole run, by which the headline compares, and that who reached it may have lost it again."""
    table = terminal_table([tiny("fedavg", [0.1, 0.9, 0.7]), tiny("fedyogi", [0.9, 0.9, 0.9])])
    assert [str(cell) for cell in table.columns[-1].cells] == ["9.0 kB", "9.0 kB"], "of three rounds"
    assert "“bytes”: up and down, of the whole run" in str(table.caption)
    assert "“reached”: at some evaluation; the end may be lower" in str(table.caption)
    assert "at some evaluation" not in str(terminal_table([tiny("fedavg", [0.1, 0.9])]).caption)


def test_costs_are_a_table_of_their_own():
    runs = [tiny(m, [0.1] * n + [0.9], seed=s) for m, ns in (("a", (3, 5)), ("[b]", (1, 2))) for s, n in enumerate(ns)]
    assert cost_table(runs[:2]) is None
    assert cost_table([runs[0], runs[2]]) is None, "one seed has no interval"
    out = io.StringIO()
    Console(file=out, width=80).print(cost_table(runs))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[0] == "cost until 80 %: difference from a, seed by seed"
    assert "[b] rounds -2.5 -8.9 to +3.9 undecided" in lines
    assert "upload -2.5 kB -8.9 kB to +3.9 kB undecided" in lines


def test_scores_of_clients_are_a_table_of_their_own():
    assert client_table([tiny("fedavg", [0.9])]) is None
    out = io.StringIO()
    worst = {"client": 0, "name": "[b] & co", "test_samples": 3, "others": 0}
    runs = [with_scores(tiny("fedavg", [0.1, 0.9]), [0.2, 0.4]), tiny("[red]x", [0.9])]
    runs[0].summary["worst_client"] = worst
    Console(file=out, width=100).print(client_table(runs))
    text = " ".join(out.getvalue().split())
    assert text.startswith("accuracy of the global model on each client's own test data method mean std worst tenth")
    assert text.endswith("fedavg 30.0 % 10.0 % 20.0 % 20.0 % Worst: fedavg [b] & co (client 0, 3 test samples).")
    assert "Worst: fedavg [b] &amp; co (client 0, 3 test samples)." in page(runs)
    other = with_scores(tiny("fedavg", [0.1, 0.9], seed=1), [0.1, 0.1])
    other.summary["worst_client"] = {"client": 0, "test_samples": 1, "others": 1}
    assert worst_clients(compare_rows([*runs, other])) == (
        "Worst: fedavg client 0 (1 test sample) of seed 1, as 1 other."
    )


def test_a_printed_comparison_is_the_table_of_the_command_line():
    runs = [
        tiny(method, [0.1, end + seed / 100], seed=seed) for method, end in (("a", 0.5), ("b", 0.9)) for seed in (0, 1)
    ]
    text = str(Comparison(runs))
    assert "accuracy: difference from a, seed by seed" in text
    assert "b 90.5 % ± " in " ".join(text.split())
    assert "better" in text
    assert max(map(len, text.splitlines())) <= 100
    assert repr(Comparison(runs)) == "Comparison(4 runs of a, b)"
    assert str(Comparison([])) == repr(Comparison([]))
    _, row = Comparison(runs).summary
    assert {type(row["paired"][key]) for key in ("difference", "low", "high", "detectable")} == {float}


def test_the_terminal_table_takes_names_literally():
    assert "[red]x" in shown([tiny("[red]x", [0.9])])


def test_calibrated_steps_are_said():
    run = tiny("fedacs", [0.1, 0.85])
    assert "calibrated" not in words(run)
    assert "Step lengths are calibrated" in words(replace(run, experiment=run.experiment | {"calibrate": True}))


def timed(method: str, values: Sequence[float], seconds: float | None = 20.0) -> list[Result]:
    """Return runs of two rounds that end in these values, one per seed, after the same simulated time."""
    runs = [tiny(method, [0.1, value], seed=s, target=None) for s, value in enumerate(values)]
    return [replace(run, experiment={**run.experiment, "stop_after": seconds}) for run in runs]


def test_what_the_same_time_gained_and_cost_is_said_only_as_far_as_the_seeds_show_it():
    base, up = timed("fedavg", [0.50, 0.52, 0.54]), timed("fedbuff", [0.60, 0.62, 0.64])
    down, open_ = timed("oort", [0.45, 0.47, 0.49]), timed("wild", [0.10, 0.90, 0.80])
    lead = headline(compare_rows([*base, *open_, *down, *up]))[0]
    assert lead == (
        "In the same 20.0 s of simulated time fedbuff gained 10.00 points in test accuracy over fedavg at 1.00× its "
        "bytes; oort lost 5.00 points at 1.00×."
    )
    lead = headline(compare_rows([*base, *open_]))[0]
    assert lead == "In the same 20.0 s of simulated time no method was shown to gain test accuracy over fedavg."
    for others in (timed("fedbuff", [0.60, 0.62, 0.64], seconds=None), timed("fedbuff", [0.60, 0.62, 0.64], 30.0)):
        assert "gained" not in words(*base, *others), "other times"
    assert "gained" not in words(base[0], up[0]), "one seed"


def test_a_metric_that_should_be_low_is_lowered_and_not_gained():
    def lower(method: str, values: Sequence[float]) -> list[Result]:
        about = {"metric": "loss", "higher_is_better": False}
        return [
            replace(r, summary={**r.summary, **about, "value": v})
            for r, v in zip(timed(method, values), values, strict=True)
        ]

    base, down, more = (
        lower("fedavg", [5.0, 5.2, 5.4]),
        lower("fedbuff", [1.4, 1.6, 1.8]),
        lower("feddd", [4, 4.2, 4.4]),
    )
    lead = headline(compare_rows([*base, *lower("oort", [6.0, 6.2, 6.4]), *down, *more]))[0]
    assert lead == (
        "In the same 20.0 s of simulated time fedbuff lowered test loss by 3.6 compared with fedavg at 1.00× its bytes "
        "and feddd by 1 at 1.00×; oort raised it by 1 at 1.00×."
    )
    lead = headline(compare_rows([*base, *lower("wild", [1.0, 9.0, 5.0])]))[0]
    assert lead.endswith("no method was shown to lower test loss compared with fedavg.")


def test_no_time_is_named_that_some_run_did_not_have():
    """Runs that had done all their rounds before, were interrupted, or ended at the target had less time."""
    base, up = timed("fedavg", [0.50, 0.52, 0.54]), timed("fedbuff", [0.60, 0.62, 0.64])
    less = [
        timed("fedbuff", [0.60, 0.62, 0.64], seconds=20.1),
        [*up[:2], replace(up[2], experiment={**up[2].experiment, "rounds": 3})],
        [*up[:2], replace(up[2], summary={**up[2].summary, "ended_early": "target"})],
    ]
    for others in less:
        same = timed("fedavg", [0.50, 0.52, 0.54], others[0].experiment["stop_after"])
        assert "same" not in words(*same, *others)
        assert "fedbuff (62.0 % ± 2.0) has the highest final test accuracy" in words(*same, *others)
    text = caption(compare_rows([*base, *less[0]]))
    assert "3 of 6 runs had done all their rounds before the time was over: give more rounds" in text
