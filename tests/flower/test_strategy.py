"""The strategy in an app that already exists: FedAvg's results, other methods by one line, errors that say the way."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array as Packed
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

import fedweave as fw
from fedweave import flower
from fedweave.fleet.server.places import Places
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.fleet.wire.tensors import Tensors, packed
from fedweave.local.torch.flat_module import FlatModule, build_module, initial_vector
from fedweave.runs.factories import model_factory
from fedweave.sample import FirstEveryone, PracticalDelta
from flower.plain_app import SAMPLES, N, initial, plain, pull
from flower.rehearsal import CLIENTS, SlowGrid, app, asked_in, digits, experiment, share


def start(strategy, rounds=3, grid=None, arrays=None, **kwargs):
    return strategy.start(grid or flower.LocalGrid(plain(), N), arrays or initial(), num_rounds=rounds, **kwargs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_fedavg_with_everyone_is_flowers_own(dtype):
    ours, theirs = (
        start(s, arrays=initial(dtype)) for s in (flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock()), FedAvg())
    )
    tolerance = 1e-2 if dtype == np.float16 else 1e-6
    for name, array in theirs.arrays.items():
        assert ours.arrays[name].numpy() == pytest.approx(array.numpy(), rel=tolerance)
        assert ours.arrays[name].dtype == np.dtype(dtype).name
    for r in (1, 2, 3):
        told = ours.train_metrics_clientapp[r]
        assert told["train_loss"] == pytest.approx(theirs.train_metrics_clientapp[r]["train_loss"])
        assert (told["asked"], told["received"], told["refused"]) == (N, N, 0)
        both = [s.evaluate_metrics_clientapp[r]["accuracy"] for s in (ours, theirs)]
        assert both[0] == pytest.approx(both[1])


def test_an_existing_app_gets_fedacs_by_one_line_and_its_clients_their_own_settings():
    """Links are learned: a client that fails half of the time is soon asked more often than one like it."""
    seen = []
    grid = flower.LocalGrid(plain(seen), N, fate=lambda client, m: "raises" if client == 4 and asked_in(m) % 2 else "")
    strategy = flower.Strategy(fw.methods.fedacs(3), clock=VirtualClock())
    from flwr.app import ConfigRecord

    start(strategy, 30, grid, train_config=ConfigRecord({"local-epochs": 2}))
    assert all(config["local-epochs"] == 2 and 1 <= config["server-round"] <= 30 for _, config in seen)
    population = strategy._known.population(np.ones(N, bool))
    place = {node: c for c, node in strategy._places.node.items()}
    ordered = [place[node] for node in grid.nodes]
    assert population.samples[ordered].tolist() == SAMPLES.tolist(), "each one's own num-examples"
    failing = population.loss_rate[ordered]
    assert failing[4] > 0.2 > failing[:4].max()


@pytest.mark.parametrize(("steps", "fine"), [(10, True), (11, False), (2**31, False)])
def test_an_app_cannot_claim_more_steps_than_its_samples_allow(steps, fine):
    """Else one client makes the server compute for hours: efforts of unheard-of numbers of steps."""
    strategy = flower.Strategy(fw.methods.fednova(N), clock=VirtualClock())
    result = start(strategy, 1, flower.LocalGrid(plain(steps=steps), N))
    told = result.train_metrics_clientapp[1]
    assert told["refused"] == (0 if fine else sum(steps > SAMPLES))


@pytest.mark.parametrize("harm", ["cut", "type", "refused"])
def test_whole_numbers_of_a_bad_answer_are_not_passed_on(harm):
    """They are outside of the vector that is checked; the next round would carry them to everyone."""
    good, grid = plain(), flower.LocalGrid(plain(), N)
    first = min(range(N), key=lambda client: grid.nodes[client])  # in the order of the cohort

    def answered(message, node):
        reply = good(message, grid._contexts[node])
        if node == grid.nodes[first] and asked_in(message):
            arrays, name = reply.content["arrays"], "bn.num_batches_tracked"
            count = arrays[name]
            if harm == "cut":
                arrays[name] = Packed(count.dtype, count.shape, count.stype, count.data[:-1])
            if harm == "type":
                arrays[name] = packed(np.array(66, np.int8))
            if harm == "refused":
                arrays[name] = packed(np.array(66))
                arrays["w"] = packed(np.full((2, 3), np.nan, np.float32))
        return reply

    grid._answered = answered
    arrays = ArrayRecord({**initial(), "bn.num_batches_tracked": packed(np.array(0))})
    result = start(flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock()), 2, grid, arrays)
    assert result.arrays["bn.num_batches_tracked"].numpy() == 2


def test_whole_numbers_and_averages_are_not_stepped():
    """Momentum drives parameters on, but not running averages; counts are a client's, not a mean."""
    arrays = ArrayRecord({**initial(), "bn.num_batches_tracked": packed(np.array(0))})
    result = start(flower.Strategy(fw.methods.fedavgm(N, beta=0.5), clock=VirtualClock()), 2, arrays=arrays)
    mean = float(SAMPLES @ [pull(c) for c in range(N)]) / SAMPLES.sum()
    assert result.arrays["b"].numpy() == pytest.approx(mean + 1.5 * mean)
    assert result.arrays["bn.running_mean"].numpy() == pytest.approx(np.full(3, 2 * mean))
    assert result.arrays["bn.num_batches_tracked"].numpy() == 2


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (fw.methods.scaffold, "clients of scaffold keep control variates from round to round"),
        (fw.methods.feddyn, "clients of feddyn keep local gradients"),
        (fw.methods.fedprox, "clients of fedprox train with Prox"),
        (fw.methods.latency_optimal, "latency_optimal needs the 'first-gradient' of every client"),
        (fw.methods.fedacs_measured, "fedacs_measured needs the 'first-gradient'"),
        (fw.methods.feddd, r"clients of feddd encode their updates with DifferentialDropout"),
        (fw.methods.fedpracdelta, "fedpracdelta needs the 'variance' of every client"),
    ],
)
def test_a_method_that_needs_more_of_the_clients_says_so_and_names_the_wrapper(method, says):
    with pytest.raises(fw.BadInput, match=says) as error:
        start(flower.Strategy(method(3), clock=VirtualClock()))
    assert "fedweave.flower.client(model, load_partition)" in str(error.value)


