"""FedAWARE and FedMGDA+: the laws of the minimum-norm direction, what is remembered, and what is never done."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave import methods
from fedweave.aggregate import MGDA, Aware, Mean, aware
from fedweave.cli.app import app
from fedweave.core.settings import BadInput
from fedweave.core.spec import build, describe
from fedweave.local.quadratic import Quadratics
from fedweave.method import Method
from fedweave.round import first_state, run_round
from fedweave.sample import Everyone, FirstEveryone, Uniform
from fedweave.solve import min_norm_point
from worlds import quadratic_simulator

N, D = 6, 5
WEIGHT = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
RNG = np.random.default_rng(0)
PULL = RNG.standard_normal((N, D)) + 0.5  # every client's update


def population(n=N, weight=WEIGHT):
    return worlds.equal_clients(n, weight=weight, steps=5)


def view(round=1, dim=D, parameters=None):
    layout = worlds.layout(dim, parameters)
    return worlds.view(population(), dim, round=round, layout=layout)


def heard(aggregator, state, ids, updates, received=None, at=None, dtype=np.float64):
    """Return direction and state after these clients sent these updates."""
    replies = worlds.replies(np.asarray(updates, dtype), received)
    return aggregator.combine(state, at or view(dim=replies.updates.shape[1]), worlds.cohort(ids), replies)


def fresh(aggregator, dim=D):
    return aggregator.init(population(), dim)


EXACT = Aware(0.5, precision="float64")
EVERYBODY = np.arange(N)


def test_the_direction_is_the_shortest_combination_of_everybodys_updates():
    direction, state = heard(EXACT, fresh(EXACT), EVERYBODY, PULL)
    weights, shortest = min_norm_point(PULL)
    assert direction == pytest.approx(shortest, abs=1e-9)
    assert state["weights"] == pytest.approx(weights, abs=1e-6)
    products = PULL @ direction  # KKT: nobody's pull is against it, and it is equal for those that carry it
    assert (products >= direction @ direction - 1e-9).all()
    assert products[state["weights"] > 1e-6] == pytest.approx(direction @ direction, abs=1e-9)


def test_equal_clients_make_it_fedavg():
    same = np.tile(PULL[0], (N, 1))
    for aggregator in (EXACT, replace(EXACT, project=True), replace(EXACT, deviation=0.1)):
        direction, state = heard(aggregator, fresh(aggregator), EVERYBODY, same)
        average, _ = heard(Mean(), {}, EVERYBODY, same)
        assert direction == pytest.approx(average, rel=1e-9)
        assert state["weights"] == pytest.approx(WEIGHT, abs=1e-6)  # and then the weights stay the objective's
    unit, _ = heard(replace(EXACT, unit=True), fresh(EXACT), EVERYBODY, same)
    assert unit == pytest.approx(PULL[0] / np.linalg.norm(PULL[0]), rel=1e-9)


def test_without_memory_and_with_fixed_weights_it_is_fedavg():
    """alpha = 0, full participation, deviation = 0: Σ λ u every round."""
    aggregator, rng = Aware(0.0, deviation=0.0, precision="float64"), np.random.default_rng(1)
    state = fresh(aggregator)
    for _ in range(4):
        updates = rng.standard_normal((N, D))
        direction, state = heard(aggregator, state, EVERYBODY, updates)
        assert direction == pytest.approx(WEIGHT @ updates, abs=1e-12)


def test_momenta_follow_algorithm_1_and_start_with_the_first_update():
    """m ← α m + (1 − α) u for those that answered; m = u at the first answer: no halving."""
    aggregator = Aware(0.25, precision="float64")
    _, state = heard(aggregator, fresh(aggregator), [0, 2], PULL[[0, 2]])
    assert state["momentum"][[0, 2]] == pytest.approx(PULL[[0, 2]])
    _, after = heard(aggregator, state, [1, 2], PULL[[1, 5]])
    expected = np.array([PULL[0], PULL[1], 0.25 * PULL[2] + 0.75 * PULL[5]])
    assert after["momentum"][[0, 1, 2]] == pytest.approx(expected)
    assert after["momentum"].written.tolist() == [True, True, True, False, False, False]
    assert state["momentum"][[2]][0] == pytest.approx(PULL[2])  # the state before is as it was


def test_every_client_may_have_its_own_alpha():
    """m_i ← α_i m_i + (1 − α_i) u_i, unrolled: Σ_s α_i^(visits after s) (1 − α_i) u_s, and α_i^… on the first."""
    alpha = (0.0, 0.1, 0.5, 0.9, 0.3, 0.7)
    own, rng = Aware(alpha, precision="float64"), np.random.default_rng(2)
    state, visits = fresh(own), [[] for _ in range(N)]
    for r in range(8):
        ids = EVERYBODY if r == 0 else np.sort(rng.choice(N, 3, replace=False))
        updates = rng.standard_normal((ids.size, D))
        _, state = heard(own, state, ids, updates)
        for i, u in zip(ids, updates, strict=True):
            visits[i].append(u)
    for i, a in enumerate(alpha):
        k = len(visits[i])
        weights = [(1.0 if s == 0 else 1 - a) * a ** (k - 1 - s) for s in range(k)]
        assert np.sum(weights) == pytest.approx(1)
        assert state["momentum"][np.array([i])][0] == pytest.approx(np.array(weights) @ np.array(visits[i]))
    same = Aware((0.5,) * N, precision="float64")
    assert np.array_equal(heard(same, fresh(same), EVERYBODY, PULL)[0], heard(EXACT, fresh(EXACT), EVERYBODY, PULL)[0])
    with pytest.raises(BadInput, match="one number, or one for each of the 6 clients"):
        fresh(Aware((0.5, 0.5)))


def test_alphas_of_clients_are_kept_with_the_run():
    method = methods.fedaware(2, alpha=(0.1, 0.2, 0.3))
    assert build(Method, json.loads(json.dumps(describe(method))), "method") == method


def test_the_two_beginnings_of_the_method():
    """Everyone in the first round; or groups of K until all were asked, with FedAvg's direction until then."""
    problem = Quadratics.random(7, 3, seed=1)
    found = {}
    for start in ("everyone", "mean"):
        method, weight = methods.fedaware(3, start=start), np.full(7, 1 / 7)
        clients, engine = worlds.equal_clients(7), quadratic_simulator(problem, fw.solvers.SGD(), 0, weight)
        state, asked = first_state(method, np.zeros(3), clients, 3), []
        for _ in range(4):
            before = state.x
            state, happened = run_round(method, state, clients, engine, 0.1, seed=0)
            ids, u = happened.cohort.ids, happened.replies.updates
            is_mean = np.allclose(state.x - before, u.mean(0))
            asked.append((ids.size, is_mean, set(ids.tolist())))
        found[start] = asked
    assert [a[:2] for a in found["everyone"]] == [(7, False), (3, False), (3, False), (3, False)]
    assert [a[:2] for a in found["mean"]] == [(3, True), (2, True), (2, False), (3, False)]
    assert set.union(*(a[2] for a in found["mean"][:3])) == set(range(7))


