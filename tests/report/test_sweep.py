"""A sweep's page and tables: what they say, and that they fit."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from fedweave import report
from fedweave.report import sweep_figure
from fedweave.report.svg import inks
from fedweave.report.sweep import sentences
from fedweave.runs.compare import Comparison
from fedweave.runs.sweep import Sweep
from report.fabricate import realistic, tiny

LRS = (0.001, 0.01, 0.1)


def made(methods=("fedavg", "fedprox"), lrs=LRS, seeds=3, validation=0.1, extra=None, ends=(0.5, 0.9, 0.7)):
    """Return a sweep over lr, and over a second field for the second method; the middle lr is the best."""
    results, points = [], []
    for seed in range(seeds):
        for n, method in enumerate(methods):
            for lr, end in zip(lrs, ends, strict=True):
                for mu in (extra or [None]) if n else [None]:
                    run = tiny(method, [0.1, end + 0.01 * seed - (0.05 if mu else 0)], seed)
                    results.append(replace(run, experiment={**run.experiment, "validation": validation}))
                    points.append({"lr": lr} | ({} if mu is None else {"method.solver.mu": mu}))
    tested = [
        tiny(method, [0.1, 0.8 + 0.02 * n + 0.01 * s], s + 3) for s in range(seeds) for n, method in enumerate(methods)
    ]
    return Sweep(results, points, Comparison(tested) if validation else None)


class Text(HTMLParser):
    """The words of a page, and its ids."""

    def __init__(self, page):
        super().__init__()
        self.words, self.ids = [], []
        self.feed(page)
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]
        assert tag not in ("script", "link", "img")

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def seen():
    return Text(report.sweep_page(made(extra=[0, 0.1])))


def test_the_page_has_the_best_points_a_figure_per_field_and_all_points(seen):
    for heading in ("The best point of every method", "Against lr and mu", "All points", "How to repeat it"):
        assert heading in seen.text
    assert "Best points: fedavg at lr = 0.01; fedprox at lr = 0.01, mu = 0." in seen.text
    assert "trained without 10 % of the training samples" in seen.text
    assert seen.text.count("Validation accuracy, %") == 2
    assert len(seen.ids) == len(set(seen.ids))
    assert "91.0 %" in seen.text  # 0.9, 0.91 and 0.92


def test_a_best_value_at_the_edge_says_so_and_zero_is_no_edge():
    inner, edge = made(), made(lrs=LRS[:2], ends=(0.5, 0.9))
    assert not any("that was tried" in s for s in sentences(inner, inner.summary, []))
    said = " ".join(sentences(edge, edge.summary, []))
    assert "The best lr of fedavg and fedprox, 0.01, is the largest that was tried" in said
    zero = made(lrs=(0, 1), ends=(0.9, 0.5))
    assert not any("that was tried" in s for s in sentences(zero, zero.summary, []))


def test_a_choice_by_the_test_set_is_called_optimistic():
    sweep = made(validation=0)
    assert "optimistic" in Text(report.sweep_page(sweep)).text
    assert "optimistic" in printed(sweep)
    assert "optimistic" not in printed(made())


def test_each_value_is_shown_with_the_best_of_the_other_fields():
    rows = made(extra=[0, 0.1]).summary
    mine = [row for row in rows if row["method"] == "fedprox"]
    found = sweep_figure.best_by_value(mine, "lr")
    assert list(found) == list(LRS)
    assert {row["point"]["method.solver.mu"] for row in found.values()} == {0}
    assert sweep_figure.best_by_value([row | {"mean": None} for row in mine], "lr") == {}


@pytest.mark.parametrize(("methods", "dashes"), [(("fedavg", "fedprox", "fedyogi"), 2), (("fedavg",), 0)])
def test_curves_that_coincide_are_dashed(methods, dashes):
    """All three are alike."""
    rows = made(methods).summary
    drawn = sweep_figure.against(rows, "lr", "lr", inks(methods), "Validation", "f")
    assert len(re.findall("stroke-dasharray: [0-9]", drawn)) == dashes
    apart = made(methods, extra=[0.1]).summary  # but for the first, which has no second field
    drawn = sweep_figure.against(apart, "lr", "lr", inks(methods), "Validation", "f")
    assert len(re.findall("stroke-dasharray: [0-9]", drawn)) == max(dashes - 1, 0)


def printed(sweep, width=100):
    out = StringIO()
    for table in report.sweep_tables(sweep):
        Console(file=out, width=width).print(table)
    return out.getvalue()


def test_the_terminal_marks_the_best_and_fits_a_hundred_columns():
    lines = printed(made(extra=[0, 0.1])).splitlines()
    assert [line.split()[:2] for line in lines if line.rstrip().endswith("best")] == [
        ["fedavg", "0.01"],
        ["fedprox", "0.01"],
    ]
    long = made(methods=("m" * 60, "n" * 60))
    wide = Sweep(long.results, [{f"f{i}.{'x' * 30}": "v" * 60 for i in range(5)} | p for p in long.points], long.tested)
    for sweep in (long, wide):
        assert max(map(len, printed(sweep, 300).splitlines())) <= 100


def test_a_diverged_point_an_unfinished_sweep_and_odd_values_are_drawn():
    sweep = made()
    broken = [replace(r, rounds={**r.rounds, "accuracy": np.array([0.1, np.nan])}) for r in sweep.results]
    assert "some run diverged" in Text(report.sweep_page(Sweep(broken, sweep.points))).text
    values = [None, True, "dirichlet:0.1", 3, 'a "><script>', "x" * 100]
    runs = [replace(r := realistic("a", n), experiment={**r.experiment, "rounds": 99}) for n in range(6)]
    odd = Text(report.sweep_page(Sweep(runs, [{'<b> "x.': value} for value in values])))
    assert "6 of 6 runs are unfinished" in odd.text
    assert "dirichlet:0.1" in odd.text


@pytest.mark.parametrize(
    ("labels", "scale", "ticks"),
    [
        ([0.001, 0.01, 1], "log", ["0.001", "0.01", "1"]),
        ([1, 2, 3], "linear", ["1", "2", "3"]),
        ([0, 0.001, 1], "linear", ["0", "0.001", "1"]),  # side by side
        (["iid", None], "linear", ["iid", "none"]),
    ],
)
def test_the_axis_fits_its_values(labels, scale, ticks):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    along = sweep_figure._scale_axis(axes, labels)
    assert (along is None) == (0 in labels or None in labels)
    assert axes.get_xscale() == scale
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ticks