def test_power_of_choice_is_sent_to_the_server_that_can_do_it():
    with pytest.raises(fw.BadInput, match=r"cannot ask clients for their losses .* fedweave\.flower\.server"):
        start(flower.Strategy(fw.methods.power_of_choice(3), clock=VirtualClock()))


def test_a_client_of_ones_own_may_report_what_a_method_needs():
    grid = flower.LocalGrid(plain(steps=7, **{"first-gradient": 0.5}), N)
    result = start(flower.Strategy(fw.methods.fedacs_measured(3), clock=VirtualClock()), grid=grid)
    assert result.train_metrics_clientapp[3]["received"] >= 1


@pytest.mark.parametrize("method", [fw.methods.scaffold, fw.methods.feddyn, fw.methods.focus, fw.methods.fedprox])
def test_with_our_clients_every_method_gives_the_simulators_bits(method):
    same = experiment(method(3), rounds=3, epochs=1, steps=None, batch_size=20, lr=0.05)
    name, model = model_factory(same, digits())
    tensors = Tensors.of_layout(FlatModule(build_module(model, 0)).layout)
    arrays = tensors.record(initial_vector(build_module(model, 0)))
    strategy = flower.Strategy(method(3), lr=0.05, epochs=1, batch_size=20, clients=CLIENTS, clock=VirtualClock())
    result = start(strategy, 3, flower.LocalGrid(app(), CLIENTS, bytes=True), arrays)
    x = np.empty(tensors.layout.dim, np.float32)
    tensors.read(result.arrays, x)
    assert np.array_equal(x, fw.run(same).x), name
    assert 0 <= result.evaluate_metrics_clientapp[3]["accuracy"] <= 1


