"""How items are run: on one core or on several, from Python or from the command."""

import json

import pytest

from fedweave import papers, privacy
from fedweave.cli import reproduce
from fedweave.cli.app import app
from fedweave.core.settings import BadInput
from fedweave.papers import earlier
from fedweave.papers.common import parallel


def test_processes_change_nothing_but_the_time(monkeypatch):
    progress = []
    alone = earlier.reproduce("latency/fig3", "smoke", lambda done, total: progress.append((done, total)))
    assert progress == [(n, progress[-1][1]) for n in range(len(progress))]
    monkeypatch.setattr(parallel, "PROCESSES", 2)
    again = []
    beside = earlier.reproduce("latency/fig3", "smoke", lambda done, total: again.append((done, total)))
    assert beside.plain() == alone.plain()
    assert again == progress


def test_the_command_prints_the_verdicts(capfd):
    with pytest.raises(SystemExit, match="0"):
        app(["reproduce", "delta/fig3", "--json"])
    found = json.loads(capfd.readouterr().out)  # and nothing else: how far it is goes elsewhere
    assert found == json.loads(json.dumps(earlier.reproduce("delta/fig3").plain()))
    assert {claim["verdict"] for claim in found["claims"]} == {"confirmed", "not confirmed"}


def test_without_its_extra_nothing_begins(monkeypatch):
    monkeypatch.setattr(privacy, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'fedweave\[private\]'"):
        papers.reproduce("fedacs/private", "smoke", lambda done, total: pytest.fail("began"))


@pytest.mark.parametrize(
    ("item", "page", "words"),
    [
        ("delta/fig3", "page.html", "--html: delta/fig3 has no runs to draw"),
        ("fedaware/fig8/hybrid", "nowhere/page.html", "cannot be written"),
        ("fedaware/fig8/hybrid", ".", "cannot be written"),
    ],
)
def test_a_page_that_cannot_be_drawn_is_told_before_anything_begins(item, page, words, monkeypatch, tmp_path):
    monkeypatch.setattr(papers, "reproduce", lambda *_: pytest.fail("began"))
    monkeypatch.setattr(earlier, "reproduce", lambda *_: pytest.fail("began"))
    with pytest.raises(BadInput, match=words):
        reproduce.reproduce(item, html=tmp_path / page)
    assert not list(tmp_path.iterdir())


def test_without_joblib_nothing_begins(monkeypatch):
    monkeypatch.setattr(papers, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"needs joblib.*pip install 'fedweave\[papers\]'"):
        papers.reproduce("fedaware/fig8/hybrid", "smoke", lambda done, total: pytest.fail("began"))
