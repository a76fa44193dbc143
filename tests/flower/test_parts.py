"""Partial updates over Flower's grid: the simulator's bits, only what is sent travels, the rest stays where it is."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ArrayRecord

import fedweave as fw
from fedweave import flower
from fedweave.core.records import Layout
from fedweave.core.roles import Aggregator, Solver, System
from fedweave.fleet.client import UPLOAD
from fedweave.fleet.server.app import prepare
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.fleet.wire.request import TrainRequest, client_half, solver_of, upload_of
from fedweave.fleet.wire.seal import sealed
from fedweave.fleet.wire.tensors import Tensors, opened, packed
from fedweave.local.solvers import SGD
from fedweave.local.torch.flat_module import FlatModule, build_module, initial_vector
from fedweave.round import run_round
from fedweave.runs.factories import model_factory
from fedweave.upload import DifferentialDropout
from fedweave.upload.channels import channels_of
from fedweave.upload.wire import decode, encode, encoded_size
from flower.rehearsal import (
    BAD,
    CLIENTS,
    Tampered,
    app,
    asked_in,
    digits,
    experiment,
    fate_of,
    interrupted,
    reasons,
    run,
)

MODEL = "mlp"


@fw.settings
class Radio(System):
    """Links with rates for bytes that lose a third of the answers."""

    def population(self, base, round, seed):
        found = fw.system.Wireless().population(base, round, seed)
        return replace(found, loss_rate=np.full(base.size, 1 / 3))


@fw.settings
class Halving(Solver):
    """Steps of half the length."""

    def begin(self, y):
        return ()

    def direction(self, state, g, y, x, lr, t):
        return g / 2, state


def dropping(refresh=2, keep=0.5, **settings):
    return fw.Method(fw.sample.Everyone(), upload=DifferentialDropout(keep, refresh=refresh, **settings))


def parts(method=None, **changes):
    return experiment(method or dropping(), **({"model": MODEL, "rounds": 6} | changes))


def grid(**kwargs):
    return flower.LocalGrid(app(MODEL), CLIENTS, **kwargs)


@pytest.mark.parametrize("choose", ["importance", "random"])
def test_links_losses_and_full_refreshes_give_the_simulators_bits(choose):
    """Parts of three rounds are kept, all take the whole model after the fourth, and the world's clock counts bytes."""
    same = parts(dropping(4, choose=choose), system=Radio())
    over_flower, simulated = run(same, grid(fate=fate_of(same), bytes=True), Terms(min_answers=0)), fw.run(same)
    assert over_flower.summary["digest"] == simulated.summary["digest"]
    for column in ("client", "received", "loss", "seconds"):
        assert np.array_equal(over_flower.clients[column], simulated.clients[column], equal_nan=True), column
    without = fw.run(replace(same, method=dropping(1, choose=choose)))
    assert without.summary["digest"] != simulated.summary["digest"], "what clients keep does count"


def test_only_what_is_sent_travels_and_the_rest_stays_with_the_client():
    fleet, seen = grid(bytes=True), []
    session = prepare(parts(dropping(100)), fleet, Terms(), VirtualClock())
    channels, state, answered = channels_of(session.engine.layout), session.start, fleet._answered

    def watched(message, node):
        reply = answered(message, node)
        if asked_in(message) == 2:
            seen.append(dict(reply.content.array_records))
        return reply

    fleet._answered = watched
    for r in (1, 2):
        state, happened = run_round(session.experiment.method, state, session.world(r), session.engine, 0.05, 0)
    mask = happened.replies.mask
    assert 0.3 < mask.mean() < 0.7
    for c in range(CLIENTS):
        message = opened("payload", seen[c]["payload"]["payload"])
        assert set(seen[c]) == {"payload"}
        update, kept = decode(channels, message.data)
        assert message.size == encoded_size(channels, kept)
        assert message.size < happened.replies.bytes_up[c] < message.size + 1000
        assert np.array_equal(happened.replies.updates[c], update)
        stays = opened("kept", fleet._contexts[fleet.nodes[c]].state[UPLOAD[1]]["2"])
        assert np.array_equal(np.isnan(stays), mask[c]), "what was sent is the server's from now on"
    table = state.clients["kept"]
    assert table.shape == (CLIENTS, 2), "of the rest the server knows since when, and how much"
    since = np.where(mask.all(1), 0, 2)  # a client that sent everything keeps nothing
    assert np.array_equal(table[np.arange(CLIENTS)], np.stack([since, mask.sum(1)], 1))


