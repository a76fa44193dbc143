"""How items are run: on one core or on several, from Python or from the command."""

import json

import pytest

from fedweave import papers, privacy
from fedweave.cli import reproduce
from fedweave.cli.app import app
from fedweave.core.settings import BadInput
from fedweave.papers.common import parallel


def test_processes_change_nothing_but_the_time(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "one"))
    progress = []
    alone = papers.reproduce("latency/fig3", "smoke", lambda done, total: progress.append((done, total)))
    assert progress == [(n, progress[-1][1]) for n in range(len(progress))]
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "two"))
    monkeypatch.setattr(parallel, "PROCESSES", 2)
    again = []
    beside = papers.reproduce("latency/fig3", "smoke", lambda done, total: again.append((done, total)))
    assert beside.plain() == alone.plain()
    assert again == progress


def test_the_command_prints_the_verdicts(capfd):
    with pytest.raises(SystemExit, match="0"):
        app(["reproduce", "delta/fig3", "--json"])
    found = json.loads(capfd.readouterr().out)  # and nothing else: how far it is goes elsewhere
    assert {**found, "claims": ...} == json.loads(json.dumps(papers.reproduce("delta/fig3").plain())) | {"claims": ...}
    assert {claim["verdict"] for claim in found["claims"]} == {"confirmed", "contradicted"}


def test_a_smoke_run_says_on_terminal_and_page_that_it_shows_nothing(capfd, tmp_path):
    for item, warned in (("latency/fig3", True), ("delta/fig3", False)):  # the latter is arithmetic
        page = tmp_path / "page.html"
        with pytest.raises(SystemExit, match="0"):
            app(["reproduce", item, "--html", str(page)])
        said = "A smoke run shows that the code works; its numbers and verdicts mean nothing beyond that."
        assert (said in capfd.readouterr().out) == warned
        assert (said in page.read_text(encoding="utf-8")) == warned


def test_without_its_extra_nothing_begins(monkeypatch):
    monkeypatch.setattr(privacy, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'fedweave\[private\]'"):
        papers.reproduce("fedacs/private", "smoke", lambda done, total: pytest.fail("began"))


@pytest.mark.parametrize("page", ["nowhere/page.html", "."])
def test_a_page_that_cannot_be_written_is_told_before_anything_begins(page, monkeypatch, tmp_path):
    monkeypatch.setattr(papers, "reproduce", lambda *_: pytest.fail("began"))
    with pytest.raises(BadInput, match="cannot be written"):
        reproduce.reproduce("fedaware/fig8/hybrid", html=tmp_path / page)
    assert not list(tmp_path.iterdir())


def test_without_joblib_nothing_begins(monkeypatch):
    monkeypatch.setattr(papers, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"needs joblib.*pip install 'fedweave\[papers\]'"):
        papers.reproduce("fedaware/fig8/hybrid", "smoke", lambda done, total: pytest.fail("began"))


def test_recorded_outcomes_become_verdicts(tmp_path, monkeypatch):
    """The most faithful record of a claim counts, and none of a claim that has been reworded since."""
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "kept"))
    item = "fedaware/fig9/hybrid+"
    path = papers.record(papers.reproduce(item), tmp_path)
    mine = [entry for entry in papers.list_claims(tmp_path) if entry["item"] == item]
    assert {entry["verdict"] for entry in mine if entry["column"] == "paper"} == {"undecided"}
    assert {entry["verdict"] for entry in mine if entry["column"] == "tuned"} == {"not run"}  # without --tune
    assert {entry["verdict"] for entry in papers.list_claims(tmp_path) if entry["item"] != item} == {"not run"}
    content = json.loads(path.read_text())
    primary = next(entry for entry in content["claims"] if entry["primary"])
    primary |= {"p_right": 0.001, "p_wrong": 1.0, "seeds": 10, "fidelity": "published"}
    (tmp_path / "better.json").write_text(json.dumps(content))
    found = next(entry for entry in papers.list_claims(tmp_path) if entry["primary"] and entry["paper"] == "fedaware")
    assert (found["verdict"], found["fidelity"], found["date"]) == ("confirmed", "published", content["date"])
    primary["p_right"] = 0.02  # five primary claims: Holm asks for 0.01 of the first
    (tmp_path / "better.json").write_text(json.dumps(content))
    found = next(entry for entry in papers.list_claims(tmp_path) if entry["primary"] and entry["paper"] == "fedaware")
    assert found["verdict"] == "undecided"
    primary["digest"] = "of another wording"
    (tmp_path / "better.json").write_text(json.dumps(content))
    path.unlink()
    found = next(entry for entry in papers.list_claims(tmp_path) if entry["primary"] and entry["paper"] == "fedaware")
    assert found["verdict"] == "not run"


def test_items_are_chosen_by_the_beginning_of_their_names():
    assert [s.name for s in papers.select(["fedaware/fig9/hybrid+"])] == ["fedaware/fig9/hybrid+"]
    several = [s.name for s in papers.select(["fedaware/fig9"])]
    assert several[0] == "fedaware/fig9/hybrid+"  # the primary claim first
    assert sorted(several) == [f"fedaware/fig9/{s}" for s in ("hybrid", "hybrid+", "statistical")]
    with pytest.raises(BadInput, match=r"fedaware/fig99.*Did you mean"):
        papers.select(["fedaware/fig99"])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), ("1d", 86400)]
)
def test_budgets(text, seconds):
    assert reproduce.parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "2 hours", "-1h", "0", "h", "1" * 60 + "x"])
def test_wrong_budgets(text):
    with pytest.raises(BadInput, match="such as 90m"):
        reproduce.parse_time(text)


def test_a_budget_says_what_it_left(capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path))
    with pytest.raises(SystemExit, match="0"):
        app(["reproduce", "fedaware/fig9", "--budget", "0.001s", "--json"])
    found = json.loads(capfd.readouterr().out)
    assert not found["items"]
    assert sorted(found["left"]) == [f"fedaware/fig9/{s}" for s in ("hybrid", "hybrid+", "statistical")]