def test_lost_answers_leave_momenta_and_products_as_they_were():
    _, state = heard(EXACT, fresh(EXACT), EVERYBODY, PULL)
    _, after = heard(EXACT, state, [1, 3, 4], 7 * PULL[[1, 3, 4]], received=[True, False, False])
    assert np.array_equal(after["momentum"][[0, 2, 3, 4, 5]], state["momentum"][[0, 2, 3, 4, 5]])
    same = [0, 2, 3, 4, 5]
    assert np.array_equal(after["gram"][np.ix_(same, same)], state["gram"][np.ix_(same, same)])
    assert after["momentum"][[1]][0] == pytest.approx(4 * PULL[1])


def test_the_gram_matrix_is_that_of_the_momenta_after_any_history():
    rng, state = np.random.default_rng(2), fresh(EXACT)
    for _ in range(12):
        ids = np.sort(rng.choice(N, 3, replace=False))
        _, state = heard(EXACT, state, ids, rng.standard_normal((3, D)), received=rng.random(3) < 0.7)
        table = state["momentum"][EVERYBODY]
        assert state["gram"] == pytest.approx(table @ table.T, abs=1e-12)
        assert np.array_equal(state["gram"], state["gram"].T)


def test_a_round_without_answers_makes_no_step_and_forgets_nothing():
    _, state = heard(EXACT, fresh(EXACT), EVERYBODY, PULL)
    direction, after = heard(EXACT, state, [0, 1], PULL[:2], received=[False, False])
    assert not direction.any()
    assert after is state


