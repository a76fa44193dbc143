"""Flower's privacy wrappers and mods around strategy and clients: as around Flower's own, or refused with reason."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from flwr.supercore.privacy_accounting import SamplingMethod

import fedweave as fw
from fedweave import flower
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.fleet.wire.seal import sealed
from fedweave.fleet.wire.tensors import packed
from flower.plain_app import SAMPLES, N, plain
from flower.rehearsal import CLIENTS, app, experiment, flat, network, run, share

CLIP = 0.3
WRAPPERS = {  # around a strategy of so many clients, without noise; and the mod that its clients need
    "server, fixed": (lambda s, n: DifferentialPrivacyServerSideFixedClipping(s, 0.0, CLIP, n), ()),
    "client, fixed": (lambda s, n: DifferentialPrivacyClientSideFixedClipping(s, 0.0, CLIP, n), (fixedclipping_mod,)),
    "server, adaptive": (lambda s, n: DifferentialPrivacyServerSideAdaptiveClipping(s, 0.0, n, CLIP), ()),
    "client, adaptive": (
        lambda s, n: DifferentialPrivacyClientSideAdaptiveClipping(s, 0.0, n, CLIP),
        (adaptiveclipping_mod,),
    ),
}


def strategy(method=None, **options):
    return flower.Strategy(method or fw.methods.fedavg(CLIENTS), clock=VirtualClock(), **options)


def ours(*mods):
    """A ClientApp of ours with these mods."""
    return flower.client("auto", lambda client, clients: share(client), mods=mods, evaluate=True) if mods else app()


@pytest.mark.parametrize("kind", WRAPPERS)
def test_around_a_plain_app_a_wrapper_does_what_it_does_around_flowers_own(kind):
    wrap, mods = WRAPPERS[kind]
    start = ArrayRecord({"w": packed(np.arange(9, dtype=np.float32)), "b": packed(np.zeros(2, np.float32))})
    found = []
    for inner in (strategy(fw.methods.fedavg(N)), FedAvg()):
        grid = flower.LocalGrid(plain(mods=mods), N, bytes=True)
        wrapper = wrap(inner, N)
        found.append((wrapper.start(grid, start, num_rounds=3), wrapper.clipping_norm))
    (result, norm), (theirs, other) = found
    assert flat(result.arrays) == pytest.approx(flat(theirs.arrays), rel=1e-5)
    assert not np.allclose(flat(result.arrays), flat(start))
    assert norm == pytest.approx(other)
    assert (norm != CLIP) == ("adaptive" in kind)
    for r in (1, 2, 3):
        both = [each.train_metrics_clientapp[r]["train_loss"] for each in (result, theirs)]
        assert both[0] == pytest.approx(both[1])


class Noting(flower.LocalGrid):
    """A fleet that notes the models that arrive."""

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        answers = list(super().send_and_receive(messages, timeout=timeout))
        if messages and messages[0].metadata.message_type == "train":
            self.models = [flat(a.content["arrays"]) for a in answers]
            self.samples = [a.content["metrics"]["num-examples"] for a in answers]
        return answers


@pytest.fixture(scope="module")
def clipped():
    """The first model, and what one round with clipped updates of our clients makes of it, written out by hand."""
    grid, start = Noting(app(), CLIENTS), network()
    found = WRAPPERS["server, fixed"][0](strategy(fraction_evaluate=0), CLIENTS).start(grid, start, num_rounds=1)
    steps = np.array(grid.models) - flat(start)
    lengths = np.linalg.norm(steps, axis=1)
    assert (lengths > 2 * CLIP).any(), "else nothing is clipped"
    steps *= np.minimum(1, CLIP / lengths)[:, None]
    by_hand = flat(start) + np.array(grid.samples) @ steps / np.sum(grid.samples)
    return start, by_hand, flat(found.arrays)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_around_our_clients_every_wrapper_clips_their_models(kind, clipped):
    start, by_hand, by_server = clipped
    wrap, mods = WRAPPERS[kind]
    if kind == "server, fixed":
        found = by_server
    else:
        inner, grid = strategy(fraction_evaluate=0), flower.LocalGrid(ours(*mods), CLIENTS, bytes=True)
        found = flat(wrap(inner, CLIENTS).start(grid, start, num_rounds=1).arrays)
    assert found == pytest.approx(by_hand, abs=1e-6)


def test_local_privacy_clips_and_adds_noise_at_the_client(clipped):
    """Without sensitivity there is no noise; with it, the deviation is Flower's √(2 ln(1.25/δ)) s/ε."""
    start, by_hand, _ = clipped

    def trained(sensitivity):
        grid = flower.LocalGrid(ours(LocalDpMod(CLIP, sensitivity, 1.0, 0.1)), CLIENTS, bytes=True)
        result = strategy().start(grid, start, num_rounds=1)
        assert 0 <= result.evaluate_metrics_clientapp[1]["accuracy"] <= 1, "mods go around the training alone"
        return flat(result.arrays)

    assert trained(0.0) == pytest.approx(by_hand, abs=1e-6)
    np.random.seed(0)  # noqa: NPY002 - Flower draws from it
    noise = trained(0.1) - by_hand
    samples = np.array([len(share(c).x) for c in range(CLIENTS)])
    deviation = 0.1 * np.sqrt(2 * np.log(12.5)) * np.linalg.norm(samples / samples.sum())
    assert noise.std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * noise.size))


