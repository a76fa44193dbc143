"""The page as a document: well formed, self-contained, honest about missing things."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedweave import report
from fedweave.report import units
from fedweave.report.repeat import flatten, split_settings
from fedweave.report.summary import by_method
from fedweave.runs.results import Result, summarise
from report.fabricate import comparison, realistic, tiny, with_scores

VOID = {"meta", "input", "br", "hr", "img", "link"}
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


class Reader(HTMLParser):
    """Checks that tags balance; gathers ids, tags and text."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]):
        self.tags.append((tag, dict(attrs)))
        self.ids.update(v for k, v in attrs if k == "id" and v)

    def handle_endtag(self, tag: str):
        assert self.open.pop() == tag

    def handle_data(self, data: str):
        if "style" not in self.open:
            self.text += data + "\n"


MOVES = "How clients disagree and the server moves"


def test_measures_are_drawn_only_where_they_were_taken(page: str):
    assert MOVES not in page  # these runs have none
    number = np.arange(1.0, 6)
    plain = tiny("fedavg", [0.1, 0.2, 0.3, 0.4, 0.5], diversity=2 + number, step_length=1 / number)
    aware = tiny("fedaware", [0.1, 0.2, 0.3, 0.4, 0.5], diversity=3 + number, surrogate_diversity=9 * number)
    text = report.page([plain, aware])
    assert MOVES in text
    Reader(text)
    for drawn in ("Diversity of the answers", "Surrogate diversity of the memories", "Length of the server"):
        assert drawn in text
    for absent in ("True gradient diversity", "Length of the true gradient"):
        assert absent not in text
    assert "Diversity of the answers against rounds, one line per method: fedavg, fedaware" in text
    assert "Surrogate diversity of the memories against rounds, one line per method: fedaware" in text


def test_an_infinite_diversity_is_a_gap_and_not_an_error():
    diversity = np.array([1.5, np.inf, np.nan, 1e9, 2.0])
    assert MOVES in report.page([tiny("fedavg", [0.1] * 5, diversity=diversity)])


def test_scores_of_clients_are_a_picture_and_columns_only_where_they_were_taken(page: str):
    assert "own test data" not in page
    one = with_scores(tiny("fedavg", [0.1, 0.2]), [0.9, 0.1, 0.4], untested=2)
    text = report.page([one, with_scores(tiny("fedyogi", [0.1, 0.3]), [0.6, 0.5])])
    assert "the global model on each client's own test data" in text
    assert "Left out: 0 to 2 of the clients, which have no test samples." in text
    assert "Accuracy of the global model on each client&#x27;s own test data: fedavg, fedyogi" in text
    read = Reader(text).text
    for wanted in ("Accuracy on each client's own test data\n", "worst tenth\n", "46.7 %", "55.0 %"):
        assert wanted in read
    assert "Left out" not in report.page([with_scores(tiny("fedavg", [0.1, 0.2]), [0.9])])


def test_clients_judged_by_different_metrics_share_no_picture():
    other = tiny("b", [np.nan, np.nan], target=None)
    runs = [with_scores(tiny("a", [0.1, 0.2], target=None), [0.5]), with_scores(other, [2.0])]
    text = report.page(runs)
    assert "own test data" not in text
    Reader(text)


def test_costs_of_the_target_are_compared_where_all_seeds_got_there():
    runs = [tiny(m, [0.1] * n + [0.9], seed=s) for m, ns in (("a", (3, 5)), ("b", (1, 2))) for s, n in enumerate(ns)]
    missed = [tiny("c", [0.1, 0.2], seed=s) for s in range(2)]
    text = report.page([*runs, *missed])
    read = Reader(text).text
    assert "Cost until 80 %, difference from a, seed by seed" in read
    section = read.split("Cost until 80 %, difference")[1].split("Learning curves")[0]
    for wanted in ("b\n-2.5 \n-8.9 to +3.9\nundecided", "-25.0 s", "-2.5 kB", "-7.5 kB", "some seeds missed"):
        assert wanted in section
    assert "upload and download\n" in section
    assert "Cost until" not in report.page([*missed, *runs])
    assert "Cost until" not in report.page([runs[0], runs[2]]), "one seed"


