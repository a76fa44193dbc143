"""FedDD: the paper's Algorithm 1 by hand, FedAvg where nothing is dropped, and bytes and seconds as they really are."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import fedweave as fw
import worlds
from fedweave import methods
from fedweave.aggregate import Anonymous, InverseProbability, Mean, Nova, Varp
from fedweave.aggregate.linear import weigh
from fedweave.core.records import ClientContext, Layout
from fedweave.core.roles import Upload
from fedweave.core.settings import BadInput
from fedweave.engine.pool.processes import Workers
from fedweave.engine.torch_simulator import torch_simulator
from fedweave.local.quadratic import Quadratics
from fedweave.local.solvers import SGD, ControlVariate, Dyn
from fedweave.local.torch.flat_module import build_module, initial_vector
from fedweave.method import Method
from fedweave.round import first_state, run_round
from fedweave.runs.session import prepare
from fedweave.sample import Everyone, Uniform
from fedweave.tables.rows import Rows
from fedweave.upload import DifferentialDropout
from fedweave.upload.channels import channels_of
from fedweave.upload.codec import ClientModel
from fedweave.upload.dropout import contribution
from fedweave.upload.wire import encode
from worlds import N, data, equal_clients, everyone, population, quadratic_simulator

D, LR = 12, 0.05
WEIGHT = np.arange(1, 7) / 21


def fleet(loss_rate=0.0):
    """Six clients of a quadratic world, each with a link of its own."""
    size, up, down = np.full(6, 8 * D), np.array([1, 2, 3, 4, 5, 6]) * 100.0, np.full(6, 1e4)
    return equal_clients(
        6,
        weight=WEIGHT,
        samples=10 * np.arange(1, 7),
        steps=np.arange(2, 8),
        loss_rate=loss_rate,
        latency=0.3 + 8 * size / up + 8 * size / down,
        model_bytes=size,
        covered=1 + np.arange(6.0),
        up_rate=up,
        down_rate=down,
    )


def rounds(method, count, loss_rate=0.0, seed=0):
    problem = Quadratics.random(6, D, seed=3)
    engine = quadratic_simulator(problem, method.solver, seed, WEIGHT, method.upload)
    state = first_state(method, np.full(D, 0.5), fleet(), D)
    for _ in range(count):
        state, happened = run_round(method, state, fleet(loss_rate), engine, LR, seed)
        yield state, happened


@fw.settings
class Given(Upload):
    """Rates that are given, whoever is asked; channels by importance."""

    rate: tuple[float, ...]
    period: int = 3
    masks = keeps = True

    def allocate(self, state, view, cohort):
        return np.array(self.rate)[cohort.ids]

    def size(self, model, budget):
        return DifferentialDropout().size(model, budget)

    def encode(self, *given, **more):
        return DifferentialDropout().encode(*given, **more)

    def decode(self, payload, model):
        return DifferentialDropout().decode(payload, model)

    def refreshes(self, round):
        return round % self.period == 0


RATES = (0.0, 0.25, 0.5, 0.75, 0.5, 0.9)


def by_the_paper(seen, period, rates=RATES):
    """Algorithm 1 with clients that are heard or not: W, the own models W_n, and the masks."""
    optimum = Quadratics.random(6, D, seed=3).optimum
    W, own = np.full(D, 0.5), [None] * 6  # None: nothing of its own
    for t, (ids, heard) in enumerate(seen, 1):
        ends, masks = {}, {}
        for n in ids[heard]:
            begin = W.copy() if own[n] is None else np.where(own[n][1], W, own[n][0])
            end = optimum[n] + (1 - LR) ** (n + 2) * (begin - optimum[n])
            least = 1e-3 * np.sqrt(np.mean(begin**2)) + 1e-12
            index = np.abs((end - begin) * end / np.maximum(np.abs(begin), least))
            mask = np.zeros(D, bool)
            mask[np.argsort(-index, kind="stable")[: max(int(np.floor(D * (1 - rates[n]) + 0.5)), 1)]] = True
            ends[n], masks[n] = end, mask
        new = W.copy()
        for k in range(D):
            sent = [n for n in ends if masks[n][k]]
            if sent:
                new[k] = sum(WEIGHT[n] * ends[n][k] for n in sent) / sum(WEIGHT[n] for n in sent)
        for n, end in ends.items():
            own[n] = (end, masks[n])
        W = new
        if t % period == 0:
            own = [None] * 6
        yield W, masks


@pytest.mark.parametrize("period", [1, 3, 100])
@pytest.mark.parametrize(("sampler", "loss"), [(Everyone(), 0.0), (Uniform(3), 0.4)], ids=["everyone", "some, lossy"])
def test_it_is_the_papers_algorithm(sampler, loss, period):
    run = list(rounds(Method(sampler, upload=Given(RATES, period)), 12, loss))
    seen = [(h.cohort.ids, h.replies.received) for _, h in run]
    for (state, happened), (W, masks) in zip(run, by_the_paper(seen, period), strict=True):
        assert np.allclose(state.x, W, atol=1e-12)
        ids = happened.cohort.ids[happened.replies.received]
        sent = happened.replies.mask
        if sent is not None:
            assert all(
                np.array_equal(row, masks[n]) for n, row in zip(ids, sent[happened.replies.received], strict=True)
            )
        assert state.clients["kept"].written.any() == (state.round % period != 0)


@pytest.mark.parametrize("refresh", [1, 3, 7])
def test_nothing_dropped_is_fedavg_with_everyone_bit_for_bit(tiny, refresh):
    world = {"system": fw.system.Wireless(), "model": "mlp"}
    plain = fw.run(tiny(Method(Everyone()), **world))
    whole = fw.run(tiny(Method(Everyone(), upload=DifferentialDropout(1.0, refresh=refresh)), **world))
    assert whole.x.tobytes() == plain.x.tobytes()
    assert np.array_equal(whole.rounds["bytes_down"], plain.rounds["bytes_down"])
    bits = 8 * -(-(100 + 64 + 10) // 64)
    assert np.array_equal(whole.rounds["bytes_up"], plain.rounds["bytes_up"] + 6 * bits * plain.rounds["round"])
    assert np.allclose(whole.rounds["sent_share"], 1, atol=0.01)


def conv():
    return nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(180, 10))


def slim():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 10))


def trained(workers=None, loss_rate=0.0, own=None, upload=None, submodels=()):
    upload = upload or DifferentialDropout()
    engine = torch_simulator(conv, data(), SGD(), 0, workers or Workers(1), upload=upload, submodels=submodels)
    x = initial_vector(build_module(conv, 0))
    has = ClientContext(kept=own, budget=np.linspace(0, 0.8, N))
    return engine.train(worlds.assignment(engine, 2, x, everyone(), population(loss_rate), 0.1, has)), engine, x


@pytest.mark.parametrize("choose", ["importance", "random", "max", "delta", "ordered"])
def test_masks_have_the_promised_channels_and_bytes_are_those_of_the_message(choose):
    replies, engine, _ = trained(upload=DifferentialDropout(choose=choose))
    channels = channels_of(engine.layout)
    for rate, mask, update, size in zip(
        np.linspace(0, 0.8, N), replies.mask, replies.updates, replies.bytes_up, strict=True
    ):
        kept = mask[channels.tensors[0].begin :: 9][:5], engine.layout.split(mask)["4.bias"]
        assert [int(k.sum()) for k in kept] == [max(int(np.floor(w * (1 - rate) + 0.5)), 1) for w in (5, 10)]
        assert np.array_equal(mask, channels.spread(np.concatenate(kept)))
        assert not update[~mask].any()
        assert size == len(encode(channels, update, np.concatenate(kept)))


def test_workers_give_the_same_bits_from_starts_of_their_own():
    first, _, x = trained()
    own = Rows.zeros(N, x.size).replaced(np.arange(N), first.kept)
    one, plain = trained(own=own)[0], trained()[0]
    with Workers(2) as workers:
        pairs = [(one, trained(workers, own=own)[0])]
        pairs.append([trained(w, own=own, submodels=[conv, slim])[0] for w in (None, workers)])
    for alone, two in pairs:
        for field in ("updates", "mask", "kept", "loss", "bytes_up", "bytes_down"):
            assert np.array_equal(getattr(alone, field), getattr(two, field), equal_nan=True), field
    assert np.array_equal(one.bytes_down, 4 * first.mask.sum(1)), "only what was sent comes back"
    assert not np.array_equal(one.updates[1:], plain.updates[1:])
    assert np.array_equal(one.updates[0], plain.updates[0]), "the first client dropped nothing"


def test_a_lost_reply_has_its_size_and_keeps_nothing():
    lossy, *_ = trained(loss_rate=0.5)
    clean, *_ = trained()
    assert 0 < lossy.received.sum() < N
    assert np.array_equal(lossy.bytes_up, clean.bytes_up)
    assert not lossy.mask[~lossy.received].any()
    heard = lossy.received
    assert np.array_equal(lossy.updates[heard], clean.updates[heard])
    assert np.array_equal(lossy.kept[heard], clean.kept[heard], equal_nan=True)


def masked(updates, mask, received=None):
    heard = worlds.replies(np.where(mask, updates, 0), received)
    return heard._replace(mask=mask & heard.received[:, None])


def test_an_entry_is_the_mean_of_those_that_sent_it():
    rng = np.random.default_rng(0)
    u, mask, w = rng.standard_normal((4, 50)), rng.random((4, 50)) < 0.4, np.array([0.1, 0.2, 0.3, 0.4])
    found = weigh(w, masked(u, mask))
    for k in range(50):
        sent = mask[:, k]
        expected = w[sent] @ u[sent, k] / w[sent].sum() if sent.any() else 0.0
        assert found[k] == pytest.approx(expected, abs=1e-12)
    assert (~mask.any(0)).any(), "an entry that nobody sent stays as it is"
    same = np.tile(u[0], (4, 1))
    assert np.allclose(weigh(w, masked(same, mask)), np.where(mask.any(0), u[0], 0)), "all alike, whatever the masks"
    lost = np.array([True, False, True, True])
    moved = masked(u, mask, lost)._replace(updates=np.where(lost[:, None], masked(u, mask).updates, 1e9))
    assert np.allclose(weigh(w, moved), weigh(w[lost], masked(u[lost], mask[lost]))), "who was not heard counts nothing"


def test_with_everything_sent_each_rule_is_itself():
    rng = np.random.default_rng(0)
    u, w = rng.standard_normal((4, 9)), np.array([0.1, 0.7, 0.3, 0.6])
    full = masked(u, np.ones((4, 9), bool))
    assert np.allclose(weigh(w, full), weigh(w, full._replace(mask=None)), atol=1e-14)


def test_a_round_lasts_as_long_as_the_plan_says(tiny):
    """(12) with real bytes: the slowest of download, compute and upload; whole models in the first and after h."""
    world = {"system": fw.system.Wireless(), "model": "mlp", "rounds": 5}
    method = Method(Everyone(), upload=DifferentialDropout(0.6, refresh=2, penalty=0))
    result, whole = fw.run(tiny(method, **world)), fw.run(tiny(Method(Everyone()), **world))
    down = np.diff(result.rounds["bytes_down"], prepend=0)
    full = whole.rounds["bytes_down"][0]
    assert (down == full)[[0, 1, 2, 4]].all(), "after rounds 2 and 4 everyone takes the whole model"
    assert down[3] < 0.65 * full
    assert (result.rounds["seconds"][1:] < 0.5 * whole.rounds["seconds"][1:]).all()
    assert np.allclose(result.rounds["sent_share"][1:], 0.6, atol=0.02)
    rows = result.clients
    base = fw.Experiment(method=method, data="digits")
    mine = rows["round"] == 4
    session = prepare(tiny(method, **world), Workers(1))
    p = session.experiment.system.population(session.base, 4, 0)
    whole_bytes = p.model_bytes
    compute = p.latency - 8 * whole_bytes / p.up_rate - 8 * whole_bytes / p.down_rate
    up, last = rows["bytes_up"][mine], rows["bytes_up"][rows["round"] == 3] - 24  # its bits do not come back
    assert np.allclose(rows["seconds"][mine], compute + 8 * up / p.up_rate + 8 * last / p.down_rate)
    assert base.method.upload.refresh == 2


def test_contributions_are_those_of_the_paper_and_can_be_too_small_to_matter():
    state, happened = next(rounds(Method(Everyone(), upload=DifferentialDropout()), 1))
    view, loss = happened.view, np.array([1, 2, np.nan, 4, 1, 0.0])
    share = 10 * np.arange(1, 7) / 210
    expected = share * (1 + np.arange(6)) * np.array([1, 2, 8 / 5, 4, 1, 0])
    assert np.allclose(contribution(loss, view), expected)
    known = {**state.upload, "loss": loss, "heard": np.ones(1, bool)}
    cohort = happened.cohort
    vanish = DifferentialDropout(0.6, penalty=1e-6, unit="seconds").allocate(known, view, cohort)
    none = DifferentialDropout(0.6, penalty=0).allocate(known, view, cohort)
    strong = DifferentialDropout(0.6, penalty=10).allocate(known, view, cohort)
    assert np.allclose(vanish, none, atol=1e-9)
    assert np.abs(strong - none).max() > 0.05
    first = DifferentialDropout().init(view.population)
    assert not DifferentialDropout().allocate(first, view, cohort).any(), "before anyone was heard all send all"
    assert DifferentialDropout().allocate(state.upload, view, cohort).any(), "quadratic clients report no loss"


def test_the_rounds_table_says_what_was_sent_and_whether_contributions_mattered(tiny):
    result = fw.run(tiny(methods.feddd(3), system=fw.system.Wireless(), rounds=4))
    assert result.rounds["sent_share"][0] == pytest.approx(1, abs=0.01)
    assert result.rounds["sent_share"][1:].max() < 0.65
    assert (result.rounds["dropout_influence"] >= 0).all()


def test_a_schedule_of_full_broadcasts():
    upload = DifferentialDropout(refresh=((1, 4), (9, 2)))
    assert [r for r in range(1, 15) if upload.refreshes(r)] == [4, 8, 10, 12, 14]


def test_non_finite_entries_that_were_not_sent_are_downloaded_again():
    model = ClientModel(Layout(names=("x",), shapes=((3,),), parameters=3))
    update, x, rng = np.array([1, np.inf, 2], np.float32), np.zeros(3, np.float32), np.random.default_rng(0)
    upload = DifferentialDropout(choose="ordered")
    parcel = upload.encode(update, x, x, 2 / 3, None, rng, model)
    assert len(parcel.payload) == upload.size(model, 2 / 3)
    assert [part.tolist() for part in upload.decode(parcel.payload, model)] == [[1, 0, 0], [True, False, False]]
    assert np.isnan(parcel.kept).tolist() == [True, True, False]


@pytest.mark.parametrize("aggregator", [Mean(), Anonymous(), InverseProbability(), Nova()])
def test_dropout_goes_with_every_rule_that_knows_what_was_sent(aggregator):
    """Alike clients move every entry that anyone sent alike, however many sent it, and leave the others alone."""
    Method(Everyone(), aggregator=aggregator, upload=DifferentialDropout())
    rng = np.random.default_rng(0)
    mask = rng.random((6, 40)) < 0.2
    moved, _ = aggregator.combine(
        {}, worlds.view(fleet(), 40), worlds.cohort(np.arange(6)), masked(np.ones((6, 40)), mask)
    )
    sent = mask.any(0)
    assert not sent.all()
    assert not moved[~sent].any()
    assert moved[sent] == pytest.approx(moved[sent][0])
    assert moved[sent][0] > 0


def test_misfits_are_refused_by_name():
    with pytest.raises(BadInput, match=r"DifferentialDropout leaves parts out, which Varp would take for zeros"):
        Method(Everyone(), aggregator=Varp(), upload=DifferentialDropout())
    for solver in (ControlVariate(), Dyn()):
        with pytest.raises(BadInput, match=type(solver).__name__):
            Method(Everyone(), solver, upload=DifferentialDropout())
    with pytest.raises(BadInput, match=r"send 0\.2 of their models at least, more than the 0\.1"):
        DifferentialDropout(0.1)
    for wrong in ((), ((2, 3),), ((1, 3), (1, 4))):
        with pytest.raises(BadInput, match="begins at round 1"):
            DifferentialDropout(refresh=wrong)


def test_dropout_combines_with_other_cohorts(tiny):
    for method in (methods.feddd_acs(4), methods.latency_dropout(4)):
        result = fw.run(tiny(method, system=fw.system.Wireless(), rounds=8))
        assert (result.rounds["asked"][1:] <= 4).all()
        assert np.nanmax(result.rounds["sent_share"][2:]) < 0.7
        nothing = replace(method, upload=DifferentialDropout(1.0))
        plain = replace(method, upload=fw.upload.Everything())
        same = [fw.run(tiny(m, system=fw.system.Wireless(), rounds=4)).x for m in (nothing, plain)]
        assert np.array_equal(*same)
