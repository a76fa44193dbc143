"""Clients that attack: who they are, exactly what they send, where that leads, and what robust aggregation is worth."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedweave as fw
import worlds
from fedweave.aggregate import Mean, Robust
from fedweave.core.settings import BadInput
from fedweave.engine.simulator import Simulator
from fedweave.local.adversaries import Backdoor, LabelFlip, Scaling, SignFlip, parse, with_adversary
from fedweave.local.quadratic import Quadratics, QuadraticTrainer
from fedweave.local.solvers import SGD
from fedweave.method import Method
from fedweave.round import first_state, run_round
from fedweave.sample import Everyone
from interrupt import StopAfter
from jobs import jobs_of

N = 10


def test_a_share_of_the_clients_attacks_and_chance_decides_who():
    every = np.array([SignFlip(0.3).attackers(N, seed) for seed in range(300)])
    assert (every.sum(1) == 3).all()
    assert np.abs(every.mean(0) - 0.3).max() < 0.1
    assert np.array_equal(every[5], Backdoor(0.3).attackers(N, 5)), "whatever they do"
    assert np.flatnonzero(SignFlip(clients=(7, 2)).attackers(N, 0)).tolist() == [2, 7]
    assert not SignFlip(0.0).attackers(N, 0).any()
    with pytest.raises(BadInput, match="names client 10, there are 10"):
        SignFlip(clients=(10,)).attackers(N, 0)


@pytest.mark.parametrize(("adversary", "factor"), [(SignFlip, -3.0), (Scaling, 3.0), (Backdoor, 3.0)])
def test_attackers_send_a_multiple_and_the_others_what_they_learned(adversary, factor):
    problem = Quadratics.random(N, 4)
    honest = QuadraticTrainer(problem, SGD(), 0, np.full(N, 1 / N))
    jobs, x = jobs_of(*((c, 3, 1) for c in range(N))), np.ones(4)
    attack = adversary(clients=(1, 6), times=3.0)
    before, after = honest.train(x, jobs), with_adversary(honest, attack, N).train(x, jobs)
    expected = before.updates * np.where(np.isin(np.arange(N), (1, 6)), factor, 1.0)[:, None]
    assert np.array_equal(after.updates, expected)
    assert np.array_equal(after.first_loss, before.first_loss)
    assert with_adversary(honest, None, N) is honest


def test_the_mean_settles_where_the_flipped_signs_lead():
    """Σ_good (e − x) = t Σ_bad (e − x): a fixed point far from the optimum, and none that holds if t·bad ≥ good."""
    problem, bad, t = Quadratics.random(N, 3, seed=2), np.isin(np.arange(N), (0, 4)), 1.5
    sign = np.where(bad, -t, 1.0)
    settles = sign @ problem.optimum / sign.sum()
    x = quadratic_end(problem, SignFlip(clients=(0, 4), times=t), Mean(), 300)
    assert x == pytest.approx(settles, abs=1e-9)
    best, good = problem.optimum.mean(0), problem.optimum[~bad].mean(0)
    assert np.linalg.norm(x - best) > 2 * np.linalg.norm(good - best)
    away = quadratic_end(problem, SignFlip(clients=(0, 4), times=5.0), Mean(), 300)
    assert np.linalg.norm(away) > 100


def quadratic_end(problem, adversary, aggregator, rounds):
    """Return the model after rounds of all clients, two local steps each."""
    weight = np.full(N, 1 / N)
    engine = Simulator(with_adversary(QuadraticTrainer(problem, SGD(), 0, weight), adversary, N))
    method, clients = Method(Everyone(), aggregator=aggregator), worlds.equal_clients(N, steps=2)
    state = first_state(method, np.zeros(3), clients, 3)
    for _ in range(rounds):
        state, _ = run_round(method, state, clients, engine, 0.1, seed=0)
    return state.x


def experiment(digits, aggregator=None, **changes):
    """Return ten even clients of the digits, all of them in every round."""
    method = Method(Everyone(), aggregator=aggregator or Mean(), name="all")
    settings = {"data": digits, "partition": fw.partition.IID(N), "rounds": 15, "epochs": 2, "lr": 0.1, "workers": 1}
    return fw.Experiment(method=method, **(settings | changes))


def test_a_fifth_of_flipped_signs_ruins_the_mean_and_not_the_trimmed_mean(digits):
    attack = SignFlip(0.2, times=5.0)
    alone = fw.run(experiment(digits)).summary["accuracy"]
    ruined = fw.run(experiment(digits, adversary=attack)).summary["accuracy"]
    kept = {
        rule: fw.run(experiment(digits, Robust(Mean(), *rule), adversary=attack)).summary["accuracy"]
        for rule in ((None, 0.2), ("median", 0.2), (None, 0.5))
    }
    assert alone > 0.85
    assert ruined < 0.5
    assert min(kept.values()) > alone - 0.06, kept


def test_flipped_labels_are_those_of_the_attackers_alone():
    data = worlds.image_data((40, 30, 20), classes=4)
    data = fw.data.from_arrays(data.x, data.y, data.test_x, data.test_y, classes=4)
    parts = np.array_split(np.arange(len(data)), 3)
    every = LabelFlip(clients=(1,)).poison(data, parts, 0)
    assert np.array_equal(every.y[parts[1]], 3 - data.y[parts[1]])
    assert np.array_equal(every.y[np.concatenate([parts[0], parts[2]])], data.y[np.concatenate([parts[0], parts[2]])])
    one = LabelFlip(clients=(0, 2), source=1, target=3).poison(data, parts, 0)
    mine = np.concatenate([parts[0], parts[2]])
    assert np.array_equal(one.y[mine], np.where(data.y[mine] == 1, 3, data.y[mine]))
    assert np.array_equal(one.x, data.x)
    with pytest.raises(BadInput, match="both 'source' and 'target'"):
        LabelFlip(source=1)
    with pytest.raises(BadInput, match="needs classes, and those that it names"):
        LabelFlip(source=1, target=4).poison(data, parts, 0)


def test_flipped_labels_cost_accuracy(digits):
    honest, flipped = (fw.run(experiment(digits, rounds=8, adversary=a)) for a in (None, LabelFlip(0.5)))
    assert flipped.summary["accuracy"] < honest.summary["accuracy"] - 0.1


def test_a_trigger_is_stamped_on_the_share_of_samples_that_was_asked(digits):
    attack, parts = Backdoor(clients=(1,), target=7, pixels=2, poisoned=0.25), np.array_split(np.arange(len(digits)), 4)
    found = attack.poison(digits, parts, 0)
    changed = np.flatnonzero((found.x != digits.x).any((1, 2, 3)) | (found.y != digits.y))
    assert np.isin(changed, parts[1]).all()
    stamped = np.flatnonzero((found.x[..., -2:, -2:] == digits.x.max()).all((1, 2, 3)))
    assert np.isin(stamped, parts[1]).sum() >= round(0.25 * parts[1].size)
    assert (found.y[changed] == 7).all()
    assert np.array_equal(found.x[..., :-2, :], digits.x[..., :-2, :])
    test = attack.triggered(digits)
    assert len(test.test_y) == (digits.test_y != 7).sum()
    assert (test.test_x[..., -2:, -2:] == digits.x.max()).all()


def success(result, attack, data):
    """Return the share of test samples of other classes that the trigger turns into the target, by plain torch."""
    test = attack.triggered(data)
    x = (torch.from_numpy(test.test_x).float() / 255 - data.mean[0]) / data.std[0]
    with torch.no_grad():
        return float((result.model().eval()(x).argmax(1).numpy() == attack.target).mean())


def test_a_backdoor_opens_without_being_seen(digits):
    attack = Backdoor(0.2, target=7, times=3.0)
    honest, open_ = (fw.run(experiment(digits, rounds=15, adversary=a)) for a in (None, attack))
    assert success(honest, attack, digits) < 0.3
    assert success(open_, attack, digits) > 0.8
    assert open_.summary["accuracy"] > honest.summary["accuracy"] - 0.1
    robust = fw.run(experiment(digits, Robust(Mean(), "median", 0.2), rounds=15, adversary=attack))
    assert success(robust, attack, digits) < 0.5


def network():
    """Return a network that the kernels do not know, so that its rounds go to the workers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))