def test_the_page_says_whose_model_on_whose_data(page: str):
    assert "Test accuracy is that of the global model on the common test set." in page
    run = tiny("fedavg", [math.nan] * 2, target=None, loss=np.full(2, math.nan), objective=np.array([2.0, 1.5]))
    alone = report.page([run])
    assert "fedavg ended at a training loss of 1.50 over all clients after 2 rounds." in alone
    assert "common test set" not in alone
    assert "The training loss is that of the global model on the training data of all clients." in alone
    assert "Training loss over all clients against rounds" in alone
    other = tiny("sgd", [math.nan] * 2, target=None, loss=np.full(2, math.nan), objective=np.array([2.0, 1.7]))
    both = "fedavg (1.50) has the lowest final training loss over all clients, then sgd (1.70)"
    assert both in report.page([other, run])


def test_the_page_is_well_formed_and_self_contained(page: str):
    read = Reader(page)
    assert max(read.ids.values()) == 1
    assert set(re.findall(r"https?://[^\s\"'<>)]+", page)) <= NAMESPACES
    names = {tag for tag, _ in read.tags}
    assert not names & {"script", "link", "img", "iframe"}
    links = [v for _, attrs in read.tags for k, v in attrs.items() if k in ("href", "src", "xlink:href") and v]
    assert all(v.startswith(("#", "data:image/png;base64,")) for v in links)


def test_the_page_is_accessible(page: str):
    read = Reader(page)
    figures = [attrs for tag, attrs in read.tags if tag == "svg" and "aria-hidden" not in attrs]
    assert len(figures) == 8 + 4 + 1 + 1  # curves, participation, labels, classes
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in figures)
    assert all("scope" in attrs for tag, attrs in read.tags if tag == "th")
    labels = {attrs["for"] for tag, attrs in read.tags if tag == "label"}
    assert labels == {"axis-round", "axis-clock", "axis-bytes-up", "axis-bytes-total"} <= set(read.ids)
    assert ("html", {"lang": "en"}) in read.tags


def test_the_uneven_and_the_forgotten_come_first_then_results_then_mechanics():
    runs = [with_scores(run, [0.5, 0.9]) for run in comparison()]
    read = Reader(report.page(runs)).text
    order = ["What is uneven", "accuracy per class", "own test data", "Comparison", "seed by seed", "Learning curves"]
    order += ["Which clients take part", "How to repeat it", "Copy this command"]
    places = [read.index(heading) for heading in order[:2]] + [read.index(h, read.index(order[1])) for h in order[2:]]
    assert places == sorted(places)
    assert "Worst tenth of clients: difference from fedavg, seed by seed" in read


def test_where_all_had_the_same_time_it_is_the_first_axis_and_in_the_title():
    def page(*seconds: float | None) -> str:
        runs = zip(comparison(), seconds * 8, strict=False)
        return report.page([dataclasses.replace(r, experiment={**r.experiment, "stop_after": s}) for r, s in runs])

    least = min(run.summary["simulated_seconds"] for run in comparison())
    text = page(least)
    assert f"{units.seconds(least)} of simulated time</span>" in text
    assert 'id="axis-clock" checked' in text
    for text in (page(least + 0.1), page(least, None)):  # one ended before its time; half had no limit
        assert "2 seeds, 40 rounds</span>" in text
        assert 'id="axis-round" checked' in text


def test_the_page_says_how_to_repeat_it(page: str):
    text = Reader(page).text
    for wanted in (
        "fedweave compare fedavg",
        "2026-08-03 14:21",
        "torch 2.13.0",
        "9f2c6a1de0b7",
        "cpu, 2 threads",
    ):
        assert wanted in text
    assert "seeds\n0, 1" in text
    assert "method.server.kind = Yogi" in text  # differs, so it stands apart


