"""FedDD's dropout and the selection of clients in one plan, as parts of a method."""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave.solve import joint_plan
from fedweave.upload.joint import GAP, JointDropout

N, DIM = 8, 1000
UP = np.array([1, 2, 4, 8, 16, 32, 64, 128.0]) * 1e3


@pytest.fixture
def world():
    """Eight clients of equal worth; each has twice the rate of the one before and computes for a second."""
    clients = worlds.equal_clients(N, up_rate=UP, down_rate=np.full(N, 1e9))
    return worlds.view(replace(clients, latency=1 + 64 * DIM / UP + 64 * DIM / 1e9), DIM)


def test_those_are_asked_whom_the_plan_asks_for_what_it_says(world):
    plan = JointDropout(0.5, per_round=4)
    sampler, size = fw.sample.Planned(plan), np.full(N, 64.0 * DIM)
    state = sampler.init(world.population)
    cohort = sampler.draw(state, world, np.random.default_rng(0))
    worth = np.full(N, 1 / N)
    best = joint_plan(size, np.ones(N), UP, np.full(N, 1e9), worth, 0.5 * 4 * size[0], 0.8, 4)
    share = np.zeros(N)
    share[cohort.ids] = 1 - plan.allocate(plan.init(world.population), world, cohort)
    seconds = (1 + share * 64 * DIM / UP)[cohort.ids].max()
    assert worth @ share / seconds >= best.bound / (1 + GAP) ** 2
    assert share.sum() <= 2 * (1 + 1e-9)
    assert cohort.ids.size <= 4
    assert not share[0], "the slowest takes a minute"


def test_who_was_not_heard_for_long_is_asked_however_slow(world):
    """Its worth grows by one contribution a round, that of others does not."""
    plan = JointDropout(0.5, per_round=4)
    sampler = fw.sample.Planned(plan)
    state, heard = sampler.init(world.population), []
    for round in range(1, 60):
        now = replace(world, round=round)
        cohort = sampler.draw(state, now, np.random.default_rng(0))
        heard.append(cohort.ids)
        state = sampler.learn(state, now, cohort, worlds.replies(np.zeros((cohort.ids.size, DIM))))
    times = np.bincount(np.concatenate(heard), minlength=N)
    assert (times > 0).all()
    assert times[-1] > 4 * times[0]


def test_only_those_who_are_there_are_asked(world):
    here = np.arange(N) % 2 == 0
    there = replace(world, population=replace(world.population, available=here))
    sampler = fw.sample.Planned(JointDropout(per_round=4))
    state = sampler.init(world.population)
    assert here[sampler.draw(state, there, np.random.default_rng(0)).ids].all()
    nobody = replace(world, population=replace(world.population, available=np.zeros(N, bool)))
    assert not sampler.draw(state, nobody, np.random.default_rng(0)).ids.size


def test_whole_models_where_bytes_are_no_matter(tiny):
    """Without rates and with all the bytes it wants, nobody leaves anything out."""
    result = fw.run(tiny(fw.methods.feddd_joint(3, keep=1.0), rounds=10))
    assert result.rounds["sent_share"] == pytest.approx(1.0, abs=0.01)
    assert set(result.rounds["asked"].tolist()) <= {1, 2, 3}, "a third one may take longer than it is worth"
    assert np.unique(result.clients["client"]).size == 6, "however few samples they have"
