"""Items that belong to no paper: their worlds, and theory against rounds written out by hand."""

import numpy as np
import pytest

from fedweave.papers.beyond import participation
from fedweave.papers.beyond.participation import CLIENTS, DIM, LR, METHODS, WORLDS, Walk, fixed_point, problem, settle
from fedweave.papers.common.bounds import population_of
from fedweave.papers.common.ledger import PAPERS, SECTIONS, claims

EQUAL = np.full(CLIENTS, 1 / CLIENTS)


def walked(q, m, x, steps):
    y = x.copy()
    for _ in range(steps):
        y = y - LR * q.curvature[m] @ (y - q.optimum[m])
    return y


def test_absent_clients_keep_their_hours():
    base = population_of(EQUAL, 15)
    there = np.array([WORLDS["absent"].population(base, r, 0).available for r in range(1, 401)])
    assert there.any(1).all(), "somebody is there in every round"
    assert np.allclose(there.mean(0), np.linspace(0.9, 0.2, CLIENTS), atol=1 / 40)
    assert np.array_equal(there[:40], there[40:80])
    turns = np.abs(np.diff(there[:41].astype(int), axis=0)).sum(0)
    assert (turns <= 2).all(), "one stretch a day"
    assert len({tuple(day) for day in there[:40].T}) == CLIENTS


def test_whatever_goes_by_number_goes_by_data():
    q = problem(3)
    assert (np.diff(q.optimum[:, 0]) > 0).all()
    values = np.linalg.eigvalsh(q.curvature)
    assert values.min() >= 0.5
    assert values.max() <= 1.5


# mean weights by FedACS 1.2: links, 1/T; rules that make up for losses have ω
FORMS = {
    ("fedavg",): lambda q, T: 1 - q,
    ("fedacs",): lambda q, T: 1 / T,
    ("fedau", "mifa", "fedawe"): lambda q, T: np.ones(CLIENTS),
}


@pytest.mark.parametrize("names", FORMS, ids=str)
def test_theory_is_where_the_mean_recursion_ends(names):
    """Static world: x ← x + Σ c u(x) with full participation, local steps one by one, until nothing moves."""
    T, q, quadratics = np.arange(1, 40, 2), np.linspace(0.4, 0.02, CLIENTS), problem(1)
    c, x = FORMS[names](q, T), np.zeros(DIM)
    c = c / (c @ T) * 150
    for _ in range(60):
        x = x + sum(c[m] * (walked(quadratics, m, x, T[m]) - x) for m in range(CLIENTS))
    for name in names:
        assert np.allclose(fixed_point(Walk(METHODS[name], 60), WORLDS["static"], 1), x, atol=1e-8)


def test_fedavg_weighs_absent_clients_by_their_hours_and_others_make_up_for_them():
    """Absent world: equal work, so c of FedAvg is the mean share of the draws, 1/(those who are there)."""
    quadratics, arm = problem(2), Walk(METHODS["fedavg"], 1000)
    base = population_of(EQUAL, 15)
    there = np.array([WORLDS["absent"].population(base, r, 0).available for r in range(701, 1001, 7)])
    share = (there / there.sum(1, keepdims=True)).mean(0)
    for name, c in (("fedavg", share), ("fedacs", share), ("mifa", EQUAL), ("fedawe", EQUAL)):
        reach = [np.eye(DIM) - np.linalg.matrix_power(np.eye(DIM) - LR * H, 15) for H in quadratics.curvature]
        pull = np.einsum("n,nij->nij", c, reach)
        by_hand = np.linalg.solve(pull.sum(0), np.einsum("nij,nj->i", pull, quadratics.optimum))
        found = fixed_point(Walk(METHODS[name], arm.rounds), WORLDS["absent"], 2)
        assert np.allclose(found, by_hand, atol=1e-10)
    assert fixed_point(Walk(METHODS["focus"], 60), WORLDS["absent"], 2) is None


def test_a_record_says_where_a_method_settles_and_when_it_arrives(monkeypatch):
    """MIFA in the even world is noiseless and lands on its closed form; FOCUS lands on the optimum."""
    monkeypatch.setattr(participation, "WORLDS", {name: WORLDS[name] for name in ("even", "static")})
    mifa, focus = (settle(Walk(METHODS[name], 250), 0) for name in ("mifa", "focus"))
    assert mifa.values["settles, even"] == pytest.approx(mifa.values["theory, even"], rel=1e-3)
    assert abs(mifa.values["beyond theory, even"]) < 1e-5
    assert focus.values["settles, even"] < 1e-6
    assert focus.values["theory, even"] == 0
    assert np.isnan(focus.values["beyond theory, even"])
    for record in (mifa, focus):
        first = record.values["arrives, even"]
        seen = record.rounds["even"][record.rounds["round"] < first]
        assert seen.min() > participation.CLOSE
        assert record.rounds["even"][-1] <= participation.CLOSE
    assert np.isnan(mifa.values["arrives, static"])


def test_no_paper_is_spoken_for():
    ours = [c for c in claims().values() if c.paper == "beyond"]
    assert set(SECTIONS) - set(PAPERS) == {"beyond"}
    assert all(c.beyond and not c.primary and c.seeds == 10 for c in ours)
    settled = [c for c in ours if c.item == "beyond/participation"]
    assert {arm for c in settled for arm in (c.ours, *c.others)} == set(METHODS)
