"""Uploads written outside the package work in the simulator and over Flower, without touching a library file."""

from typing import Annotated, ClassVar

import numpy as np
import pytest
from pydantic import Field

import fedweave as fw
from fedweave import flower
from fedweave.core.records import Cohort, Replies
from fedweave.core.roles import Parcel, Upload
from fedweave.engine.pool.processes import Workers
from fedweave.fleet.server.terms import VirtualClock
from fedweave.round import absorb, first_state, plan, run_round
from fedweave.runs.session import prepare
from fedweave.upload.codec import ClientModel
from flower.plain_app import initial, plain
from flower.rehearsal import CLIENTS, app, experiment, run


@fw.settings
class TopK(Upload):
    """The largest entries of the update, as positions and values; the others count as zero."""

    share: Annotated[float, Field(gt=0, le=1)] = 0.1

    def _count(self, model):
        return max(1, round(self.share * model.layout.dim))

    def size(self, model, budget):
        return self._count(model) * (4 + model.dtype.itemsize)

    def encode(self, update, x, start, budget, kept, rng, model):
        k = self._count(model)
        where = np.sort(np.argsort(-np.abs(update), kind="stable")[:k]).astype("<u4")
        return Parcel(where.tobytes() + update[where].astype(model.dtype.newbyteorder("<")).tobytes())

    def decode(self, payload, model):
        k = self._count(model)
        if len(payload) != self.size(model, None):
            raise fw.BadInput(f"A top-k update has {self.size(model, None)} bytes. Got {len(payload)}.")
        where = np.frombuffer(payload, "<u4", k)
        if where.max() >= model.layout.dim:
            raise fw.BadInput(f"A top-k update names entry {where.max()} of {model.layout.dim}.")
        update = np.zeros(model.layout.dim, model.dtype)
        update[where] = np.frombuffer(payload, model.dtype.newbyteorder("<"), offset=4 * k)
        return update, None


@fw.settings
class PersonalHead(Upload):
    """Clients keep the last ``entries`` of the model to themselves."""

    entries: int = 10
    masks: ClassVar[bool] = True
    keeps: ClassVar[bool] = True

    def size(self, model, budget):
        return (model.layout.dim - self.entries) * model.dtype.itemsize

    def encode(self, update, x, start, budget, kept, rng, model):
        own = np.where(np.arange(update.size) < update.size - self.entries, np.nan, x + update)
        return Parcel(update[: -self.entries].tobytes(), own.astype(model.dtype))

    def decode(self, payload, model):
        body, sent = np.frombuffer(payload, model.dtype), np.arange(model.layout.dim) < model.layout.dim - self.entries
        return np.append(body, np.zeros(self.entries, model.dtype)), sent


UPLOADS = {"top-k": TopK(0.2), "personal head": PersonalHead()}


@pytest.mark.parametrize("upload", UPLOADS.values(), ids=UPLOADS)
def test_an_own_upload_gives_the_same_bits_in_workers_and_over_flower(upload):
    method = fw.Method(fw.sample.Uniform(4), upload=upload, name="own")
    given = experiment(method, rounds=3)
    simulated = fw.run(given)
    assert simulated.summary["digest"] == fw.run(experiment(method, rounds=3, workers=2)).summary["digest"]
    over_flower = run(given, flower.LocalGrid(app(), CLIENTS))
    assert over_flower.summary["digest"] == simulated.summary["digest"]
    assert (
        simulated.summary["digest"] != fw.run(experiment(fw.Method(fw.sample.Uniform(4)), rounds=3)).summary["digest"]
    )


@pytest.mark.parametrize("wrap", [lambda inner: inner, fw.upload.ErrorFeedback], ids=["alone", "with feedback"])
def test_an_own_top_k_is_the_librarys_top_k(wrap):
    """Both send the same entries, with other positions in their messages; error feedback takes either."""
    runs = [fw.run(experiment(rounds=3, upload=wrap(codec(0.2)))) for codec in (TopK, fw.upload.TopK)]
    assert runs[0].summary["digest"] == runs[1].summary["digest"]
    assert runs[0].summary["bytes_up"] > runs[1].summary["bytes_up"]


@pytest.mark.parametrize("upload", UPLOADS.values(), ids=UPLOADS)
def test_bytes_up_are_those_of_the_payload(upload):
    given = experiment(fw.Method(fw.sample.Everyone(), upload=upload), rounds=2)
    result = fw.run(given)
    layout = prepare(given, Workers(1)).engine.layout
    wanted = upload.size(ClientModel(layout), None)
    assert (result.clients["bytes_up"] == wanted).all()
    assert wanted < 4 * layout.dim


def test_personal_heads_never_reach_the_server_and_are_where_clients_go_on():
    given = experiment(fw.Method(fw.sample.Everyone(), upload=PersonalHead()), rounds=2)
    session = prepare(given, Workers(1))
    state, dim = session.start, session.start.x.size
    for r in (1, 2):
        before = state
        state, happened = run_round(session.method, state, session.world(r), session.engine, 0.05, 0)
        assert not happened.direction[-10:].any()
        assert np.array_equal(state.x[-10:], session.start.x[-10:])
        own = state.clients["kept"][np.arange(CLIENTS)]
        assert np.isnan(own[:, : dim - 10]).all()
        assert np.isfinite(own[:, dim - 10 :]).all()
        assert not np.array_equal(own[:, dim - 10 :], np.tile(before.x[-10:], (CLIENTS, 1)))
    down = happened.bytes_down
    assert down == 4 * (dim - 10) * CLIENTS, "in the second round clients need everything but their heads"


def test_a_strategy_refuses_an_upload_that_an_ordinary_app_cannot_encode():
    strategy = flower.Strategy(fw.Method(fw.sample.Uniform(2), upload=TopK()), clock=VirtualClock())
    with pytest.raises(fw.BadInput, match="encode their updates with TopK"):
        strategy.start(flower.LocalGrid(plain(), 2), initial(), num_rounds=1)


def test_a_codec_that_decodes_to_another_length_is_named():
    @fw.settings
    class Short(TopK):
        def decode(self, payload, model):
            return np.zeros(1, np.float32), None

    method = fw.Method(fw.sample.Uniform(4), upload=Short())
    with pytest.raises(fw.BadInput, match=r"Short\.decode must return an array of 650 .* returned float32\(1,\)"):
        fw.run(experiment(method, rounds=1))


def test_a_round_driven_by_hand_is_the_round():
    """Plan, have somebody else answer, absorb: what a framework with its own loop does."""
    session = prepare(experiment(fw.methods.fedacs(3)), Workers(1))
    method, world = session.method, session.world(1)
    state = first_state(method, session.start.x, world, session.engine.layout.parameters)
    assignment = plan(method, state, world, session.engine, lr=0.05, seed=0)
    assert isinstance(assignment.cohort, Cohort)
    assert assignment.round == 1
    replies = session.engine.train(assignment)
    assert isinstance(replies, Replies)
    after, happened = absorb(method, state, assignment, replies)
    same, _ = run_round(method, state, world, session.engine, 0.05, 0)
    assert np.array_equal(after.x, same.x)
    assert after.round == 1
    assert happened.cohort is assignment.cohort
    nothing, _ = absorb(method, state, assignment, replies.keep_only(np.zeros(replies.received.size, bool)))
    assert np.array_equal(nothing.x, state.x), "nothing received, nothing learned"