def test_clients_of_ones_own_go_on_from_their_own_models_under_fedawe():
    """They send whole models; the server knows where each began, and counts its step once for a round of absence."""
    seen = []
    strategy = flower.Strategy(fw.methods.fedawe(2), fraction_evaluate=0, clock=VirtualClock())
    result = start(strategy, 8, flower.LocalGrid(plain(seen), N))
    own, last, x = np.zeros(N), np.zeros(N), 0.0
    for r in range(1, 9):
        ids = np.array([client for client, config in seen if config["server-round"] == r])
        arrived = own[ids] + (r - last[ids]) * [pull(c) for c in ids]
        x = SAMPLES[ids] @ arrived / SAMPLES[ids].sum()
        own[ids], last[ids] = x, r
    assert len(set(last)) > 2
    assert result.arrays["b"].numpy() == pytest.approx(x, rel=1e-5)


def test_our_clients_also_serve_methods_that_need_but_numbers_of_them():
    _, model = model_factory(experiment(), digits())
    arrays = ArrayRecord({n: packed(t.numpy()) for n, t in build_module(model, 0).state_dict().items()})
    method = replace(fw.methods.fedpracdelta(CLIENTS), sampler=FirstEveryone(PracticalDelta(CLIENTS)))
    result = start(flower.Strategy(method, clock=VirtualClock()), 1, flower.LocalGrid(app(), CLIENTS), arrays)
    assert result.train_metrics_clientapp[1]["received"] == CLIENTS
    samples = np.array([len(share(c).x) for c in range(CLIENTS)])
    steps = np.average(np.ceil(samples / 32), weights=samples)
    assert result.train_metrics_clientapp[1]["steps"] == pytest.approx(steps), "one pass each, of its own samples"
    assert result.train_metrics_clientapp[1]["variance"] > 0


def test_failures_are_told_by_the_message_they_answer_and_count_for_nothing():
    """The server itself answers for a node that is gone, under its own id."""
    grid = flower.LocalGrid(plain(), N, fate=lambda client, m: ("raises", "dead", "silent", "", "")[client])
    strategy = flower.Strategy(fw.methods.fedavg(N), fraction_evaluate=0, clock=VirtualClock())
    result = start(strategy, 1, grid, timeout=5)
    place = {node: c for c, node in strategy._places.node.items()}
    assert strategy._known.seen["heard"][[place[n] for n in grid.nodes]].tolist() == [0, 0, 0, 1, 1]
    mean = (40 * pull(3) + 50 * pull(4)) / 90
    assert result.arrays["b"].numpy() == pytest.approx(mean)


def test_a_bad_answer_does_not_reach_the_model():
    def poison(message, context):
        reply = plain()(message, context)
        if asked_in(message) or message.metadata.message_type == "train":
            reply.content["arrays"]["w"] = packed(np.full((2, 3), np.nan, np.float32))
        return reply

    grid = flower.LocalGrid(plain(), N)
    honest = grid._answered
    grid._answered = lambda m, node: poison(m, grid._contexts[node]) if node == grid.nodes[0] else honest(m, node)
    result = start(flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock()), 1, grid)
    assert result.train_metrics_clientapp[1]["refused"] == 1
    assert np.isfinite(result.arrays["w"].numpy()).all()
    assert result.arrays["b"].numpy() == pytest.approx(SAMPLES[1:] @ [pull(c) for c in range(1, N)] / SAMPLES[1:].sum())


@pytest.mark.parametrize(("max_length_ratio", "refused"), [(1000.0, 1), (None, 0)])
def test_an_update_that_is_far_too_long_is_refused(max_length_ratio, refused):
    grid = flower.LocalGrid(plain(), N)
    honest = grid._answered

    def giant(message, node):
        reply = honest(message, node)
        if node == grid.nodes[0] and message.metadata.message_type == "train":
            reply.content["arrays"]["b"] = packed(np.array(1e6, np.float32))
        return reply

    grid._answered = giant
    result = start(
        flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock(), max_length_ratio=max_length_ratio), 1, grid
    )
    assert result.train_metrics_clientapp[1]["refused"] == refused
    assert (abs(result.arrays["b"].numpy()) < 1) == bool(refused)