@pytest.mark.parametrize("unit", [False, True])
def test_clients_never_heard_from_are_not_in_the_hull(unit):
    """Their zero would be the shortest vector there is: the direction would be zero until they come."""
    aggregator = replace(EXACT, unit=unit)
    direction, state = heard(aggregator, fresh(aggregator), [1, 4], PULL[[1, 4]])
    points = PULL[[1, 4]]
    points = points / np.linalg.norm(points, axis=1, keepdims=True) if unit else points
    assert direction == pytest.approx(min_norm_point(points)[1], abs=1e-9)
    assert np.linalg.norm(direction) > 0.1
    assert not state["weights"][[0, 2, 3, 5]].any()


def test_starting_with_the_mean_is_fedavg_until_everyone_was_heard():
    aggregator = replace(EXACT, start="mean")
    state = fresh(aggregator)
    for ids in ([0, 1], [2, 3], [1, 4]):
        direction, state = heard(aggregator, state, ids, PULL[ids])
        average, _ = heard(Mean(), {}, ids, PULL[ids])
        assert direction == pytest.approx(average)
        assert not aggregator.measure(state, view())
        assert aggregator.surrogate(state) is None
    direction, state = heard(aggregator, state, [5], PULL[[5]])
    assert direction == pytest.approx(min_norm_point(PULL)[1], abs=1e-9)
    assert aggregator.surrogate(state).sum() == pytest.approx(1)


def test_unit_momenta_count_by_direction_alone():
    aggregator, stretch = replace(EXACT, unit=True), np.array([1e-6, 1.0, 30.0, 1e4, 2.0, 1e-3])
    direction, _ = heard(aggregator, fresh(aggregator), EVERYBODY, PULL)
    stretched, _ = heard(aggregator, fresh(aggregator), EVERYBODY, stretch[:, None] * PULL)
    assert stretched == pytest.approx(direction, abs=1e-9)
    raw, _ = heard(EXACT, fresh(EXACT), EVERYBODY, stretch[:, None] * PULL)
    assert np.linalg.norm(raw) <= 1e-6 * np.linalg.norm(PULL[0]) * (1 + 1e-9)  # the shortest momentum bounds it


def test_a_client_that_is_content_stops_raw_momenta_but_not_unit_ones():
    updates = PULL.copy()
    updates[3] = 0
    raw, state = heard(EXACT, fresh(EXACT), EVERYBODY, updates)
    assert not raw.any()
    assert EXACT.measure(state, view())["stalled"] == 1
    unit, state = heard(replace(EXACT, unit=True), fresh(EXACT), EVERYBODY, updates)
    others = np.delete(updates, 3, 0)
    shortest = min_norm_point(others / np.linalg.norm(others, axis=1, keepdims=True))[1]
    assert unit == pytest.approx(shortest, abs=1e-9)
    assert replace(EXACT, unit=True).measure(state, view())["stalled"] == 0


