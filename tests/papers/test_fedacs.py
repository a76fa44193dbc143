"""FedACS's figures at smoke scale: the claims that do not need more, and the program that prints them."""

import json
import subprocess
import sys

import pytest

from fedweave import papers
from fedweave.settings import BadInput


def test_figure4_only_fedacs_reaches_the_optimum():
    outcome = papers.reproduce("fedacs/fig4", "smoke")
    assert {claim.verdict for claim in outcome.claims} == {"confirmed"}
    assert len(outcome.rows) == 15


def test_figure7_settles_on_the_closed_forms():
    outcome = papers.reproduce("fedacs/fig7", "smoke")
    landing = [claim for claim in outcome.claims if "closed-form" in claim.text]
    assert [claim.verdict for claim in landing] == ["confirmed", "confirmed"]
    closed = {row["method"]: row["closed_form"] for row in outcome.rows if row["world"] == "static"}
    assert closed["fedacs"] < closed["fednova"] < closed["c-a-fedavg"] < closed["fedavg"]
    assert closed["fedvarp"] == pytest.approx(closed["c-a-fedavg"])
    assert closed["os"] == pytest.approx(closed["fedavg"])


def test_the_command_prints_the_verdicts():
    command = [sys.executable, "-m", "fedweave", "reproduce", "fedacs/fig4", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["item"] == "fedacs/fig4"
    assert all(claim["verdict"] in ("confirmed", "not confirmed") for claim in found["claims"])


def test_an_unknown_item_names_the_nearest():
    with pytest.raises(BadInput, match="fedacs/fig7"):
        papers.reproduce("fedacs/fig77")
