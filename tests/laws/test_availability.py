"""Where few clients are there, or none, every method asks whom it can, draws by its law, and goes on."""

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave.runs.method_names import method_names, parse

CLIENTS, DRAWS, DIM = 6, 3, 4
METHODS = {name: parse(name, DRAWS) for name in method_names()} | {
    "fixed": fw.Method(fw.sample.Fixed((0.3, 0.1, 0.1, 0.2, 0.2, 0.1), DRAWS))
}
SAMPLERS = {str(method.sampler): method.sampler for method in METHODS.values()}
THERE = ["111111", "000000", "000100", "110000", "111111", "000000", "000000", "101011", "000001", "011110"]


def clients(there):
    available = np.array([c == "1" for c in there])
    samples = np.array([5, 9, 20, 40, 7, 31])
    columns = {"weight": samples / samples.sum(), "samples": samples, "steps": np.arange(1, 7), "batch_size": 5}
    links = {"latency": np.linspace(20, 40, 6), "loss_rate": np.linspace(0, 0.5, 6), "model_bytes": 4 * DIM}
    rates = {"up_rate": np.linspace(10.0, 60.0, 6), "down_rate": np.full(6, 100.0)}
    return worlds.equal_clients(CLIENTS, available=available, **columns, **links, **rates)


def answers(cohort, rng):
    """Return what a cohort answers; one in four is lost."""
    k = cohort.ids.size
    measured = {name: rng.random(k) + 0.1 for name in ("loss", "first_gradient", "seconds", "variance", "squared_loss")}
    updates = rng.standard_normal((k, DIM)).astype(np.float32)
    return worlds.replies(updates, rng.random(k) < 0.75, first_loss=np.ones(k), **measured)


@pytest.mark.parametrize("name", SAMPLERS)
def test_cohorts_are_distinct_clients_that_are_there_drawn_by_the_law(name):
    """E[count] is zero for whoever is away, and sums to the number of draws: none where nobody is there."""
    sampler, rng = SAMPLERS[name], np.random.default_rng(0)
    state = sampler.init(clients("111111"))
    rows = rng.standard_normal((CLIENTS, DIM)).astype(np.float32)
    probes = worlds.Probes(updates=rows, gradients=rows, variances=np.ones(CLIENTS), losses=np.ones(CLIENTS))
    for round, there in enumerate(THERE, 1):
        view = worlds.view(clients(there), DIM, round=round, probes=probes)
        available = view.population.available
        law, cohort = sampler.law(state, view), sampler.draw(state, view, rng)
        assert (np.diff(cohort.ids) > 0).all()
        assert available[cohort.ids].all()
        assert (cohort.count >= 1).all()
        assert (cohort.ids.size > 0) == available.any()
        if sampler.law_known:
            assert np.allclose(cohort.expected, law[cohort.ids])
            assert not law[~available].any()
            assert (law >= 0).all()
            if not isinstance(sampler, fw.sample.Tiers):  # whose tiers differ in size
                assert law.sum() == pytest.approx(cohort.count.sum())
        state = sampler.learn(state, view, cohort, answers(cohort, rng))


def test_the_patterns_have_empty_rounds_and_rounds_with_too_few():
    counts = [there.count("1") for there in THERE]
    assert counts.count(0) == 3
    assert sum(0 < count < DRAWS for count in counts) == 3


SCARCE = fw.system.DayNight(  # a day of two rounds in which few are there, and a night without anybody
    fw.system.OnOff(fw.system.Devices(loss_rate=(0.0, 0.4)), up=2, down=3), period=3, share=2 / 3, spread=0
)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_on_through_rounds_with_few_clients_or_none(name, tiny):
    counts = []
    clock = 0.0
    for state, happened in fw.rounds(tiny(METHODS[name], system=SCARCE, rounds=4, steps=1, seed=5)):
        available, cohort = happened.view.population.available, happened.cohort
        assert np.isfinite(state.x).all()
        if METHODS[name].pacing.overlaps:  # those who answer may have left since
            assert state.clock >= clock
        else:
            assert available[cohort.ids].all()
            assert (state.clock > clock) == available.any(), "without anybody no time passes"
            assert (happened.bytes_down > 0) == available.any()
        clock = state.clock
        counts.append(int(available.sum()))
    assert 0 in counts
    assert any(0 < count < DRAWS for count in counts)