def test_local_privacy_with_our_own_server():
    """Nobody moves by more than the clip, so the mean of all does not either; without the mod it does."""
    moved = []
    for mods in ((LocalDpMod(0.01, 0.0, 1.0, 0.1),), ()):
        result = run(experiment(fw.methods.fedavg(CLIENTS), rounds=1), flower.LocalGrid(ours(*mods), CLIENTS))
        moved.append(np.linalg.norm(result.x - flat(network())))
    assert moved[0] <= 0.01 * (1 + 1e-5) < moved[1]


@pytest.mark.parametrize("method", [fw.methods.fedavg, fw.methods.scaffold, fw.methods.feddd])
def test_mods_that_only_look_change_no_bit(method):
    found = []
    for mods in ((), (message_size_mod, arrays_size_mod)):
        grid = flower.LocalGrid(ours(*mods), CLIENTS, bytes=True)
        inner = strategy(method(3), clients=CLIENTS, fraction_evaluate=0)
        found.append(flat(inner.start(grid, network(), num_rounds=2).arrays))
    assert np.array_equal(*found)
    assert not np.array_equal(found[0], flat(network()))


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (fw.methods.feddyn, "A mod has changed the update, from which client and server each derive local gradients"),
        (fw.methods.feddd, "LocalDpMod expects the keys in the ArrayRecord of the reply message to match"),
    ],
)
def test_a_mod_that_changes_more_than_a_model_is_refused(method, says, caplog):
    grid = flower.LocalGrid(ours(LocalDpMod(CLIP, 0.0, 1.0, 0.1)), CLIENTS)
    result = strategy(method(3), clients=CLIENTS, fraction_evaluate=0).start(grid, network(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["received"] == 0
    assert says in caplog.text


@pytest.mark.parametrize("method", [fw.methods.fedavg, fw.methods.fedavg_full, fw.methods.fedacs])
def test_one_client_moves_a_clipped_model_by_its_weight(method):
    """What docs/flower.md says of sensitivity: w_i C, with weights that are not those of the plain mean."""
    found, one = [], 4
    for factor in (1.0, 1e-6):  # Flower divides by the length, so that none may be zero
        grid = flower.LocalGrid(plain(), N)
        honest = grid._answered

        def answered(message, node, grid=grid, honest=honest, factor=factor):
            reply = honest(message, node)
            if node == grid.nodes[one]:  # it stays where it was, and is counted as before
                y, x = reply.content["arrays"]["w"].numpy(), message.content["arrays"]["w"].numpy()
                reply.content["arrays"]["w"] = packed(x + np.float32(factor) * (y - x))
            return reply

        grid._answered = answered
        inner = strategy(method(N), fraction_evaluate=0, seed=11)  # FedACS draws it twice
        start = ArrayRecord({"w": packed(np.zeros(9, np.float32))})
        found.append(flat(WRAPPERS["server, fixed"][0](inner, N).start(grid, start, num_rounds=1).arrays))
    cohort = inner._asked.question.assignment.cohort
    place = {node: client for client, node in inner._places.node.items()}[grid.nodes[one]]
    drawn = int(cohort.count[cohort.ids == place].sum())
    weight = drawn / N if method is fw.methods.fedacs else SAMPLES[one] / SAMPLES.sum()
    assert drawn
    assert np.linalg.norm(found[0] - found[1]) == pytest.approx(weight * CLIP, rel=1e-4)
    assert weight * N > 1, "more than in the plain mean"


def test_flowers_accountant_refuses_our_weights():
    accountant = SimpleNamespace(config=SimpleNamespace(sampling_method=SamplingMethod.NO_AMPLIFICATION))
    with pytest.raises(ValueError, match="accounting currently requires a strategy using FedAvg"):
        DifferentialPrivacyServerSideFixedClipping(strategy(), 1.0, CLIP, N, accountant=accountant)


@pytest.mark.parametrize("mod", [secagg_mod, secaggplus_mod])
def test_secure_aggregation_is_refused_with_the_reason(mod, caplog):
    with pytest.raises(fw.BadInput, match=f"{mod.__name__} is the client's half of a protocol"):
        ours(mod)
    grid, start = flower.LocalGrid(plain(mods=[mod]), N), ArrayRecord({"w": packed(np.zeros(9, np.float32))})
    result = strategy(fw.methods.fedavg(N)).start(grid, start, num_rounds=1)
    assert result.train_metrics_clientapp[1]["received"] == 0
    assert np.array_equal(flat(result.arrays), np.zeros(9))
    assert "its app failed: KeyError" in caplog.text


@pytest.mark.parametrize("method", [fw.methods.scaffold, fw.methods.feddyn, fw.methods.feddd, fw.methods.fedawe])
@pytest.mark.parametrize("kind", ["server, fixed", "client, fixed"])
def test_methods_that_exchange_more_than_a_model_are_refused_inside(method, kind):
    wrapper = WRAPPERS[kind][0](strategy(method(3), clients=CLIENTS), 3)
    with pytest.raises(fw.BadInput, match=rf"{method(3).name} cannot be inside of Flower's DifferentialPrivacy"):
        wrapper.start(flower.LocalGrid(app(), CLIENTS), network(), num_rounds=1)


def test_deadlines_are_kept_by_flower_and_early_ends_refused():
    """A wrapper's loop does not know our terms, so the questions themselves expire, for which Flower answers."""
    pushed = []

    class Listening(flower.LocalGrid):
        def push_messages(self, messages):
            pushed.extend(messages := list(messages))
            return super().push_messages(messages)

    wrap = WRAPPERS["server, fixed"][0]
    start = ArrayRecord({"w": packed(np.zeros(9, np.float32))})
    inner = strategy(fw.methods.fedavg(N), terms=Terms(answer_seconds=60), fraction_evaluate=0)
    wrap(inner, N).start(Listening(plain(), N), start, num_rounds=1)
    assert [message.metadata.ttl for message in pushed] == [60] * N
    hasty = strategy(fw.methods.fedavg(N), terms=Terms(answers=2))
    with pytest.raises(fw.BadInput, match="Only start of the strategy itself can close a round early"):
        wrap(hasty, N).start(flower.LocalGrid(plain(), N), start, num_rounds=1)


@pytest.mark.parametrize("harm", ["numbers", "client", "update"])
def test_what_a_wrapper_does_not_change_is_still_sealed(harm):
    """Clipping breaks the digest of the arrays; nothing else may change, and no update may go around the clipping."""
    grid = flower.LocalGrid(app(), CLIENTS)
    honest = grid._answered

    def answered(message, node):
        reply = honest(message, node)
        if node == grid.nodes[2] and message.metadata.message_type == "train":
            content, request = reply.content, int(message.metadata.group_id)
            if harm == "numbers":
                content["metrics"]["num-examples"] = 100_000.0
            elif harm == "client":
                content["seal"]["client"] = 3
            else:
                content["update"] = content.pop("arrays")
                sealed(content, request, -1)
        return reply

    grid._answered = answered
    wrapper = WRAPPERS["server, fixed"][0](strategy(fraction_evaluate=0), CLIENTS)
    told = wrapper.start(grid, network(), num_rounds=1).train_metrics_clientapp[1]
    assert (told["received"], told["refused"]) == (CLIENTS - 1, 1)