def test_what_was_not_sent_is_kept_only_once_the_rest_was_heard():
    """The answers of round 3 are lost on the way: as if those clients had never trained then."""
    fleet, trained = grid(), []
    pull = fleet.pull_messages

    def lossy(ids):
        found = list(pull(ids))
        trained.extend(r for r in found if asked_in(r) == 3)
        return [r for r in found if asked_in(r) != 3]

    fleet.pull_messages = lossy
    everyone = parts(dropping(100), rounds=5)
    on_the_way = run(everyone, fleet)
    assert len(trained) == CLIENTS
    never = grid(fate=lambda c, m: "raises" if asked_in(m) == 3 else "")
    assert on_the_way.summary["digest"] == run(everyone, never).summary["digest"]


def test_a_client_that_lost_its_part_takes_the_whole_model():
    """All forget after round 3: the same as a full refresh then."""
    fleet = grid()
    fleet._fate = lambda client, m: fleet.forget() or "" if asked_in(m) == 4 and client == 0 else ""
    forgetful = run(parts(dropping(100)), fleet)
    refreshed = fw.run(parts(dropping(((1, 100), (3, 3), (4, 100)))))
    assert forgetful.summary["digest"] == refreshed.summary["digest"]
    assert forgetful.summary["digest"] != fw.run(parts(dropping(100))).summary["digest"]


def test_a_server_that_was_stopped_finds_the_parts_where_they_were(tmp_path):
    whole, fleet = parts(dropping(100), rounds=5), grid()
    interrupted(whole, fleet, tmp_path / "run", after=3)
    resumed = run(whole, fleet, out=tmp_path / "run")
    assert resumed.summary["digest"] == fw.run(whole).summary["digest"]


def whole_message():
    layout = FlatModule(build_module(model_factory(parts(), digits())[1], 0)).layout
    channels = channels_of(layout)
    return encode(channels, np.zeros(layout.dim, np.float32), np.ones(channels.count, bool))


def as_part(content):
    return {"payload": packed(np.frombuffer(bytes(content), np.uint8))}


def beyond():
    content = whole_message()
    content[23] |= 128  # 174 channels, and bits for 192
    return content


def fewer():
    content = whole_message()
    content[0] &= 254  # one channel is not there, its values are
    return content


BAD_PARTS = {
    "empty": (lambda: as_part(b""), "sent a payload of 0 bytes instead of"),
    "short": (lambda: as_part(whole_message()[:-1]), r"sent a payload of \d+ bytes instead of"),
    "long": (lambda: as_part(whole_message() + b"0"), r"sent a payload of \d+ bytes instead of"),
    "fewer": (lambda: as_part(fewer()), r"cannot be decoded: A partial update of \d+ channels has \d+ bytes"),
    "beyond": (lambda: as_part(beyond()), "names channels beyond the 174"),
    "numbers": (lambda: {"payload": packed(np.zeros(9, np.float32))}, "which is not bytes"),
    "square": (lambda: {"payload": packed(np.zeros((3, 3), np.uint8))}, "which is not bytes"),
    "names": (lambda: {**as_part(b"1"), "more": packed(np.zeros(1))}, "something else than the payload"),
    "poison": (
        lambda: as_part(whole_message()[:-4] + np.float32(np.nan).tobytes()),
        r"client 2: 1 of \d+ values are not finite",
    ),
}