def test_memories_that_begin_at_zero_take_a_share_of_the_first_answer():
    zero = replace(EXACT, alpha=0.25, first="share")
    _, state = heard(zero, fresh(zero), EVERYBODY, PULL)
    assert state["momentum"][EVERYBODY] == pytest.approx(0.75 * PULL)
    _, state = heard(zero, state, [1, 4], 2 * PULL[[1, 4]])
    expected = 0.75 * PULL * np.where(np.isin(EVERYBODY, [1, 4]), 0.25 + 2, 1)[:, None]
    assert state["momentum"][EVERYBODY] == pytest.approx(expected)


def test_projection_is_the_shadow_of_the_mean():
    plain, _ = heard(EXACT, fresh(EXACT), EVERYBODY, PULL)
    long, _ = heard(replace(EXACT, project=True), fresh(EXACT), EVERYBODY, PULL)
    mean = WEIGHT @ PULL
    assert long == pytest.approx((mean @ plain) / (plain @ plain) * plain, abs=1e-9)
    assert np.linalg.norm(long) >= np.linalg.norm(plain)
    assert (mean - long) @ plain == pytest.approx(0, abs=1e-9)
    unit = replace(EXACT, unit=True)  # the mean is of the momenta themselves, whatever lengths the direction ignores
    d, _ = heard(unit, fresh(unit), EVERYBODY, PULL)
    shadow, _ = heard(replace(unit, project=True), fresh(unit), EVERYBODY, PULL)
    assert shadow == pytest.approx((mean @ d) / (d @ d) * d, abs=1e-9)


@pytest.mark.parametrize("room", [0.0, 0.03, 0.2, 1.0])
def test_bounded_deviation_keeps_the_weights_near_the_objective(room):
    aggregator = replace(EXACT, deviation=room)
    direction, state = heard(aggregator, fresh(aggregator), EVERYBODY, PULL)
    assert (np.abs(state["weights"] - WEIGHT) <= room + 1e-9).all()
    assert np.linalg.norm(direction) <= np.linalg.norm(WEIGHT @ PULL) * (1 + 1e-9)
    if room == 0:
        assert direction == pytest.approx(WEIGHT @ PULL)


def test_buffers_follow_the_mean_and_are_no_part_of_the_products():
    """Two parameters and three running averages."""
    at = view(parameters=2)
    direction, state = heard(EXACT, fresh(EXACT), EVERYBODY, PULL, at=at)
    assert direction[:2] == pytest.approx(min_norm_point(PULL[:, :2])[1], abs=1e-9)
    assert direction[2:] == pytest.approx(WEIGHT @ PULL[:, 2:])
    assert state["gram"] == pytest.approx(PULL[:, :2] @ PULL[:, :2].T)
    unit, _ = heard(MGDA(), fresh(MGDA()), EVERYBODY, PULL, at=at)
    assert unit[2:] == pytest.approx(WEIGHT @ PULL[:, 2:])


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_the_products_are_those_of_the_stored_momenta(precision):
    """However coarse they are: the direction is the shortest combination of what is stored."""
    aggregator, updates = Aware(0.5, precision=precision), RNG.standard_normal((N, 400)) + 0.2
    direction, state = heard(aggregator, fresh(aggregator, 400), EVERYBODY, updates)
    table = state["momentum"][EVERYBODY].astype(float)
    assert state["gram"] == pytest.approx(table @ table.T, rel=1e-5)
    assert direction == pytest.approx(min_norm_point(table)[1], abs=1e-5)
    error = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[precision]
    assert np.abs(table - updates).max() < error * np.abs(updates).max()


