"""Clients who come later: every method takes them in, or says why not, as if they had been away from the beginning."""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave.local.quadratic import Quadratics
from fedweave.round import first_state, run_round
from fedweave.round.growth import extended, grown, refuse_unknown
from fedweave.round.rules import Rules
from fedweave.runs.method_names import method_names, parse
from fedweave.tables.rows import Rows

BEFORE, AFTER, DIM, ROUNDS = 2, 7, 5, 6  # fewer at first than a round asks
WEIGHT = np.array([5, 9, 20, 40, 7, 31, 12.0])
PROBLEM = Quadratics(np.random.default_rng(0).standard_normal((AFTER, DIM)))


def clients(n, came=AFTER):
    """Return n clients of whom those who have not come are away, without weight."""
    weight = np.where(np.arange(n) < came, WEIGHT[:n], 0)
    there, rates = np.arange(n) < came, {"up_rate": np.full(n, 9.0), "down_rate": np.full(n, 9.0)}
    columns = {"steps": np.arange(1, n + 1), "latency": np.linspace(1, 2, AFTER)[:n], "model_bytes": 8 * DIM}
    found = worlds.equal_clients(n, weight=weight / weight.sum(), available=there, **columns, **rates)
    return replace(found, growing=True)


def run(method, sizes):
    """Do rounds with these populations, whose size may grow on the way."""
    engine = worlds.quadratic_simulator(PROBLEM, method.solver, 0, np.full(AFTER, 1 / AFTER), method.upload)
    state, before = first_state(method, np.zeros(DIM), sizes[0], DIM), sizes[0].size
    for population in sizes:
        state = grown(method, state, population, before, DIM) if population.size > before else state
        before = population.size
        state, _ = run_round(method, state, population, engine, 0.05, 0, rules=Rules(quarantine=3))
    return state


METHODS = {name: parse(name, 3) for name in method_names()}
OVERLAPPING = {name for name, method in METHODS.items() if method.pacing.overlaps}
SUMS = {"scaffold", "feddyn", "focus"}  # a sum over all clients, of which newcomers would change every term