def test_everything_is_escaped():
    run = tiny("<b>x", [0.1, 0.9])
    evil = "<script>alert('1')</script>"
    nasty = dataclasses.replace(
        run,
        manifest={**run.manifest, "command": evil, "device": evil, "versions": {evil: evil}, "started": evil},
        experiment={**run.experiment, evil: evil},
    )
    text = report.page([nasty, tiny("fedavg", [0.2, 0.9])], title=evil)
    assert "<b>x" not in text
    assert "<script" not in text
    read = Reader(text)
    assert "<b>x" in read.text
    assert evil in read.text


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [tiny("fedavg", [])],
        [tiny("fedavg", [0.5])],
        [tiny("fedavg", [math.nan])],
        [tiny("fedavg", [0.1, 0.2], target=None)],
        [tiny("fedavg", [0.1, 0.9]), tiny("fedavg", [0.1], seed=1, planned=2)],
        [tiny("fedavg", [0.9], target=0.8), tiny("oort", [0.9], target=0.7)],
        [dataclasses.replace(tiny("fedavg", [0.5]), manifest={}, clients={})],
        [realistic(f"m{i}", rounds=3) for i in range(16)],
    ],
)
def test_any_set_of_runs_makes_a_page(runs: list[Result]):
    read = Reader(report.page(runs))
    assert not read.ids or max(read.ids.values()) == 1
    assert "nan" not in read.text.lower().split()


def test_a_regression_shows_its_loss_alone():
    runs = [tiny(m, [math.nan] * 3, target=None, loss=np.array([3.0, 2, 1])) for m in ("fedavg", "sgd")]
    read = Reader(report.page(runs))
    assert max(read.ids.values()) == 1
    text = read.text
    assert "nan" not in text.lower().split()
    assert "Test loss" in text
    assert "Test accuracy" not in text
    assert "target" not in text.replace("target\n–", "")


def test_settings_are_split_into_shared_and_own():
    shared, own = split_settings(by_method(comparison()))
    assert shared["partition.alpha"] == "0.3"
    assert shared["seeds"] == "0, 1"
    assert own["fedprox"]["method.solver.mu"] == "0.01"
    assert "method.solver.mu" not in own["fedavg"]
    assert not set(shared) & {key for settings in own.values() for key in settings}


def test_flatten():
    plain = {"a": {"b": [1, 2], "c": None}, "d": [{"e": True}], "f": 0.1, "g": {}}
    assert flatten(plain) == {"a.b": "1, 2", "a.c": "–", "d.0.e": "yes", "f": "0.1", "g": "–"}


def test_write_replaces_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "new" / "report.html"
    runs = [tiny("fedavg", [])]
    assert report.write(runs, path) == path
    assert path.read_text(encoding="utf-8") == report.page(runs)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report.write([tiny("oort", [])], path)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]  # nothing half-written left behind
    assert "oort" not in path.read_text(encoding="utf-8")


TASKS = {"perplexity": False, "iou": True, "AUC": True}


def judged(method: str, values: list[float], metric: str, seed: int = 0, target: float | None = None) -> Result:
    """Return a run whose every value of a metric of its own can be worked out by hand."""
    run = tiny(method, [np.nan] * len(values), seed, target, **{metric: np.array(values), "loss": np.log1p(values)})
    task = {"name": "own", "primary": metric, "higher_is_better": TASKS.get(metric, True)}
    summary = {"method": method, **summarise(run.rounds, target, task), "run": None}
    return dataclasses.replace(run, manifest={**run.manifest, "task": task}, summary=summary)


def curves_of(read: Reader) -> str:
    """Return what the learning curves say."""
    return read.text.partition("Learning curves")[2].partition("How to repeat it")[0]