def test_measures_are_the_papers_formulas_on_the_momenta():
    _, state = heard(EXACT, fresh(EXACT), EVERYBODY, PULL)
    got, lam = EXACT.measure(state, view()), state["weights"]
    square = WEIGHT @ (PULL**2).sum(1)
    mean, step = WEIGHT @ PULL, lam @ PULL
    assert got["memory_diversity"] == pytest.approx(np.sqrt(square / (mean @ mean)))
    assert got["surrogate_diversity"] == pytest.approx(np.sqrt(square / (step @ step)))
    assert got["surrogate_diversity"] >= got["memory_diversity"] >= 1
    assert got["chi_square"] == pytest.approx(((lam - WEIGHT) ** 2 / WEIGHT).sum())
    assert got["shortening"] == pytest.approx(np.linalg.norm(step) / np.linalg.norm(mean))
    assert got["stalled"] == 0


def test_it_descends_for_every_client_on_quadratics():
    """With exact gradients −d lowers every f_i: ⟨d, ∇f_i⟩ ≥ ‖d‖² > 0 away from the Pareto set."""
    problem = Quadratics(np.random.default_rng(3).standard_normal((N, 8)))
    method = Method(Everyone(), aggregator=Aware(0.0, precision="float64"), name="aware")
    engine = quadratic_simulator(problem, method.solver, 0, WEIGHT)
    state = first_state(method, np.full(8, 4.0), population(), 8)
    one_step = replace(population(), steps=np.ones(N, int))
    for _ in range(60):
        before = [problem.value(np.eye(N)[i], state.x) for i in range(N)]
        state, happened = run_round(method, state, one_step, engine, 0.05, 0)
        after = [problem.value(np.eye(N)[i], state.x) for i in range(N)]
        assert np.linalg.norm(happened.direction) > 0
        assert (np.array(after) < np.array(before)).all()


def test_on_quadratics_it_settles_in_the_hull_of_the_optima():
    """Unit curvature: the Pareto set is the hull of the optima, and there the shortest combination is zero."""
    problem = Quadratics(np.random.default_rng(4).standard_normal((N, 3)) + 2)
    method = replace(methods.fedaware(2, 0.5), aggregator=Aware(0.5, precision="float64"))
    engine = quadratic_simulator(problem, method.solver, 0, WEIGHT)
    state = first_state(method, np.zeros(3), population(), 3)
    for _ in range(400):
        state, _ = run_round(method, state, population(), engine, 0.05, 0)
    _, gap = min_norm_point(problem.optimum - state.x)
    assert np.linalg.norm(gap) < 1e-3 * np.linalg.norm(min_norm_point(problem.optimum)[1])


def test_the_first_round_asks_everyone_and_the_others_what_the_sampler_asks():
    method = methods.fedaware(2)
    assert method.sampler == FirstEveryone(Uniform(2))
    engine = quadratic_simulator(Quadratics.random(N, 4), method.solver, 0, WEIGHT)
    state = first_state(method, np.zeros(4), population(), 4)
    asked = []
    for _ in range(4):
        state, happened = run_round(method, state, population(), engine, 0.05, 0)
        asked.append(happened.cohort.ids.size)
    assert asked == [N, 2, 2, 2]
    assert state.aggregator["momentum"].written.all()


def test_mgda_takes_the_shortest_combination_of_unit_updates():
    ids = [0, 2, 5]
    points = PULL[ids] / np.linalg.norm(PULL[ids], axis=1, keepdims=True)
    direction, state = heard(MGDA(), fresh(MGDA()), ids, PULL[ids])
    assert direction == pytest.approx(min_norm_point(points)[1], abs=1e-6)
    assert state["weights"][[1, 3, 4]].tolist() == [0, 0, 0]
    prior = WEIGHT[ids] / WEIGHT[ids].sum()
    average, _ = heard(MGDA(0.0), fresh(MGDA()), ids, PULL[ids])
    assert average == pytest.approx(prior @ points)
    bounded, state = heard(MGDA(0.1), fresh(MGDA()), ids, PULL[ids])
    assert (np.abs(state["weights"][ids] - prior) <= 0.1 + 1e-9).all()
    assert np.linalg.norm(direction) <= np.linalg.norm(bounded) <= np.linalg.norm(average)
    assert MGDA().measure(state, view())["surrogate_diversity"] == pytest.approx(1 / np.linalg.norm(bounded))


