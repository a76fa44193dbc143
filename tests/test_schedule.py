"""Learning rates over rounds: their values by hand and in closed form, and that rounds train with them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord

import fedweave as fw
from fedweave import flower
from fedweave.cli.options import experiments_of
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.runs.plain import from_plain, to_plain
from fedweave.schedule import Cosine, Piecewise, Schedule, Warmup
from flower.plain_app import N, initial, plain
from flower.rehearsal import CLIENTS, app
from flower.rehearsal import experiment as on_digits
from flower.rehearsal import run as run_on
from interrupt import StopAfter


def quadratic(method=None, **changes):
    given = {"data": "quadratics", "rounds": 6, "steps": 1, "workers": 1, **changes}
    return fw.Experiment(method or fw.Method(fw.sample.Everyone()), **given)


def rates(text, rounds, **changes):
    experiment = quadratic(rounds=rounds, lr=text, **changes)
    return [experiment.lr_at(r) for r in range(1, rounds + 1)]


def test_a_change_takes_effect_in_the_round_it_names():
    assert rates("0.1, 0.01@3, 0.001@5", 6) == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert rates("0.25", 2) == [0.25, 0.25]


def test_a_cosine_begins_at_its_start_and_its_halves_mirror_each_other():
    """cos(π − a) = −cos(a): rounds 1 + k and R + 1 − k have the mean of start and floor as their mean."""
    found = rates("cosine:0.1:0.02", 8)
    assert found[0] == pytest.approx(0.1)
    assert found[4] == pytest.approx(0.06)
    assert [found[k] + found[8 - k] for k in range(1, 8)] == pytest.approx([0.12] * 7)
    assert rates("cosine:1", 6) == pytest.approx([math.cos(math.pi * k / 12) ** 2 for k in range(6)])
    assert quadratic(rounds=100_000, lr="cosine:0.1").lr_at(100_000) > 0


def test_a_warm_up_is_a_straight_line_to_any_other_form():
    assert rates("warmup:4, 0.2", 6) == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2, 0.2])
    assert rates("warmup:2, 0.2, 0.1@2", 3) == pytest.approx([0.1, 0.1, 0.1])
    assert rates("warmup:2, cosine:1", 4) == pytest.approx([0.5, *(math.cos(math.pi * k / 8) ** 2 for k in (1, 2, 3))])


class Halving(Schedule):
    def at(self, round, rounds):
        return 0.5**round


@pytest.mark.parametrize(
    "text", ["0.1, 0.01@200", "cosine:0.1:0.001", "warmup:5, 0.1, 0.03333333333333333@7", "warmup:5, cosine:0.1:0.0"]
)
def test_a_schedule_is_kept_as_it_is_written(text):
    experiment = quadratic(quadratic(lr=text).method, lr=text)
    plain = json.loads(json.dumps(to_plain(experiment)))
    assert plain["lr"] == text
    assert from_plain(plain) == experiment
    of_method = quadratic(replace(experiment.method, lr=text))
    assert from_plain(json.loads(json.dumps(to_plain(of_method)))) == of_method
    assert [of_method.lr_at(r) for r in (1, 3, 6)] == [experiment.lr_at(r) for r in (1, 3, 6)], "the method's own wins"


def test_a_number_stays_a_number_and_own_classes_are_tables():
    assert to_plain(quadratic(lr="0.1"))["lr"] == 0.1
    assert to_plain(quadratic(lr=Warmup(3, 0.1)))["lr"] == "warmup:3, 0.1"
    own = fw.settings(Halving)
    assert quadratic(lr=own()).lr_at(3) == 0.125
    assert to_plain(quadratic(lr=Warmup(3, own())))["lr"]["then"]["type"].endswith("Halving")
    with pytest.raises(fw.BadInput, match=r"Halving must be declared with @fedweave\.settings"):
        quadratic(lr=type("Halving", (own,), {})())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("0.1, 0.2", "must be a valid number, or a schedule such as '0.1, 0.01@200'"),
        ("0.1, 0.2@2.5", "a schedule such as"),
        ("0.1 0.2@2", "a schedule such as"),
        ("0.1@2", "a schedule such as"),
        ("cosin:0.1", "a schedule such as"),
        ("0.01:0.1", "a schedule such as"),
        ("warmup:1:2, 0.1", "a schedule such as"),
        ("warmup:2, 0.1@2", "'then' parameter of Warmup must be a valid number, or a schedule such as"),
        ("0.1, 0.2@1", "from 2 on. Got 1"),
        ("0.1, 0.2@9, 0.3@9", "must grow"),
        ("0.1, -1@3", "a schedule such as"),
        ("cosine", "'start' parameter of Cosine is required"),
        ("cosine:0.1:0.2", "above its start, 0.1"),
        ("warmup:3", "valid number"),
        ("warmup:x, 0.1", "'rounds' parameter of Warmup"),
        ({"type": "Cosin"}, "Did you mean 'Cosine'"),
        (None, "valid number"),
    ],
)
def test_what_is_no_learning_rate_is_refused(given, words):
    with pytest.raises(fw.BadInput, match=words.replace(".", r"\.")):
        quadratic(lr=given)


def test_one_step_of_everyone_shrinks_the_error_by_one_minus_the_rate():
    """With one local step of every client x − x* = Π (1 − η_r) (x₀ − x*) on quadratics of curvature 1, exactly."""
    experiment = quadratic(rounds=5, lr="warmup:2, 0.5, 0.25@4")
    (first, *_), states = fw.rounds(replace(experiment, rounds=1, lr=1.0)), [s for s, _ in fw.rounds(experiment)]
    optimum = first[0].x  # reached by one step of length 1
    start = next(iter(fw.rounds(experiment)))[1].view.x
    factors = np.cumprod(1 - np.array([0.25, 0.5, 0.5, 0.25, 0.25]))
    for state, factor in zip(states, factors, strict=True):
        np.testing.assert_allclose(state.x - optimum, factor * (start - optimum), rtol=1e-5, atol=1e-7)


def optima(experiment):
    """Return the optimum of every client: one step of length 1 reaches it."""
    ((_, happened),) = fw.rounds(replace(experiment, method=fw.Method(fw.sample.Everyone()), rounds=1, lr=1.0))
    return happened.view.x + happened.replies.updates


MIFA = fw.Method(fw.sample.Uniform(6), aggregator=fw.aggregate.MIFA(), name="mifa")


@pytest.mark.parametrize("method", [MIFA, fw.methods.scaffold(6)], ids=lambda method: method.name)
def test_clients_under_way_keep_the_rate_of_the_version_they_began_with(method):
    """After one step from x_v both MIFA's server and SCAFFOLD's client know the gradient there, x_v − c_i."""
    method = replace(method, pacing=fw.pacing.Buffered(6, 2))
    experiment = quadratic(method, rounds=10, lr="0.4, 0.2@3, 0.1@5", system="lognormal")
    centres, models, mixed = optima(replace(experiment, system="uniform")), dict[int, np.ndarray](), 0
    for state, happened in fw.rounds(experiment):
        models |= {state.round - 1: happened.view.x, state.round: state.x}
        for client, row in zip(happened.cohort.ids, range(happened.cohort.ids.size), strict=True):
            if happened.replies.received[row]:
                version = state.round - 1 - int(happened.replies.staleness[row])
                mixed += experiment.lr_at(version + 1) != experiment.lr_at(state.round)
                gradient = models[version] - centres[client]
                known = (
                    -state.aggregator["last"][[client]] if method.name == "mifa" else state.clients["memory"][[client]]
                )
                np.testing.assert_allclose(known[0], gradient, rtol=1e-4, atol=1e-5)
    assert mixed > 3, "no answer was asked for at another rate"


def test_a_resumed_run_has_the_same_rates(tmp_path, tiny):
    experiment = tiny(rounds=4, lr="warmup:2, cosine:0.2")
    whole = fw.run(experiment)
    with pytest.raises(fw.Interrupted):
        fw.run(experiment, tmp_path / "run", StopAfter(2))
    assert fw.resume(tmp_path / "run", experiment).summary["digest"] == whole.summary["digest"]
    assert fw.run(replace(experiment, lr=0.2)).summary["digest"] != whole.summary["digest"]


def test_calibration_scales_the_rate_of_the_round():
    """FedAvg by importance sampling is what everybody is calibrated to: its own rate stays."""
    experiment = quadratic(fw.methods.fedavg_is(4), rounds=3, lr="0.4, 0.1@2", calibrate=True)
    assert [happened.lr for _, happened in fw.rounds(experiment)] == pytest.approx([0.4, 0.1, 0.1])


def test_over_flower_the_rate_travels_with_every_request():
    same = on_digits(fw.methods.scaffold(3), lr="0.1, 0.02@3")
    assert run_on(same, flower.LocalGrid(app(), CLIENTS), Terms()).summary["digest"] == fw.run(same).summary["digest"]


def test_a_strategy_goes_by_the_rounds_of_its_start():
    seen = []
    strategy = flower.Strategy(fw.methods.fedavg(N), lr="cosine:0.3", clock=VirtualClock(), fraction_evaluate=0)
    lr = strategy._lr
    strategy._lr = lambda round: seen.append(lr(round)) or seen[-1]
    strategy.start(flower.LocalGrid(plain(), N), initial(), num_rounds=3)
    assert seen == pytest.approx([0.3, 0.225, 0.075])
    own = flower.Strategy(replace(fw.methods.fedavg(N), lr="cosine:0.3"), clock=VirtualClock())
    with pytest.raises(fw.BadInput, match=r"cosine:0\.3:0\.0 depends on the number of rounds"):
        own.configure_train(1, initial(), ConfigRecord(), flower.LocalGrid(plain(), N))


def test_compare_gives_methods_their_own_rates(tmp_path):
    typed = {"lr": "0.1, 0.01@3; fedprox=0.02; fedavgm = cosine:0.3", "data": "quadratics"}
    found, _ = experiments_of(["fedavg", "fedprox", "fedavgm"], typed)
    assert [e.lr for e in found] == [Piecewise(0.1, ((3, 0.01),))] * 3
    assert [e.method.lr for e in found] == [None, 0.02, Cosine(0.3)]
    assert found[1].lr_at(9) == 0.02
    file = tmp_path / "own.toml"
    file.write_text('lr = 0.3\n[method]\nlr = "0.2, 0.1@5"\nsampler = {type = "Uniform", per_round = 3}\n')
    (experiment,), _ = experiments_of([str(file)], {"lr": "0.1; own=0.4"})
    assert (experiment.lr, experiment.rate) == (0.1, 0.4)
    (experiment,), _ = experiments_of([str(file)], {}, ["method.lr=cosine:0.5"])
    assert (experiment.lr, experiment.rate) == (0.3, Cosine(0.5))
    both = fw.compare([e.method for e in found[:2]], replace(found[0], rounds=2, workers=1)).results
    assert both[1].summary["digest"] == fw.run(replace(found[1], rounds=2, lr=7.0)).summary["digest"]
    with pytest.raises(fw.BadInput) as wrong:
        experiments_of(["fedavg", "fedprox"], {"lr": "0.1; fedproxx=0.2; fedavg=x; 0.3"})
    assert "Did you mean 'fedprox'?" in wrong.value.problems[0]
    assert all(problem.startswith("--lr: ") for problem in wrong.value.problems)
    assert len(wrong.value.problems) == 3
