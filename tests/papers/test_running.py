"""How items are run: on one core or on several, from Python or from the command."""

import json

import pytest

from fedweave import papers
from fedweave.cli.app import app
from fedweave.core.settings import BadInput
from fedweave.papers.common import parallel


def test_processes_change_nothing_but_the_time(monkeypatch):
    progress = []
    alone = papers.reproduce("latency/fig3", "smoke", lambda done, total: progress.append((done, total)))
    assert progress == [(n, progress[-1][1]) for n in range(len(progress))]
    monkeypatch.setattr(parallel, "PROCESSES", 2)
    again = []
    beside = papers.reproduce("latency/fig3", "smoke", lambda done, total: again.append((done, total)))
    assert beside.plain() == alone.plain()
    assert again == progress


def test_the_command_prints_the_verdicts(capfd):
    with pytest.raises(SystemExit, match="0"):
        app(["reproduce", "delta/fig3", "--json"])
    found = json.loads(capfd.readouterr().out)  # and nothing else: how far it is goes elsewhere
    assert found == json.loads(json.dumps(papers.reproduce("delta/fig3").plain()))
    assert {claim["verdict"] for claim in found["claims"]} == {"confirmed", "not confirmed"}


def test_without_joblib_nothing_begins(monkeypatch):
    monkeypatch.setattr(papers, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"needs joblib.*pip install 'fedweave\[papers\]'"):
        papers.reproduce("latency/fig3", "smoke", lambda done, total: pytest.fail("began"))