def test_attacks_have_the_same_bits_for_any_number_of_workers(tiny):
    adversary = Backdoor(0.4, target=1, times=2.0)
    one, two = (fw.run(tiny(model=network, adversary=adversary, rounds=1, workers=w)).summary for w in (1, 2))
    assert one["digest"] == two["digest"]


def test_attacks_are_kept_with_the_run_and_resumed(tiny, tmp_path):
    adversary = Backdoor(0.4, target=1, times=2.0)
    whole = fw.run(tiny(adversary=adversary, rounds=4))
    assert fw.run(tiny(rounds=4)).summary["digest"] != whole.summary["digest"]

    with pytest.raises(fw.Interrupted):
        fw.run(tiny(data="digits", adversary=adversary, rounds=4), tmp_path / "run", StopAfter(2))
    kept = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert kept["adversary"]["type"] == "Backdoor"
    assert fw.resume(tmp_path / "run").summary["digest"] == whole.summary["digest"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sign-flip:0.2", SignFlip(0.2)),
        ("sign-flip:0.1:5", SignFlip(0.1, times=5.0)),
        ("scaling:0.2:10", Scaling(0.2)),
        ("label-flip:0.3", LabelFlip(0.3)),
        ("backdoor:0.2:7", Backdoor(0.2, target=7)),
    ],
)
def test_written_forms(text, expected):
    assert parse(text) == expected
    assert worlds.experiment(adversary=text).adversary == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sign-flop:0.2", "Did you mean 'sign-flip'"),
        ("sign-flip", "Write sign-flip:SHARE:TIMES"),
        ("label-flip:0.2:3:4", "too many values"),
        ("scaling:2", "'share'"),
    ],
)
def test_malformed_adversaries_name_the_form(text, words):
    with pytest.raises(BadInput, match=words):
        parse(text)


def test_the_data_itself_stays_as_it_was(digits):
    before = digits.digest
    fw.run(experiment(digits, rounds=1, adversary=Backdoor(0.5, target=3)))
    assert replace(digits).digest == before  # computed anew