@pytest.mark.parametrize("case", BAD_PARTS)
def test_a_part_that_cannot_be_is_refused_by_name(case, tmp_path):
    make, why = BAD_PARTS[case]

    def bad(message, context):
        reply = app(MODEL)(message, context)
        if asked_in(message):
            reply.content["payload"] = ArrayRecord(make())
            sealed(reply.content, asked_in(message), BAD)
        return reply

    fleet = Tampered(bad)
    fleet._app = app(MODEL)
    short = parts(dropping(keep=1.0), rounds=2)  # all channels, so that the length is right
    result = run(short, fleet, out=tmp_path / "run")
    refused = reasons(tmp_path / "run")
    assert [r for r, _ in refused] == [1, 2]
    assert all(s.startswith("client 2") and re.search(why, s) for _, s in refused), refused
    lost = grid(fate=lambda client, m: "raises" if client == BAD and asked_in(m) else "")
    assert result.summary["digest"] == run(short, lost).summary["digest"]


def test_both_sides_must_have_the_tensors_in_one_order():
    one = Layout(names=("a", "b"), shapes=((2, 2), (2, 2)), parameters=8)
    request = TrainRequest(1, 0, 0, 1, 1, 0.1, 1.0, client_half(SGD(), DifferentialDropout(), one))
    assert upload_of(request, one) == DifferentialDropout()
    with pytest.raises(fw.BadInput, match="in another order"):
        upload_of(request, Layout(names=("b", "a"), shapes=((2, 2), (2, 2)), parameters=8))


@pytest.mark.parametrize("name", ["os:abort", "antigravity:x", "never_imported:Own", "../evil:x", "Radio"])
def test_a_node_imports_nothing_that_a_server_names(name, tmp_path, monkeypatch):
    """Nor does it take a part of another role for one; what its own app has imported it builds."""
    (tmp_path / "never_imported.py").write_text("import sys\nsys.modules['was_imported'] = sys\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    layout, before = Layout(names=("w",), shapes=((2,),), parameters=2), set(sys.modules)
    half = client_half(Halving(), DifferentialDropout(), layout)
    assert half["solver"]["type"] == f"{__name__}:Halving"
    assert solver_of(TrainRequest(1, 0, 0, 1, 1, 0.1, 1.0, half)) == Halving()
    hostile = TrainRequest(1, 0, 0, 1, 1, 0.1, 1.0, {**half, "solver": {"type": name}, "upload": {"type": name}})
    for read in (solver_of, lambda request: upload_of(request, layout)):
        with pytest.raises(fw.BadInput, match=r"because the server names them: .*\. Import its module in|There is no"):
            read(hostile)
    assert set(sys.modules) == before


def test_what_a_real_fleet_does_not_do_with_parts_is_refused_before_it_begins():
    with pytest.raises(fw.BadInput, match="Sub-models are for the simulator"):
        run(parts(submodels=(0.5, 1.0)))

    @fw.settings
    class Both(Aggregator):
        masks, memory_kind = True, "local gradients"

        def combine(self, state, view, cohort, replies):
            raise AssertionError("never")

    method = fw.Method(fw.sample.Everyone(), fw.local.solvers.Dyn(), Both(), upload=DifferentialDropout())
    with pytest.raises(fw.BadInput, match="Clients that keep local gradients must send whole updates"):
        run(parts(method))


def test_the_strategy_with_our_clients_gives_the_simulators_bits():
    method = dropping(100, unit="seconds")
    same = parts(method, rounds=4, epochs=1, steps=None, batch_size=20, lr=0.05)
    _, model = model_factory(same, digits())
    tensors = Tensors.of_layout(FlatModule(build_module(model, 0)).layout)
    strategy = flower.Strategy(method, lr=0.05, epochs=1, batch_size=20, clients=CLIENTS, clock=VirtualClock())
    result = strategy.start(grid(bytes=True), tensors.record(initial_vector(build_module(model, 0))), num_rounds=4)
    x = np.empty(tensors.layout.dim, np.float32)
    tensors.read(result.arrays, x)
    assert np.array_equal(x, fw.run(same).x)
