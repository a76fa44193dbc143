"""Curves on a common grid, and figures that can share a page."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave import report
from fedweave.core.settings import BadInput
from fedweave.report import figures, write_curves
from fedweave.report.clients import label_counts, participation, ranked_scores, unevenness
from fedweave.report.curves import MOST_POINTS, TOTAL_BYTES, band, curve, step
from fedweave.report.summary import by_method
from fedweave.report.svg import PALETTE, compact, inks
from report.fabricate import comparison, realistic, tiny, with_scores


def points(*pairs: tuple[float, float]):
    x, y = zip(*pairs, strict=True)
    return np.array(x, float), np.array(y, float)


def test_a_step_keeps_the_last_value():
    assert step(points((1, 10), (3, 30)), np.array([1, 2, 3, 9.0])).tolist() == [10, 10, 30, 30]


def test_band_on_the_union_of_the_grids():
    b = band([points((1, 0), (3, 4)), points((2, 2), (4, 6))])
    assert b is not None
    assert b.x.tolist() == [2, 3]  # from the last start to the first end
    assert b.mean.tolist() == [1, 3]
    assert b.low.tolist() == [0, 2]
    assert b.high.tolist() == [2, 4]
    ((x, y),) = b.tails  # the second seed runs on alone from where the first ended
    assert (x.tolist(), y.tolist()) == ([3, 4], [2, 6])


def test_seeds_that_never_overlap_are_drawn_apart():
    b = band([points((1, 0), (2, 1)), points((5, 2), (6, 3))])
    assert b is not None
    assert b.x.size == 0
    assert len(b.tails) == 2


def test_unevaluated_rounds_are_left_out():
    x, y = curve(tiny("fedavg", [math.nan, 0.5, math.nan]), "clock", "accuracy")
    assert (x.tolist(), y.tolist()) == ([20.0], [0.5])
    assert band([curve(tiny("fedavg", [math.nan]), "round", "accuracy")]) is None


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=30), min_size=1, max_size=5), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_the_band_contains_the_mean(values: list[list[float]], seed: int):
    rng = np.random.default_rng(seed)
    b = band([(rng.random(len(v)).cumsum(), np.array(v)) for v in values])
    assert b is not None
    assert np.all(b.low <= b.mean + 1e-12)
    assert np.all(b.mean <= b.high + 1e-12)


def test_long_runs_are_thinned_and_keep_their_ends():
    n = 5000
    b = band([(np.arange(n, dtype=float), np.arange(n, dtype=float))])
    assert b is not None
    assert b.x.size <= MOST_POINTS
    assert (b.x[0], b.x[-1]) == (0, n - 1)
    assert np.array_equal(b.x, b.mean)  # exact at the points that stay


def test_scores_are_ranked_within_each_seed_from_the_worst_and_averaged_by_rank():
    runs = [
        with_scores(tiny("fedavg", [0.1, 0.2], seed=s), v) for s, v in enumerate(([0.5, 0.1, 0.9], [0.2, 0.8, 0.3]))
    ]
    found = ranked_scores(runs)
    assert found is not None
    assert found.mean.tolist() == pytest.approx([0.15, 0.4, 0.85])
    assert found.low.tolist() == [0.1, 0.3, 0.8]
    assert found.high.tolist() == [0.2, 0.5, 0.9]
    losses = with_scores(tiny("sgd", [math.nan] * 2, target=None), [1.0, 3.0, math.inf, 2.0])
    found = ranked_scores([losses])
    assert found is not None
    assert found.mean.tolist() == [3, 2, 1]  # a high loss is a bad one, and what is not finite cannot be drawn
    assert ranked_scores([tiny("fedavg", [0.1])]) is None


def test_seeds_with_scores_of_different_numbers_of_clients_are_read_at_the_same_shares():
    four, two = ([0.1, 0.2, 0.3, 0.4], [0.5, 0.6])
    found = ranked_scores([with_scores(tiny("fedavg", [0.1, 0.2], seed=s), v) for s, v in enumerate((four, two))])
    assert found is not None
    assert found.low.tolist() == [0.2, 0.4]  # at a quarter and three quarters of the clients
    assert found.high.tolist() == [0.5, 0.6]


def test_figures_are_deterministic_and_leave_matplotlib_alone():
    groups = by_method(comparison())
    colors = inks(groups)
    before = dict(matplotlib.rcParams)
    first, again = (figures.curves(groups, colors, "accuracy", "clock", 0.8) for _ in range(2))
    assert first == again
    assert first is not None
    assert dict(matplotlib.rcParams) == before
    assert not re.search(r"\d{4}-\d\d-\d\dT", first)  # no date
    counts = label_counts(realistic("fedavg"))
    assert counts is not None
    assert figures.labels(counts) == figures.labels(counts)


def test_curves_run_against_all_bytes_that_travelled():
    x, y = curve(tiny("fedavg", [0.2, math.nan, 0.5]), TOTAL_BYTES, "accuracy")
    assert (x.tolist(), y.tolist()) == ([3000, 9000], [0.2, 0.5])  # 1000 up and 2000 down per round


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("b.svg", b"<?xml"), ("c.PDF", b"%PDF")])
def test_the_curves_are_a_picture_of_their_own(tmp_path, name, begins):
    runs = [tiny("fedavg", [0.1, 0.5, 0.9]), tiny("fedprox", [0.2, 0.6, 0.8])]
    first = write_curves(runs, tmp_path / "new" / name).read_bytes()
    assert first.startswith(begins)
    assert write_curves(runs, tmp_path / name).read_bytes() == first
    if name == "c.PDF":
        assert b"/FontFile2" in first, "TrueType, which publishers take"
        assert b"/Type3" not in first
    if name == "b.svg":
        for axis in (
            "round",
            "simulated time, seconds",
            "uploaded by all",
            "uploaded and downloaded by all",
            "fedprox",
        ):
            assert axis in first.decode()


def test_what_cannot_be_drawn_is_said(tmp_path):
    with pytest.raises(BadInput, match=r"ends in \.png, \.svg, \.pdf\. Got .*curves\.gif"):
        write_curves([tiny("fedavg", [0.1])], tmp_path / "curves.gif")
    blind = tiny("fedavg", [math.nan], target=None, loss=np.array([math.nan]))
    with pytest.raises(BadInput, match="never evaluated"):
        write_curves([blind], tmp_path / "curves.png")
    trained = tiny("fedavg", [math.nan], target=None, loss=np.array([math.nan]), objective=np.array([1.5]))
    assert b"Training loss over all clients" in write_curves([trained], tmp_path / "c.svg").read_bytes()


def test_references_stay_inside_their_figure():
    groups = by_method(comparison())
    svg = figures.curves(groups, inks(groups), "loss", "bytes_up")
    assert svg is not None
    ids = set(re.findall(r' id="([^"]+)"', svg))
    used = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))
    assert used
    assert used == ids
    assert all(name.startswith("loss-bytes-up-") for name in ids)
    assert "<style" not in svg
    assert 'role="img"' in svg


def test_one_colour_per_method_then_dashes():
    many = inks(f"m{i}" for i in range(20))
    assert len(set(many.values())) == 20
    assert many["m0"].color == many["m7"].color == PALETTE[0]
    assert (many["m0"].line, many["m7"].line) == ("-", (0, (5.0, 2.0)))


def test_participation_is_a_share_of_the_rounds():
    part = participation([tiny("fedavg", [0.1] * 4), tiny("fedavg", [0.1] * 2, seed=1)])
    assert part is not None
    assert part.asked.tolist() == [
        1,
        1,
        0,
    ]  # clients 0 and 1 every round; the third has labels and is never asked
    assert part.answered.tolist() == [1, 0, 0]
    assert (part.answer_rate, part.never_asked) == (0.5, 1)


def test_figures_take_any_size_and_any_name():
    for n in (1, 10, 1000):
        assert "<svg" in figures.labels(np.ones((n, 3)), ["$x_1$", "<i>", "a & b"])
    part = participation([realistic("fedavg", clients=1000, rounds=5)])
    assert part is not None
    assert len(figures.participation(part, "<b>x", inks(["a"])["a"], 1.0, "p")) < 40_000
    values = {f"m{i} $\\frac$": np.full(62, np.nan if i == 3 else 0.5) for i in range(4)}
    assert "<svg" in figures.class_accuracy(values, inks(values))
    groups = by_method([tiny("fedavg", [0.5])])  # a single point
    assert figures.curves(groups, inks(groups), "accuracy", "round", 0.8)
    groups = by_method([tiny("fedavg", [0.5, 0.4], loss=np.array([1.0, 1e9]))])  # diverged
    assert figures.curves(groups, inks(groups), "loss", "round")


def test_curves_that_coincide_are_found_and_the_later_is_dashed():
    runs = [tiny(m, values) for m, values in (("a", [0.1, 0.5, 0.9]), ("b", [0.1, 0.5, 0.9]), ("c", [0.1, 0.6, 0.9]))]
    groups = by_method(runs)
    assert figures.coinciding(groups, "accuracy") == [["a", "b"]]
    apart = by_method([runs[0], runs[2]])
    assert figures.coinciding(apart, "accuracy") == []
    near = by_method([runs[0], tiny("d", [0.102, 0.503, 0.897])])
    assert figures.coinciding(near, "accuracy") == [["a", "d"]], "one line hides the other"
    dashes = [
        (figures.curves(g, inks(g), "accuracy", "round") or "").count("stroke-dasharray") for g in (groups, apart)
    ]
    assert dashes == [1, 0]
    assert "The curves of a and b coincide" in report.page(runs)


def test_unevenness_by_hand():
    run = tiny("a", [0.1, 0.2])
    table = {**run.clients, "steps": np.array([2, 10, 4, 10]), "seconds": np.array([1.0, 5.0, 2.0, 5.0])}
    found = unevenness([replace(run, clients=table)], 3)
    assert found is not None
    np.testing.assert_equal(found.steps, [3, 10, np.nan])
    np.testing.assert_equal(found.unanswered, [0, 1, np.nan])
    assert (found.fastest, found.slowest) == (1.0, 2.0), "of those whose answer came"
    page = report.page([replace(run, clients=table)])
    assert (
        "A participation takes 1.0 s to 2.0 s of simulated time; 0 to 100 % of a client&#x27;s requests in these runs "
        "brought no usable answer." in page
    )
    assert "Requests without a usable answer, %" in page
    all_heard = {**table, "received": np.ones(4, bool)}
    assert "1.0 s to 5.0 s of simulated time; every request brought a usable answer." in report.page(
        [replace(run, clients=all_heard)]
    )
    assert unevenness([run], 3) is None, "a run that does not say"


def test_a_compact_figure_has_the_same_points_and_words_in_fewer_bytes():
    groups = by_method([realistic("fedavg"), realistic("fedprox")])
    whole = figures.curves(groups, inks(groups), "loss", "round")
    small = compact(whole)
    assert len(small) < 0.75 * len(whole)
    words = r"<text[^>]*>([^<]*)|aria-label=\"([^\"]*)"
    assert re.findall(words, small) == re.findall(words, whole)

    def ends(svg):
        """Follow every path of straight lines and return where it has been, as a browser would."""
        found = []
        for path in re.findall(r' d="([^"]*)"', svg):
            here = start = np.zeros(2)
            for kind, numbers in re.findall(r"([MLmlz])([^MLmlz]*)", path):
                step = np.array([float(n) for n in re.findall(r"-?[\d.]+", numbers)])
                here = start if kind == "z" else step if kind.isupper() else here + step
                start = here if kind in "Mm" else start
                found.append(here)
        return np.array(found)

    assert ends(whole).shape == ends(small).shape
    assert np.abs(ends(whole) - ends(small)).max() < 0.06
