"""Sub-models: the first channels of every layer, trained as the narrow networks they are."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedweave as fw
import worlds
from fedweave import models
from fedweave.core.records import ClientContext
from fedweave.core.settings import BadInput
from fedweave.engine.pool.processes import Workers
from fedweave.engine.torch_simulator import torch_simulator
from fedweave.local.solvers import SGD
from fedweave.local.submodels import SubmodelTrainer, places, shrunk
from fedweave.local.torch.flat_module import FlatModule, build_module, initial_vector
from fedweave.local.torch.threads import one_thread
from fedweave.local.torch.trainer import TorchTrainer
from fedweave.runs.loop import run_with
from fedweave.upload import DifferentialDropout
from interrupt import StopAfter
from jobs import jobs_of
from worlds import N, data, everyone, population


def net(channels=6, hidden=8):
    return nn.Sequential(
        nn.Conv2d(1, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * channels, hidden), nn.ReLU(), nn.Linear(hidden, 10),
    )  # fmt: skip


def narrow():
    return net(3, 4)


def test_narrowing_is_the_network_one_would_write():
    cut = shrunk(net, (1, 8, 8), 0.5)
    assert [tuple(t.shape) for t in cut.state_dict().values()] == [
        tuple(t.shape) for t in narrow().state_dict().values()
    ]
    assert cut(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert str(cut) == str(narrow())


@pytest.mark.parametrize(
    ("name", "share"), [("mlp", 0.25), ("cnn2", 0.5), ("lenet5", 0.3), ("resnet18_bn", 0.25), ("cnn_leaf_celeba", 0.7)]
)
def test_networks_of_the_zoo_can_be_narrowed(name, share):
    shape = (3, 32, 32)
    whole = models.build(name, shape, 10)
    cut = shrunk(lambda: models.build(name, shape, 10), shape, share)
    where = places(FlatModule(whole).layout, FlatModule(cut).layout)
    assert np.unique(where).size == where.size
    assert where.size < share * 1.2 * sum(p.numel() for p in whole.parameters())


def test_a_sub_models_entries_are_the_first_of_every_dimension():
    whole, part = FlatModule(net()).layout, FlatModule(narrow()).layout
    x = np.arange(whole.dim, dtype=np.float32)
    mine, all_ = part.split(x[places(whole, part)]), whole.split(x)
    for name, tensor in mine.items():
        assert np.array_equal(tensor, all_[name][tuple(slice(n) for n in tensor.shape)]), name


def test_a_sub_model_computes_what_the_whole_does_without_the_rest():
    """Channels whose weights, in and out, are zero change nothing (without normalisation)."""
    build = lambda: models.build("cnn_small", (1, 28, 28), 10)  # noqa: E731
    whole, cut = build(), shrunk(build, (1, 28, 28), 0.4)
    wide, small = FlatModule(whole), FlatModule(cut)
    x = np.zeros(wide.layout.dim, np.float32)
    where = places(wide.layout, small.layout)
    x[where] = np.random.default_rng(0).standard_normal(where.size) / 10
    wide.load(x)
    small.load(x[where])
    images = torch.rand(4, 1, 28, 28)
    assert torch.allclose(whole(images), cut(images), atol=1e-5)


def trained(dropout=None, upload=None):
    engine = torch_simulator(net, data(), SGD(), 0, Workers(1), upload=upload, submodels=[net, narrow])
    x = initial_vector(build_module(net, 0))
    return (
        engine.train(worlds.assignment(engine, 1, x, everyone(), population(), 0.1, ClientContext(budget=dropout))),
        engine,
        x,
    )


def test_clients_train_the_narrow_network_itself_and_send_its_part():
    replies, engine, x = trained()
    where = places(engine.layout, FlatModule(narrow()).layout)
    alone = TorchTrainer(narrow(), data(), SGD(), 0)
    p = population()
    for client in range(N):
        job = jobs_of((client, p.steps[client], p.batch_size[client]))
        if client % 2:
            with one_thread():  # as the simulator does it: another number of threads adds up in another order
                alike = alone.train(x[where], job).updates[0]
            assert np.array_equal(replies.updates[client, where], alike)
            assert replies.mask[client].sum() == where.size
            assert replies.mask[client, where].all()
        else:
            assert replies.mask[client].all()
        assert replies.bytes_up[client] == replies.bytes_down[client] == 4 * replies.mask[client].sum()


def test_kinds_never_mix():
    def width(channels):
        return nn.Sequential(nn.Conv2d(1, channels, 5), nn.ReLU(), nn.Flatten(), nn.Linear(16 * channels, 10))

    parts = [np.arange(1000 * i, 1000 * (i + 1)) for i in range(8)]
    x = np.zeros((8000, 1, 8, 8), np.uint8)
    many = data()._replace(x=x, y=np.zeros(8000, np.int64), parts=parts)
    whole, half = width(80), width(40)
    fleet = SubmodelTrainer(whole, [whole, half], np.arange(8) % 2, many, SGD(), 0)
    jobs = jobs_of(*((client, 3, 1000) for client in range(8)))
    pieces = fleet.pieces(jobs)
    assert sorted(np.concatenate(pieces)) == list(range(8))
    assert all(len(set(rows % 2)) == 1 for rows in pieces)
    assert sorted(np.concatenate(fleet.pieces(jobs.take([1, 3, 5, 7])))) == [0, 1, 2, 3], "one kind alone"


def test_what_half_of_the_clients_have_is_covered_by_half():
    _, engine, _ = trained()
    whole, part = (model.coverage for model in engine.models.models)
    assert whole.tolist() == [1] * 3 + [0.5] * 3 + [1] * 3 + [0.5] * 3 + [1] * 4 + [0.5] * 4 + [1] * 10
    assert part.tolist() == [1] * (3 + 3 + 4 + 10)


def test_dropout_of_a_sub_model_is_a_part_of_its_part():
    dropout = np.full(N, 0.5)
    replies, engine, _ = trained(dropout=dropout, upload=DifferentialDropout())
    where = places(engine.layout, FlatModule(narrow()).layout)
    owned = np.zeros(engine.layout.dim, bool)
    owned[where] = True
    for client in range(1, N, 2):
        assert not replies.mask[client, ~owned].any()
        sent = engine.layout.split(replies.mask[client])
        assert sent["0.bias"].sum() == 2
        assert sent["6.bias"].sum() == 2
        assert sent["8.bias"].sum() == 5


def test_a_fleet_of_whole_models_is_no_fleet(tiny):
    plain = fw.run(tiny(fw.methods.fedavg(3), model="mlp"))
    fleet = fw.run(tiny(fw.methods.fedavg(3), model="mlp", submodels="1,1"))
    assert fleet.x.tobytes() == plain.x.tobytes()
    assert np.array_equal(fleet.rounds["bytes_up"], plain.rounds["bytes_up"])


@pytest.mark.parametrize("name", ["fedavg", "feddd", "fedcs", "oort", "feddd_acs"])
def test_methods_run_with_sub_models_and_resume(tiny, tmp_path, name):
    experiment = tiny(
        getattr(fw.methods, name)(3), model="mlp", submodels=(1.0, 0.5), system=fw.system.Wireless(), rounds=4
    )
    whole = fw.run(experiment)
    short = fw.run(replace(experiment, rounds=2), tmp_path / "run")
    assert np.array_equal(short.rounds["loss"], whole.rounds["loss"][:2])
    assert whole.manifest["model"]["fleet_bytes"] == 3 * 4 * (13614 + (64 + 1) * 50 + 51 * 32 + 33 * 10)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"submodels": "1,1.5"}, r"shares in \(0, 1\] or models. Got 1.5"),
        ({"submodels": "mlq"}, "Did you mean 'mlp'"),
        ({"submodels": "1,0.5", "method": fw.methods.fedvarp(3)}, "Varp would take for whole ones. Use Mean"),
        ({"submodels": "logistic"}, "must have the layers of the whole model"),
    ],
)
def test_a_bad_sub_model_is_refused(tiny, changes, words):
    with pytest.raises(BadInput, match=words):
        fw.run(tiny(**{"model": "mlp", **changes}))


def test_what_cannot_be_narrowed_is_named():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(144, 10)

        def forward(self, x):
            return self.fc(self.conv(x).view(len(x), 144))

    with pytest.raises(BadInput, match=r"cannot be narrowed to 0\.5"):
        shrunk(Fixed, (1, 8, 8), 0.5)
    with pytest.raises(BadInput, match="This model has Embedding"):
        shrunk(lambda: nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 2)), (8,), 0.5)
    with pytest.raises(BadInput, match="2 groups"):
        shrunk(
            lambda: nn.Sequential(nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(216, 2)),
            (1, 8, 8),
            0.5,
        )


def windows(channels, width, round):
    """Return the channels (width,) that FedRolex takes in a round from 1, as its equation says."""
    begin = (round - 1) % channels
    if begin + width <= channels:
        return list(range(begin, begin + width))
    return [*range(begin, channels), *range(begin + width - channels)]


def rolled_engine(roll=1, upload=None, kinds=(net, narrow)):
    return torch_simulator(net, data(), SGD(), 0, Workers(1), upload=upload, submodels=kinds, roll=roll)


def train_round(engine, round, x, budget=None):
    context = ClientContext(budget=budget)
    return engine.train(worlds.assignment(engine, round, x, everyone(), population(), 0.1, context))


def test_a_rolled_sub_models_entries_are_the_windows_of_its_layers():
    """By hand, tensor by tensor: 3 of 6 channels, 4 of 8 hidden units, and 16 inputs for each channel."""
    whole, part = FlatModule(net()).layout, FlatModule(narrow()).layout
    x = np.arange(whole.dim, dtype=np.float32)
    all_ = whole.split(x)
    for round in (1, 2, 5, 6, 9, 40):
        mine = part.split(x[places(whole, part, round - 1)])
        conv, hidden = windows(6, 3, round), windows(8, 4, round)
        pixels = [16 * c + p for c in conv for p in range(16)]
        rows = {"0.weight": (conv,), "3.weight": (conv, conv), "6.weight": (hidden, pixels), "8.weight": (..., hidden)}
        rows |= {"6.bias": (hidden,), "8.bias": (...,)}
        for name, tensor in mine.items():
            expected = all_[name]
            for axis, index in enumerate(rows.get(name, (conv,) if all_[name].shape == (6,) else ())):
                expected = expected if index is ... else expected.take(index, axis)
            assert np.array_equal(tensor, expected), (round, name)


def test_a_rolled_sub_model_computes_what_the_whole_does_without_the_rest():
    build = lambda: models.build("cnn_small", (1, 28, 28), 10)  # noqa: E731
    whole, cut = build(), shrunk(build, (1, 28, 28), 0.4)
    wide, small = FlatModule(whole), FlatModule(cut)
    images = torch.rand(4, 1, 28, 28)
    for shift in (1, 13, 31):
        where = places(wide.layout, small.layout, shift)
        assert np.unique(where).size == where.size
        x = np.zeros(wide.layout.dim, np.float32)
        x[where] = np.random.default_rng(0).standard_normal(where.size) / 10
        wide.load(x)
        small.load(x[where])
        assert torch.allclose(whole(images), cut(images), atol=1e-5), shift


def test_over_a_full_roll_every_channel_is_trained_equally_often():
    """24 rounds, a multiple of 6 and of 8 channels: each is trained in half of them, exactly."""
    engine = rolled_engine(kinds=(narrow,))
    x, count = initial_vector(build_module(net, 0)), 0
    for round in range(1, 25):
        asked = worlds.assignment(engine, round, x, worlds.cohort([3]), population(), 0.1)
        count = count + engine.train(asked).mask[0]
    sent = engine.layout.split(count)
    assert set(sent["0.bias"]) == set(sent["0.weight"].ravel()) == set(sent["3.bias"]) == {12}
    assert set(sent["6.bias"]) == {12}
    assert set(sent["8.bias"]) == {24}, "the head has all its outputs"
    assert set(sent["8.weight"].ravel()) == {12}
    assert set(sent["1.running_mean"]) == {12}


def test_entries_are_averaged_over_the_clients_that_have_them_this_round():
    """The direction against a loop over clients and entries; the windows are those of the equation."""
    engine, x = rolled_engine(), initial_vector(build_module(net, 0))
    p = population()
    for round in (2, 5):
        replies = train_round(engine, round, x)
        view = worlds.view(p, x=x, layout=engine.layout, round=round)
        direction, _ = fw.aggregate.Mean().combine({}, view, everyone(), replies)
        total, weight = np.zeros(x.size), np.zeros(x.size)
        for client in range(N):
            has = np.ones(x.size, bool)
            if client % 2:
                has[:] = False
                has[places(engine.layout, FlatModule(narrow()).layout, round - 1)] = True
            total[has] += p.weight[client] * replies.updates[client, has]
            weight[has] += p.weight[client]
            assert not replies.updates[client, ~has].any()
        assert np.allclose(direction, total / weight, atol=1e-6)
        bias = engine.layout.split(replies.mask[1])["0.bias"]
        assert np.flatnonzero(bias).tolist() == sorted(windows(6, 3, round))


def test_a_roll_is_the_first_sub_model_of_the_rolled_model():
    """Clients do not notice: training from a window gives the bits of the first channels of a renumbered model."""
    engine, still = rolled_engine(kinds=(narrow,)), rolled_engine(roll=0, kinds=(narrow,))
    x, part = initial_vector(build_module(net, 0)), FlatModule(narrow()).layout
    order = places(engine.layout, part, 4, every=True)
    assert sorted(order) == list(range(x.size))
    moved, fixed = train_round(engine, 5, x), train_round(still, 5, x[order])
    assert np.array_equal(moved.updates[:, order], fixed.updates)
    assert np.array_equal(moved.loss, fixed.loss)


@pytest.mark.parametrize("name", ["fedavg", "feddd"])
def test_rolled_runs_give_the_same_bits_and_a_whole_turn_is_none(tiny, tmp_path, name):
    method = getattr(fw.methods, name)(3)
    experiment = tiny(method, model="mlp", submodels=(1.0, 0.5), system=fw.system.Wireless(), rounds=4, roll=1)
    whole = fw.run(experiment)
    with pytest.raises(fw.Interrupted):
        fw.run(experiment, tmp_path / "run", callbacks=StopAfter(2))
    assert fw.resume(tmp_path / "run", experiment).x.tobytes() == whole.x.tobytes()
    if name == "feddd":
        with Workers(2) as pool:
            assert run_with(experiment, None, (), None, pool).x.tobytes() == whole.x.tobytes()
    plain, still = (fw.run(replace(experiment, **roll)) for roll in ({"roll": 0}, {"roll": 10**4 * 3200}))
    assert plain.x.tobytes() == still.x.tobytes(), "a whole turn, 100 and 64 and 32 channels, is no turn"
    assert plain.x.tobytes() != whole.x.tobytes()
    assert np.array_equal(plain.rounds["bytes_up"], whole.rounds["bytes_up"])


def test_models_whose_channels_have_an_order_cannot_roll(tiny):
    def grouped(channels=8):
        return nn.Sequential(
            nn.Conv2d(1, channels, 3), nn.GroupNorm(2, channels), nn.ReLU(), nn.Flatten(), nn.Linear(36 * channels, 10)
        )

    with pytest.raises(BadInput, match=r"cannot roll: its channels depend on their order"):
        torch_simulator(grouped, data(), SGD(), 0, Workers(1), submodels=(lambda: grouped(4),), roll=1)
    torch_simulator(grouped, data(), SGD(), 0, Workers(1), submodels=(lambda: grouped(4),))
    with pytest.raises(BadInput, match="'roll' moves sub-models: give 'submodels' with it"):
        tiny(model="mlp", roll=1)


class Residual(nn.Module):
    """A block whose shortcut has a convolution of its own, and a head."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.wide, self.back, self.short = nn.Conv2d(8, 12, 3, padding=1), nn.Conv2d(12, 16, 1), nn.Conv2d(8, 16, 1)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.head((self.back(torch.relu(self.wide(x))) + self.short(x)).mean((2, 3)))


@pytest.mark.parametrize("name", ["mlp", "cnn2", "lenet5", "residual"])
def test_networks_can_roll(name):
    """Rolling all channels of the whole network, and with them what reads them, leaves its answers as they are."""
    shape = (3, 32, 32)
    build = Residual if name == "residual" else lambda: models.build(name, shape, 10)
    whole, cut = build().eval(), shrunk(build, shape, 0.5)
    flat = FlatModule(whole)
    x = initial_vector(whole) + np.random.default_rng(0).random(flat.layout.dim, np.float32) / 50
    images, answers = torch.rand(4, *shape), []
    for shift in (0, 3):
        flat.load(x[places(flat.layout, FlatModule(cut).layout, shift, every=True)])
        answers.append(whole(images).detach())
    assert torch.allclose(*answers, rtol=1e-3, atol=1e-4 * float(answers[0].abs().max()))
