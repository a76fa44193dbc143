"""Testbeds without real ones: who may have one, how a link is shaped, and what stands in for it."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedweave as fw
from fedweave import papers
from fedweave.core.settings import BadInput
from fedweave.fleet.local import testbed
from fedweave.fleet.local.rehearsal import client_of
from fedweave.fleet.local.testbed import Link, Testbed
from fedweave.fleet.local.throttled import ThrottledGrid
from fedweave.fleet.server.app import run
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.method import Method
from fedweave.papers.common.record import Record
from fedweave.papers.common.recorded import read_recorded
from fedweave.papers.common.study import Outcome
from fedweave.papers.feddd.testbed import REAL, STAND_IN, Shaped, beside_transfer, is_real
from fedweave.sample import Everyone
from fedweave.upload import DifferentialDropout

ROOT = Path(__file__).parents[2]
PLAIN = fw.Experiment(
    method=Method(Everyone(), name="fedavg"), data="digits", partition=fw.partition.IID(4), model="mlp", rounds=2
)
RATE = 1e5
LINKS = [Link(up=r, down=40 * r) for r in (RATE, RATE, RATE / 10, RATE)]


@pytest.fixture
def nobody(monkeypatch):
    """We are not root."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    testbed.refusal.cache_clear()
    yield
    testbed.refusal.cache_clear()


@pytest.mark.skipif(not testbed.shutil.which("tc"), reason="without iproute2 that is what is said")
def test_who_is_not_root_is_told_so_and_gets_a_stand_in(nobody):
    with pytest.raises(BadInput, match="must be root: run it with sudo"):
        Testbed(LINKS)
    study = papers.studies()["feddd/fig8/testbed/iid"]
    assert not is_real("laptop")
    for scale in ("laptop", "paper"):
        assert STAND_IN in study.settings(scale)["transport"]
    assert not any(trial.real for trial in study.arms("laptop").values())


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_what_the_stand_in_measures_is_not_called_real(nobody, scale):
    """And no claim about real nodes is judged by it, which the notes on the terminal say."""
    study, seconds = papers.studies()["feddd/fig8/testbed/iid"], np.array([9.0, 8.0, 8.0])
    rounds = {"seconds": seconds, "simulated_seconds": seconds, "accuracy": seconds / 10, "bytes_up": seconds}

    def outcome(transport):
        runs = [Record(rounds, values={"transport": transport, "compute_seconds": 1.0})]
        return Outcome(study, scale, {"paper": dict.fromkeys(("fedavg", "feddd"), runs)})

    assert [row["real over simulated"] for row in outcome(STAND_IN).rows()] == ["—", "—"]
    assert [row["real over simulated"] for row in outcome(REAL).rows()] == ["1", "1"]
    judged = [judged.evidence for judged in outcome(STAND_IN).judged()]
    assert (judged == ["a stand-in ran"] * 3) == (scale == "laptop")
    said = outcome(STAND_IN).notes[-1]
    assert STAND_IN in said
    assert ("No real nodes ran: " in said) == (scale == "laptop")


RECORDED = read_recorded(ROOT / "results/feddd-fig8-testbed-iid.laptop.json")
NAMES = {"FedAvg": "fedavg", "FedDD": "feddd", "FedCS": "fedcs", "Oort": "oort", "latency-optimal": "latency_optimal"}


@pytest.mark.parametrize(("which", "measure"), [("Real", "round, s"), ("Simulated", "simulated round, s")])
def test_the_orders_that_the_page_states_are_those_of_the_record(which, measure):
    (stated,) = re.findall(rf"^- {which}: (.+)\.$", (ROOT / "docs/testbed.md").read_text(), re.MULTILINE)
    methods, seconds = zip(*re.findall(r"([\w-]+) ([\d.]+) s", stated), strict=True)
    found = {method: value for method, (value,) in RECORDED.measures["paper"][measure].items()}
    assert [NAMES[name] for name in methods] == sorted(found, key=lambda method: found[method])
    assert [float(s) for s in seconds] == [round(value, 1) for value in sorted(found.values())]


def test_without_its_tools_there_is_none(monkeypatch):
    monkeypatch.setattr(testbed.shutil, "which", lambda tool: None)
    assert "needs ip and tc" in testbed.refusal.__wrapped__()


def test_a_delay_is_netems_and_refused_without_it(monkeypatch):
    done = []

    def do(*command):
        done.append(" ".join(command))
        if "netem" in command:
            raise BadInput("there is none.")

    monkeypatch.setattr(testbed, "_do", do)
    testbed.shape("s", "eth0", 8e6)
    assert done == ["tc -n s qdisc add dev eth0 root handle 1: tbf rate 8000000bit burst 16000 latency 1s"]
    with pytest.raises(BadInput, match=r"leave 'delay' out\. there is none"):
        testbed.shape("s", "eth0", 8e8, delay=0.05)
    assert "burst 1000000 " in done[1], "ten milliseconds"
    assert "parent 1:1 netem delay 50000us" in done[2]


def on_stand_in(experiment, links=LINKS, compute=1.0):
    clock = VirtualClock()
    grid = ThrottledGrid(client_of(experiment), links, clock, compute=compute)
    return run(replace(experiment, system=fw.system.Measured()), grid, Terms(poll_seconds=0.001), clock=clock)


@pytest.fixture(scope="module")
def whole():
    return on_stand_in(PLAIN)


def test_an_answer_of_the_stand_in_comes_when_its_bytes_would_have(whole):
    """8 · bytes / rate both ways and a second of computing; a request is the model and a few hundred bytes more."""
    rows, size = whole.clients, 4 * whole.manifest["model"]["dim"]
    up, down = (np.array([getattr(link, way) for link in LINKS])[rows["client"].astype(int)] for way in ("up", "down"))
    at_least = 1 + 8 * size / down + 8 * rows["bytes_up"] / up
    assert (rows["seconds"] >= at_least).all()
    np.testing.assert_allclose(rows["seconds"], at_least + 8 * 700 / down, atol=8 * 700 / down.min() + 0.002)
    assert beside_transfer(rows, Shaped(tuple(up[:4]), tuple(down[:4]), 0)) == pytest.approx(1, abs=0.02)


def test_the_stand_in_trains_as_the_simulator_does(whole):
    simulated = fw.run(replace(PLAIN, system=Shaped((1.0,) * 4, (1.0,) * 4, 0)))
    assert whole.summary["digest"] == simulated.summary["digest"]


def test_feddd_learns_the_slow_link_of_the_stand_in(whole):
    """As on real nodes (tests/faults): the slow one's dropout is the maximum, and rounds are less than half as long."""
    feddd = DifferentialDropout(refresh=1)
    less = on_stand_in(replace(PLAIN, rounds=3, method=Method(Everyone(), upload=feddd, name="feddd")))
    last = less.clients["round"] == 3
    sent = less.clients["bytes_up"][last] / whole.clients["bytes_up"].max()
    assert sent[2] == pytest.approx(1 - feddd.max_rate, abs=0.06)
    assert less.rounds["seconds"][-1] < 0.5 * whole.rounds["seconds"].min()