@pytest.mark.parametrize("name", sorted(set(METHODS) - OVERLAPPING))
def test_every_method_takes_newcomers_in_or_says_why_not(name):
    method, few = METHODS[name], [clients(BEFORE)] * (ROUNDS // 2)
    sizes = few + [clients(AFTER)] * (ROUNDS // 2)
    if name in SUMS:
        with pytest.raises(fw.BadInput, match="keeps a sum over all clients, which newcomers would change"):
            run(method, sizes)
        return
    state = run(method, sizes)
    assert np.isfinite(state.x).all()
    wanted = first_state(method, state.x, clients(AFTER), DIM)
    for part in ("sampler", "aggregator", "clients", "upload"):
        shapes = [{name: np.shape(value) for name, value in getattr(s, part).items()} for s in (state, wanted)]
        assert shapes[0] == shapes[1]


SAME = ["fedavg", "fedavgm", "fedadam", "fednova", "fedprox", "fedacs", "fedavg_is", "fedavg_us"]
SAME += ["mifa", "fedvarp", "fedos", "fedmgda", "fedexp"]


@pytest.mark.parametrize("name", SAME)
def test_who_came_later_was_away_without_weight_before(name):
    """Methods whose rules have no N of their own: the bits of a fleet that has empty seats."""
    method, half = METHODS[name], ROUNDS // 2
    growing = run(method, [clients(BEFORE)] * half + [clients(AFTER)] * half)
    seats = run(method, [clients(AFTER, came=BEFORE)] * half + [clients(AFTER)] * half)
    assert np.array_equal(growing.x, seats.x)
    assert growing.x.any()


def test_probabilities_keep_their_proportions_and_newcomers_get_their_share():
    """By hand: of 0.2 and 0.8 two fifths are left to the old ones if five are equal at first."""
    old = {"probability": np.array([0.2, 0.8]), "n": np.ones(1)}
    after = extended(old, {"probability": np.full(5, 0.2), "n": np.zeros(1)})
    assert after["probability"] == pytest.approx([0.08, 0.32, 0.2, 0.2, 0.2])
    assert after["n"] == 1


def test_tables_and_products_get_room():
    old = {"gram": np.arange(4.0).reshape(2, 2), "last": Rows.zeros(2, 3).replaced(np.array([1]), np.ones((1, 3)))}
    after = extended(old, {"gram": np.zeros((3, 3)), "last": Rows.zeros(3, 3)})
    assert after["gram"].tolist() == [[0, 1, 0], [2, 3, 0], [0, 0, 0]]
    assert after["last"].shape == (3, 3)
    assert after["last"].written.tolist() == [False, True, False]
    assert after["last"].replaced(np.array([2]), np.ones((1, 3)))[np.arange(3)].sum(1).tolist() == [0, 3, 3]


def test_who_was_added_has_not_been_absent():
    """FedAU's intervals and FedAWE's echo begin when a client comes: else its first step would count for all rounds."""
    state = first_state(fw.methods.fedawe(3), np.zeros(DIM), clients(BEFORE), DIM)._replace(round=50, x=np.ones(DIM))
    heard = state.aggregator | {"last": np.array([50, 9]), "current": np.array([True, False])}
    after = grown(fw.methods.fedawe(3), state._replace(aggregator=heard), clients(AFTER), BEFORE, DIM).aggregator
    assert after["last"].tolist() == [50, 9, 50, 50, 50, 50, 50]
    own = fw.aggregate.AWE().models(after, np.ones(DIM), np.arange(AFTER))
    assert own.sum(1).tolist() == [DIM, 0, *[DIM] * 5], "the present model, and of the absent client its own"
    au = run(fw.methods.fedau(AFTER), [clients(BEFORE)] * 3 + [clients(AFTER)]).aggregator
    new = np.flatnonzero(au["closed"] > 0)[BEFORE:]
    assert new.size
    assert (au["mean"][new] == 1).all()


def test_parts_that_were_made_for_so_many_clients_say_so():
    fixed = fw.Method(fw.sample.Fixed((0.5,) * BEFORE, 2))
    aware = fw.methods.fedaware(3, alpha=(0.5,) * BEFORE)
    for method, says in ((fixed, "Fixed has 2 probabilities, but there are 7"), (aware, "one for each of the 7")):
        with pytest.raises(fw.BadInput, match=says):
            run(method, [clients(BEFORE), clients(AFTER)])


def test_refusals_are_still_counted():
    state = first_state(fw.methods.fedavg(2), np.zeros(DIM), clients(BEFORE), DIM)
    state = state._replace(refusals={"refused": np.array([0, 2])})
    after = grown(fw.methods.fedavg(2), state, clients(AFTER), BEFORE, DIM)
    assert after.refusals["refused"].tolist() == [0, 2, 0, 0, 0, 0, 0]


def test_sums_by_weight_must_know_all_weights_before_they_begin():
    data = replace(fw.methods.scaffold(3), aggregator=fw.aggregate.Scaffold(weights="data"))
    cached = fw.Method(fw.sample.Uniform(3), aggregator=fw.aggregate.Robust(fw.aggregate.Cached()))
    for method in (data, fw.methods.focus(3), cached):
        with pytest.raises(fw.BadInput, match="samples of all must be known before"):
            refuse_unknown(method, np.array([3, 0]))
        refuse_unknown(method, np.array([3, 1]))
    for method in (fw.methods.scaffold(3), fw.methods.feddyn(3), fw.methods.fedavg(3)):
        refuse_unknown(method, np.array([3, 0]))


@fw.settings
class Diary(fw.sample.Uniform):
    """Remembers how many it asked, round after round, and the answers of each client."""

    def init(self, population):
        return {"asked": np.zeros(0), "visits": np.zeros((3, population.size))}

    def learn(self, state, view, cohort, replies):
        visits = state["visits"].copy()
        visits[0, cohort.ids] += replies.received
        return {"asked": np.append(state["asked"], cohort.ids.size), "visits": visits}


@fw.settings
class Late(Diary):
    """Remembers something only after its first round."""

    def init(self, population):
        return {}

    def learn(self, state, view, cohort, replies):
        return {"asked": np.append(state.get("asked", ()), cohort.ids.size)}


@fw.settings
class Short(Diary):
    """Remembers the visits, which grow with the clients alone."""

    def init(self, population):
        return {"visits": np.zeros((3, population.size))}

    def learn(self, state, view, cohort, replies):
        return {"visits": super().learn(state | {"asked": np.zeros(0)}, view, cohort, replies)["visits"]}


@pytest.mark.parametrize("rounds", [1, BEFORE, AFTER, AFTER + 2], ids=str)
def test_a_state_that_changes_its_shape_is_refused_by_name_before_anyone_trains(rounds):
    """However many entries it has by then, be it as many as there are clients."""
    sizes = [clients(BEFORE)] * rounds + [clients(AFTER)]
    with pytest.raises(fw.BadInput, match=r"^Diary keeps 'asked', which does not have the shape of the first round"):
        run(fw.Method(Diary(2)), sizes)
    state = run(fw.Method(Short(2)), sizes)
    assert state.sampler["visits"].shape == (3, AFTER)
    assert state.sampler["visits"][0].sum() == 2 * (rounds + 1)
    assert state.sampler["visits"][1:].sum() == 0


def test_what_appears_later_is_refused_too():
    with pytest.raises(fw.BadInput, match="Late keeps 'asked', which does not"):
        run(fw.Method(Late(2)), [clients(BEFORE), clients(AFTER)])
