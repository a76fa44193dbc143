"""Recorded outcomes have all that a page shows, and are small; a damaged one is refused in a sentence."""

import json

import numpy as np
import pytest

from fedweave import papers
from fedweave.core.settings import BadInput
from fedweave.papers.common import drawn
from fedweave.papers.common.page import page
from fedweave.papers.common.panels import Bar, Line, Panel
from fedweave.papers.common.recorded import read_recorded, to_json, to_recorded

ITEM = "fedaware/fig9/hybrid+"


def test_a_page_drawn_from_the_file_is_the_page_drawn_from_the_runs(tmp_path):
    outcome = papers.reproduce(ITEM)
    path = papers.record(outcome, tmp_path)
    assert page([read_recorded(path)], {}, "x") == page([to_recorded(outcome)], {}, "x")
    content = json.loads(path.read_text(encoding="utf-8"))
    assert path.stat().st_size < 40_000
    assert content["cost"]["runs"] == 2 * len(outcome.records["paper"])
    assert content["cost"]["wall_seconds"] > 0
    assert content["cost"]["unknown"] == 0
    assert [origin["seeds"] for origin in content["origins"]] == [[0, 1]]


def test_a_record_of_before_has_no_curves_and_says_so(tmp_path):
    path = papers.record(papers.reproduce(ITEM), tmp_path)
    content = json.loads(path.read_text(encoding="utf-8"))
    for new in ("panels", "cost", "origins", "columns", "tuned"):
        del content[new]
    path.write_text(json.dumps(content), encoding="utf-8")
    old = read_recorded(path)
    assert old.columns == {"paper": "as published"}
    assert "Curves were not recorded" in page([old], {}, "x")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda text: text.replace('"seeds": 2', '"seeds": "two"', 1), "seeds"),
        (lambda text: text.replace('"bars": []', '"bars": 1', 1), "bars"),
    ],
)
def test_a_damaged_record_is_refused_by_name(change, named, tmp_path):
    path = papers.record(papers.reproduce(ITEM), tmp_path)
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(BadInput, match=rf"{path.name.split('+')[0]}.*{named}"):
        papers.list_claims(tmp_path)


def test_what_is_drawn_is_mean_and_range_at_few_points():
    x = np.arange(1.0, 1001.0)
    line = Line("a", x, np.array([x, 3 * x]))
    bar = Bar("b", np.array([1.0, 2.0, 3.0, np.nan]), 2.5)
    many = [Panel("t", "x", "y", [line] * 5, [bar, Bar("none", np.array([np.nan]))])] * 4
    found = drawn.summarize({"paper": many})["paper"]
    (first, *_), (some, none) = found[0].lines, found[0].bars
    assert len(first.x) == drawn.POINTS // 20
    assert (first.x[0], first.x[-1]) == (1, 1000)
    assert first.mean == [2 * v for v in first.x]
    assert (first.low, first.high) == (first.x, [3 * v for v in first.x])
    half = 4.302653 * 1 / np.sqrt(3)  # Student's t with two degrees of freedom
    assert some.mean == 2
    assert (some.low, some.high) == pytest.approx((2 - half, 2 + half), rel=1e-4)
    assert some.published == 2.5
    assert (none.mean, none.low, none.high) == (None, None, None)
    few = drawn.summarize({"paper": [Panel("t", "x", "y", [line])]})["paper"][0].lines[0]
    assert len(few.x) == drawn.MOST


def test_json_has_lists_of_numbers_on_a_line_and_means_the_same():
    content = {"a": [1, 2.5, None], "b": [{"c": ["x [ y ]", "z\n ]"]}, []], "d": {"e": [[1, 2], [3]]}}
    text = to_json(content).decode()
    assert json.loads(text) == content
    assert '"a": [1, 2.5, null]' in text