def test_over_selection_and_seconds_in_flowers_own_loop():
    clock = VirtualClock()
    grid = SlowGrid(clock, lambda client: 50.0 if client == 2 else 1.0 + client, plain(), N)
    strategy = flower.Strategy(
        fw.methods.fedavg(N), terms=Terms(answers=4, poll_seconds=1), fraction_evaluate=0, clock=clock
    )
    result = start(strategy, 1, grid)
    assert clock.now() < 10
    assert result.train_metrics_clientapp[1]["received"] == 4
    place = {node: c for c, node in strategy._places.node.items()}
    seconds = strategy._known.seen["seconds"][[place[n] for n in grid.nodes]]
    assert seconds[[0, 1, 3, 4]] == pytest.approx([1, 2, 4, 5])


def test_it_works_inside_flowers_own_wrappers():
    """Clipping comes before our aggregation: everyone's step has length 0.3 at most."""
    inner = flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock(), fraction_evaluate=0)
    private = DifferentialPrivacyServerSideFixedClipping(
        inner, noise_multiplier=0.0, clipping_norm=0.3, num_sampled_clients=N
    )
    result = start(private, 1, arrays=ArrayRecord({"w": packed(np.zeros(9, np.float32))}))
    assert result.arrays["w"].numpy() == pytest.approx(np.full(9, 0.1)), "‖0.1 (client + 1)‖ of nine values, clipped"


def test_places_are_kept_and_taken_over():
    grid, clock = flower.LocalGrid(plain(), 4), VirtualClock()
    places = Places(grid, Terms(connected=2, start_seconds=5), clock, clients=3)
    a, b, c, d = sorted(grid.nodes)
    grid.online = {a, c}
    assert places.gather().tolist() == [True, True, False]
    grid.online = {a, b, c}
    assert places.gather().tolist() == [True, True, True]
    assert places.node == {0: a, 1: c, 2: b}, "who came later sits behind"
    grid.online = {a, b, c, d}
    assert places.gather().all()
    assert d not in places.node.values(), "a complete fleet takes nobody in"
    grid.online = {b, c, d}
    assert places.gather().tolist() == [True, True, True]
    assert places.node == {0: d, 1: c, 2: b}, "most likely a, started again"
    grid.online = {b}
    with pytest.raises(RuntimeError, match="1 clients are there after 5 s, 2 must be"):
        places.gather()


def test_methods_are_named_as_elsewhere():
    assert flower.Strategy("fedprox").method == fw.methods.fedprox(5)
    with pytest.raises(fw.BadInput, match=r"no method 'fedprx'.*'fedprox'"):
        flower.Strategy("fedprx")
    with pytest.raises(fw.BadInput, match=r"must be a Method, or the name of one\. Got 3"):
        flower.Strategy(3)


def test_bad_arguments_of_apps_are_refused_at_once(tmp_path):
    for call in (lambda: flower.server("fedavg"), lambda: flower.run("fedavg", None)):
        with pytest.raises(fw.BadInput, match=r"must be an Experiment\. Got 'fedavg'"):
            call()
    with pytest.raises(fw.BadInput, match=r"no model 'cnn_smal'.*'cnn_small'"):
        flower.client("cnn_smal", lambda who, of: None)
    with pytest.raises(fw.BadInput, match="no model 3"):
        flower.client(3, lambda who, of: None)
    out = str(tmp_path / "run")
    found = flower.run(experiment(rounds=1), flower.LocalGrid(app(), CLIENTS), out=out)
    assert str(found.folder) == out


def test_bad_settings_are_refused_at_once():
    with pytest.raises(fw.BadInput, match="'lr' parameter"):
        flower.Strategy(fw.methods.fedavg(3), lr=0)
    with pytest.raises(fw.BadInput, match="'fraction_evaluate' parameter"):
        flower.Strategy(fw.methods.fedavg(3), fraction_evaluate=2)


def test_a_server_of_another_framework_does_not_need_torch():
    code = "import sys; from fedweave import flower; flower.Strategy; flower.client; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_old_names_are_still_accepted_with_a_warning():
    with pytest.warns(DeprecationWarning, match="min_answers"):
        assert flower.Terms(fewest=0) == flower.Terms(min_answers=0)
    with pytest.warns(DeprecationWarning, match="max_length_ratio"):
        assert flower.Strategy(fw.methods.fedavg(2), longest=7.0).local.max_length_ratio == 7