def test_a_lower_metric_of_ones_own_leads_the_page():
    runs = [judged("slow", [90.0, 50.0, 30.0], "perplexity", target=40.0)]
    runs += [judged("fast", [80.0, 35.0, 20.0], "perplexity", target=40.0)]
    text = report.page(runs)
    read = Reader(text)
    assert "fast reached perplexity 40 first, in 2 rounds" in read.text
    assert "fast (20.0) has the lowest final test perplexity, then slow (30.0)" in read.text
    assert "Until perplexity 40" in read.text
    assert "<b>20.0</b>" in text
    assert "<b>30.0</b>" not in text
    assert text.count("Test perplexity against") == 2 * 4, "as a title and a label, along each axis"
    assert "Test accuracy" not in text
    assert text.count("target") > 3
    assert "%" not in read.text.partition("Learning curves")[0], "a perplexity is not a share"


def test_the_name_of_a_metric_stays_as_it_is():
    runs = [judged(method, [0.2, 0.4 + 0.1 * seed], "AUC", seed) for method in ("a", "b") for seed in (0, 1)]
    text = report.page([with_scores(run, [0.5, 0.9]) for run in runs])
    assert "AUC on each client" in text
    assert "AUC: difference from a" in text
    assert "Auc" not in text


def test_a_higher_metric_of_ones_own_leads_the_page():
    text = report.page([judged("a", [0.2, 0.4], "iou", target=0.3), judged("b", [0.1, 0.7], "iou", target=0.3)])
    read = Reader(text)
    assert "b (0.700) has the highest final test iou, then a (0.400)" in read.text
    assert "<b>0.700</b>" in text
    assert "Test iou against rounds" in text


def test_runs_of_different_tasks_are_compared_by_their_loss():
    """Their targets are values of different metrics: neither is drawn nor named as one of the loss."""
    text = report.page([judged("a", [0.2, 0.4], "iou", target=0.3), tiny("b", [0.1, 0.9], target=0.8)])
    read = Reader(text)
    assert "a (0.336) has the highest" not in read.text
    assert "lowest final test loss" in read.text
    assert "loss 0.3" not in read.text.partition("How to repeat it")[0]
    assert "target\n" not in curves_of(read)
    assert "Test iou" in curves_of(read)


@pytest.mark.parametrize(
    ("values", "target"), [*(([900.0, 40.0, 5.0], target) for target in (4.0, 6.0, -1.0)), ([5.0, 40.0, 900.0], 2000.0)]
)
def test_a_target_beside_values_of_several_decades(values: list[float], target: float):
    """On a logarithmic scale a margin is a factor."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = report.page([judged("a", values, "perplexity", target=target)])
    assert ("target\n" in curves_of(Reader(text))) == (target > 0)


def test_two_tasks_of_one_method_are_not_averaged():
    (row,) = report.compare_rows([judged("a", [0.2, 0.4], "iou", 0, 0.3), judged("a", [90.0, 50.0], "perplexity", 1)])
    assert (row["metric"], row["best"], row["target"], row["reached"]) == ("loss", None, None, None)
    assert row["value"] == pytest.approx(np.log1p([0.4, 50.0]).mean())


def test_that_nobody_reached_the_target_is_said_once():
    text = Reader(report.page([tiny("a", [0.2, 0.4]), tiny("b", [0.1, 0.3])])).text
    assert text.count("reached 80 %") == 1
    assert "No time ratio" not in text
    assert (
        "No time ratio for b: it never reached the target."
        in Reader(report.page([tiny("a", [0.2, 0.9]), tiny("b", [0.1, 0.3])])).text
    )


def test_one_seed_has_no_mean_over_the_seeds():
    several = comparison()
    assert "At the last evaluation, mean over the seeds." in Reader(report.page(several)).text
    assert "mean over the seeds" not in Reader(report.page(several[:1])).text
