"""Devices and links are drawn apart, by named distributions; the seconds of a round are worked out by hand."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import lognorm, pareto, uniform

import fedweave as fw
from fedweave.core.settings import BadInput
from fedweave.sample.fedcs import link_seconds
from fedweave.solve import dropout_plan
from fedweave.system import Devices, Jittered, Spread
from fedweave.upload import DifferentialDropout
from worlds import cohort, equal_clients, replies, view

MEGABYTE = 1_000_000
EVEN = {"step_seconds": 0.2, "up_mbit": 2, "down_mbit": "8"}  # one number is the same for all


def base(n, **fields):
    return equal_clients(n, **({"steps": 5, "model_bytes": MEGABYTE} | fields))


LAWS = [
    (Spread("lognormal", 3.0, 0.7), lognorm(0.7, scale=3.0)),
    (Spread("uniform", 2.0, 5.0), uniform(2.0, 3.0)),
    (Spread("pareto", 0.5, 1.5), pareto(1.5, scale=0.5)),
]


@pytest.mark.parametrize(("law", "known"), LAWS, ids=["lognormal", "uniform", "pareto"])
def test_quantiles_are_scipys(law, known):
    u = np.array([1e-9, 0.01, 0.25, 0.5, 0.9, 1 - 1e-9])
    assert np.allclose(law.quantile(u), known.ppf(u), rtol=1e-7)


@pytest.mark.parametrize(("law", "known"), LAWS, ids=["lognormal", "uniform", "pareto"])
@pytest.mark.parametrize("name", ["step_seconds", "up_mbit", "down_mbit"])
def test_clients_follow_the_named_distribution(law, known, name):
    """The share below each quantile is that quantile, within four standard errors."""
    n = 20_000
    p = Devices(**(EVEN | {name: law})).population(base(n), 1, 3)
    values = {"up_mbit": p.up_rate / 1e6, "down_mbit": p.down_rate / 1e6}.get(name)
    if values is None:
        values = (p.latency - 8 / 2 - 8 / 8) / 5
    for q in (0.1, 0.5, 0.9, 0.99):
        assert abs((values <= known.ppf(q)).mean() - q) < 4 * np.sqrt(q * (1 - q) / n)


def test_a_participation_by_hand():
    """Five steps of 0.2 s, a megabyte up at 2 Mbit/s and down at 8 Mbit/s."""
    p = Devices(**EVEN).population(base(3), 1, 0)
    assert np.allclose(p.latency, 1.0 + 4.0 + 1.0, rtol=1e-12)
    assert p.up_rate.tolist() == [2e6] * 3
    assert p.down_rate.tolist() == [8e6] * 3
    assert not p.loss_rate.any()


def test_device_links_and_losses_are_drawn_apart():
    n = 5_000
    usual = {"loss_rate": (0.1, 0.4)}
    p = Devices(**usual).population(base(n), 1, 0)
    compute = p.latency - sum(link_seconds(p))
    columns = np.log([compute, p.up_rate, p.down_rate, p.loss_rate])
    apart = np.corrcoef(columns) - np.eye(4)
    assert np.abs(apart).max() < 4 / np.sqrt(n)
    assert 0.1 <= p.loss_rate.min() < 0.11
    assert 0.39 < p.loss_rate.max() <= 0.4
    slow = Devices(up_mbit="pareto:0.01:1.1", down_mbit=3, **usual).population(base(n), 1, 0)
    assert np.allclose(slow.latency - sum(link_seconds(slow)), compute, rtol=1e-9), "other links, the same devices"
    assert np.array_equal(slow.loss_rate, p.loss_rate)
    lame = Devices(step_seconds="uniform:1:9", **usual).population(base(n), 1, 0)
    assert np.array_equal(lame.up_rate, p.up_rate)
    assert np.array_equal(lame.down_rate, p.down_rate)


def test_devices_belong_to_the_clients_and_the_seed():
    first, later, other = (Devices().population(base(50), *at) for at in ((1, 7), (99, 7), (1, 8)))
    assert np.array_equal(first.latency, later.latency)
    assert not np.array_equal(first.latency, other.latency)
    longer = Devices().population(base(50, steps=10), 1, 7)
    assert np.allclose(longer.latency - first.latency, first.latency - sum(link_seconds(first)))


@pytest.mark.parametrize(
    "given", ["x", "lognormal:1", "lognormal:1:11", "uniform:3:1", "pareto:1:0.01", "1:2", 0, -1, None, "nan", {}]
)
def test_what_is_no_distribution_is_refused(given):
    with pytest.raises(BadInput, match=r"'up_mbit' parameter of Devices must be lognormal:MEDIAN:SIGMA, uniform"):
        Devices(up_mbit=given)


def test_a_model_of_unknown_size_and_a_link_too_slow_are_refused():
    with pytest.raises(BadInput, match="needs the size of the model"):
        Devices().population(replace(base(2), model_bytes=None), 1, 0)
    with pytest.raises(BadInput, match=r"takes at most 1e\+15 s"):
        Devices(step_seconds=1e9).population(base(2, steps=1_000_000, model_bytes=10**12), 1, 0)


def test_a_round_takes_as_long_as_its_slowest_client(tiny):
    """Steps × seconds + 8 × bytes over the rate, both ways, for every row of a run."""
    world = Devices(step_seconds="lognormal:0.1:1", up_mbit="lognormal:0.05:1", down_mbit=0.5)
    whole = fw.run(tiny(fw.methods.fedavg_full(), system=world, rounds=2, epochs=1))
    check_seconds(whole, world, whole.clients["bytes_up"], whole.clients["bytes_up"])
    twice = fw.run(tiny(fw.methods.scaffold(6), system=world, rounds=2, epochs=1))
    assert twice.clients["bytes_up"][0] == 2 * whole.clients["bytes_up"][0]
    check_seconds(twice, world, twice.clients["bytes_up"], twice.clients["bytes_up"])


def check_seconds(result, world, up, down):
    rows, size = result.clients, result.manifest["model"]["dim"] * 4
    p = world.population(base(6, steps=rows["steps"][:6], model_bytes=size), 1, 0)
    step = (p.latency - 8 * size / p.up_rate - 8 * size / p.down_rate) / rows["steps"][:6]
    i = rows["client"]
    by_hand = rows["steps"] * step[i] + 8 * up / p.up_rate[i] + 8 * down / p.down_rate[i]
    assert np.allclose(rows["seconds"], by_hand, rtol=1e-9)
    slowest = [by_hand[rows["round"] == r].max() for r in result.rounds["round"]]
    assert np.allclose(result.rounds["seconds"], slowest, rtol=1e-9)
    assert np.allclose(np.diff(result.rounds["clock"]), slowest[1:], rtol=1e-9)


def test_feddd_plans_with_the_devices_and_links_of_such_a_world():
    """Its plan is the paper's problem with the seconds by hand: 5 steps of 0.2 s, and a megabyte each way."""
    rates = np.array([1.0, 2.0, 4.0, 8.0])
    p = replace(Devices(**EVEN).population(base(4), 1, 0), up_rate=1e6 * rates)
    p = replace(p, latency=1.0 + 8 / rates + 1.0)
    part = DifferentialDropout(unit="seconds", penalty=3.0)
    state = {**part.init(p), "heard": np.ones(1, bool), "loss": np.array([0.5, 1.0, 1.5, 2.0])}
    found = part.allocate(state, view(p, dim=MEGABYTE // 8), cohort(np.arange(4)))
    size, one, worth = np.full(4, 8.0 * MEGABYTE), np.ones(4), 0.25 * np.array([0.5, 1.0, 1.5, 2.0])
    wanted = dropout_plan(size, one, 1e6 * rates, 8e6 * one, worth, part.keep, part.max_rate, 3.0)
    assert np.allclose(found, wanted, atol=1e-9)
    assert all(a >= b for a, b in pairwise(found)), "slow links leave out more"
    assert found.mean() == pytest.approx(1 - part.keep)


def test_latency_optimal_learns_the_mean_of_jittered_seconds():
    world, sampler = Jittered(Devices(**EVEN), compute=0.3, link=0.6), fw.sample.LatencyOptimal(2, trial=1000, memory=1)
    p = base(3)
    state = sampler.init(p)
    seconds = []
    for round in range(1, 5):
        now = world.population(p, round, 0)
        seconds.append(now.latency)
        who = cohort([0, 2])
        heard = replies(np.ones((2, 2), np.float32), seconds=now.latency[[0, 2]])
        state = sampler.learn(state, view(now, round=round), who, heard)
    assert np.allclose(sampler.estimates(state, p.weight).latency, np.mean(seconds, axis=0))
    assert np.ptp(seconds, axis=0).min() > 0.1