def test_mgda_leaves_out_what_has_no_direction():
    updates = PULL[:3].copy()
    updates[1] = 0
    direction, _ = heard(MGDA(), fresh(MGDA()), [0, 1, 2], updates)
    alone, _ = heard(MGDA(), fresh(MGDA()), [0, 2], updates[[0, 2]])
    assert direction == pytest.approx(alone)
    for received, values in (([False, False], PULL[:2]), ([True, True], 0 * PULL[:2])):
        direction, state = heard(MGDA(), fresh(MGDA()), [0, 1], values, received=received)
        assert not direction.any()
        assert np.isnan(MGDA().measure(state, view())["surrogate_diversity"])
        assert MGDA().surrogate(state) is None


@pytest.mark.parametrize("aggregator", [Aware(), MGDA()], ids=str)
def test_products_beyond_float32_lose_the_round_and_nothing_else(aggregator):
    """The direction is not finite, so that run_round abandons the round; it is not a crash, and momenta stay."""
    _, state = heard(aggregator, fresh(aggregator), EVERYBODY, PULL)
    with np.errstate(over="ignore", invalid="ignore"):  # as in a run
        direction, after = heard(aggregator, state, EVERYBODY, 1e30 * PULL, dtype=np.float32)
    assert np.isnan(direction).all()
    if isinstance(aggregator, Aware):
        assert after is state


def test_a_run_that_stalls_says_so(monkeypatch, tmp_path, capsys):
    """Here every direction counts as too short; on the terminal, in the JSON and on the page."""
    monkeypatch.setattr(aware, "STALLED", 2.0)
    options = ["--data", "digits", "--clients", "6", "--per-round", "2", "--rounds", "7", "--workers", "1"]
    with pytest.raises(SystemExit, match="0"):
        app(["compare", "fedaware", "fedavg", *options, "--out", str(tmp_path / "run")])
    told = capsys.readouterr().err
    assert "warning: fedaware, seed 0 has stalled since round 1" in told
    assert "fedavg, seed 0 has stalled" not in told
    assert "Training stalled (1 of 1 of fedaware)" in (tmp_path / "run" / "report.html").read_text()
    with pytest.raises(SystemExit, match="0"):
        app(["run", "fedaware", *options, "--json", "--out", str(tmp_path / "one")])
    assert json.loads(capsys.readouterr().out)["stalled_since"] == 1


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_momenta_on_disk_give_the_same_bits_and_resume(precision, tiny, tmp_path):
    method = replace(methods.fedaware(3), aggregator=Aware(precision=precision))
    whole = fw.run(tiny(method))

    def watch(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(fw.Interrupted):
        fw.run(tiny(method, tables="disk"), tmp_path / "run", watch)
    assert fw.resume(tmp_path / "run").summary["digest"] == whole.summary["digest"]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Aware(alpha=1.0), ["alpha", "less than 1"]),
        (lambda: Aware(deviation=1.5), ["deviation", "1.5"]),
        (lambda: Aware(start="zero"), ["start", "'seen' or 'mean'"]),
        (lambda: Aware(precision="int8"), ["precision", "int8"]),
        (lambda: MGDA(-0.1), ["deviation", "-0.1"]),
        (lambda: FirstEveryone(Uniform(2), rounds=0), ["rounds", "0"]),
    ],
)
def test_bad_settings_are_refused(build, words):
    with pytest.raises(BadInput) as caught:
        build()
    assert all(word in str(caught.value) for word in words)


def test_more_clients_than_their_products_fit_into_memory_are_refused_in_one_sentence():
    everyone = worlds.equal_clients(aware.MOST_CLIENTS + 1)
    with pytest.raises(BadInput, match=r"N² numbers, and takes at most 100,000 clients\. There are 100,001"):
        Aware().init(everyone, D)
