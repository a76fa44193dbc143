"""The written-out gradient: exact on whole numbers, the same bits in any company, and only for what it knows."""

import gc
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.local.solvers import SGD, Adam
from fedweave.local.torch.chain import Convolution, Linear, aligned, layers, whole
from fedweave.local.torch.flat_module import FlatModule, initial_vector
from fedweave.local.torch.stacked import Stack
from fedweave.tasks import Batch, Classification, Regression
from jobs import jobs_of
from local.plain_loop import LR, each, reference, strided, trainer_of
from worlds import image_data, regression_data


def maybe_stack(model, shape, task=None):
    batch = Batch(torch.zeros(1, *shape), torch.zeros(1))
    return Stack.of(model, FlatModule(model).layout, batch, task or Classification())


def stack_of(model, shape, task=None):
    stack = maybe_stack(model, shape, task)
    assert stack is not None
    return stack


@st.composite
def chains(draw):
    """A network of whole numbers, and the shape of its samples."""
    shape = (draw(st.integers(1, 12)), draw(st.integers(7, 10)), draw(st.integers(7, 10)))
    steps, channels = [], shape[0]
    for _ in range(draw(st.integers(1, 2))):
        kernel, outputs = draw(st.tuples(st.integers(1, 4), st.integers(1, 3))), draw(st.integers(1, 5))
        padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 1)))
        steps += [nn.Conv2d(channels, outputs, kernel, padding=padding)]
        channels = outputs
        steps += draw(st.sampled_from([[], [nn.ReLU()], [nn.ReLU(inplace=True), nn.Identity()]]))
        pool = nn.MaxPool2d(2, draw(st.integers(1, 2)), draw(st.integers(0, 1)), ceil_mode=draw(st.booleans()))
        steps += draw(st.sampled_from([[], [pool], [pool, nn.ReLU()], [nn.Sequential(pool)]]))
    body = nn.Sequential(*steps, nn.Flatten())
    try:
        width = body(torch.zeros(1, *shape)).shape[1]
    except RuntimeError:  # a kernel larger than what is left
        reject()
    hidden = draw(st.integers(1, 6))
    model = nn.Sequential(body, nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    return model, shape


@given(chains(), st.integers(1, 3), st.integers(1, 6), st.integers(0, 2**31))
@settings(max_examples=150, deadline=None)
def test_whole_numbers_give_exactly_the_gradient_of_autograd(chain, clients, batch, seed):
    """Products and sums of small whole numbers are exact, and poolings have many ties: not a bit may differ."""
    model, shape = chain
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(-2, 3, (clients, batch, *shape)).astype(np.float32))
    y = torch.from_numpy(rng.integers(-3, 4, (clients, batch)).astype(np.float32))
    dim = initial_vector(model).size
    rows = torch.from_numpy(rng.integers(-1, 2, (clients, dim)).astype(np.float32))
    found, _ = stack_of(model, shape, Regression()).bind(rows)(x.clone(), y, torch.ones(clients, batch))
    assume(float(found.abs().max()) < 2**24)  # beyond this, float32 rounds whole numbers
    precise = model.double()
    for i in range(clients):
        nn.utils.vector_to_parameters(rows[i].double(), precise.parameters())
        loss = ((precise(x[i].double())[:, 0] - y[i].double()) ** 2).sum()
        expected = torch.autograd.grad(loss, list(precise.parameters()))
        assert torch.equal(found[i].double(), torch.cat([g.reshape(-1) for g in expected]))


@pytest.mark.parametrize(("channels", "rows"), [(2, 3), (11, 1)])
def test_a_convolution_is_its_definition(channels, rows):
    """y[o, r, s] = b[o] + Σ W[o, c, i, j] x[c, r + i, s + j], in both ways to lay out patches."""
    rng, (K, L), pad = np.random.default_rng(0), (3, 3), (1, 2)
    x = rng.standard_normal((2, channels, 5, 4, 4)).astype(np.float32)
    W, b = rng.standard_normal((2, 3, channels, K, L)), rng.standard_normal((2, 3))
    layer = Convolution("it", nn.Conv2d(channels, 3, (K, L), padding=pad), (channels, 5, 4))
    assert layer.rows == rows
    has = {"it.weight": torch.from_numpy(W).float(), "it.bias": torch.from_numpy(b).float()}
    found = layer.forward(torch.from_numpy(x), has)
    padded = np.pad(x.astype(float), [(0, 0), (0, 0), (pad[0],) * 2, (pad[1],) * 2, (0, 0)])
    height, width = padded.shape[2] - K + 1, padded.shape[3] - L + 1
    expected = np.zeros((2, 3, height, width, 4)) + b[:, :, None, None, None]
    for r, s, i, j in product(range(height), range(width), range(K), range(L)):
        expected[:, :, r, s] += np.einsum("koc,kcn->kon", W[..., i, j], padded[:, :, r + i, s + j])
    assert found.shape == expected.shape
    assert np.allclose(found.numpy(), expected, atol=1e-4)
    assert layer.work == W[0].size * height * width
    assert layer.room * 4 == layer.patches[0].numel()


def odd_dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 13), nn.ReLU(), nn.Linear(13, 4))


def odd_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 11, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(11, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(45, 4)
    )


@pytest.mark.parametrize("model", [odd_dense, odd_cnn])
@pytest.mark.parametrize("batch", [1, 3, 5, 7, 8])
@pytest.mark.parametrize("solver", [SGD(momentum=0.5), Adam()], ids=str)
def test_no_place_in_a_stack_changes_a_single_bit(model, batch, solver):
    """Odd sizes put the rows of a plain matrix at odd addresses, where products come out a little different."""
    trainer, x = trainer_of(model, image_data(), solver)
    assert x.size % 4
    jobs = jobs_of(*((c, t, batch) for c, t in zip((2, 0, 4, 3, 1), (6, 5, 5, 3, 2), strict=True)))
    alone = [trainer.train(x, job) for job in each(jobs)]
    for some in ([0, 1, 2, 3, 4], [1, 2, 4], [0, 3], [2, 3, 4]):
        together = trainer.train(x, jobs.take(some))
        for row, i in enumerate(some):
            for ours, theirs in zip(together[:3], alone[i][:3], strict=True):
                assert np.array_equal(ours[row], theirs[0])


@pytest.mark.parametrize("model", [odd_dense, odd_cnn])
def test_a_client_is_not_hurt_by_a_sample_that_is_not_its_own(model):
    """Batches are filled up to multiples of four, and a batch of a short last pass too: with its own samples."""
    data = image_data()
    parts = [np.arange(i, 113, 5) for i in range(5)]
    data = data._replace(x=data.x.astype(np.float32), mean=(), std=(), parts=parts)
    trainer, x = trainer_of(model, data)
    jobs = jobs_of(*((c, 9, 5) for c in range(5)), lr=1e-4)
    before = trainer.train(x, jobs).updates
    data.x[0] = np.inf
    hurt, *others = trainer.train(x, jobs).updates
    assert np.isnan(hurt).any()
    assert np.isfinite(before).all()
    assert np.array_equal(others, before[1:])


def test_parts_begin_at_multiples_of_16_bytes():
    for size in range(1, 20):
        room = aligned(3, (size,), torch.device("cpu"))
        assert room.shape == (3, size)
        assert all(row.data_ptr() % 16 == 0 for row in room)
        assert whole(size) % 4 == 0
        assert 0 <= whole(size) - size < 4


def busy_cnn():
    """So much work that even one client is worth a worker."""
    return nn.Sequential(nn.Conv2d(1, 40, 5, padding=2), nn.MaxPool2d(8), nn.Flatten(), nn.Linear(640, 4))


def test_pieces_are_equal_shares_of_clients_with_similar_work():
    """A power of two up to eight where the work allows: two of two clients or more, more of four or more."""
    stack = stack_of(busy_cnn(), (1, 32, 32))
    for n, count in ((1, 1), (2, 1), (3, 1), (4, 2), (10, 2), (15, 2), (16, 4), (31, 4), (32, 8), (50, 8)):
        pieces = stack.pieces(jobs_of(*((i, 1 + i, 8) for i in range(n))))
        sizes = [rows.size for rows in pieces]
        assert len(pieces) == count
        assert max(sizes) - min(sizes) <= 1
        assert sorted(np.concatenate(pieces)) == list(range(n))
        assert all((np.diff(rows) < 0).all() for rows in pieces), "the longest first"
        work = [(1 + rows).sum() for rows in pieces]
        assert max(work) - min(work) <= n
    many = stack.pieces(jobs_of(*((i, 1 + i, 8) for i in range(400))))
    assert max(rows.size for rows in many) <= stack.most
    spans = [np.ptp(rows) for rows in many]
    assert max(spans) < 400 / 2, "long jobs train with their like"
    mixed = stack.pieces(jobs_of(*((i, 3, 8 + 4 * (i % 2)) for i in range(9))))
    assert sorted(rows.size for rows in mixed) == [2, 2, 2, 3], "two for the five, two for the four"


def test_little_work_is_one_piece():
    stack = stack_of(odd_dense(), (1, 12, 12))
    assert stack.work == 144 * 13 + 13 * 4
    for n, batch, count in ((10, 20, 1), (64, 20, 1), (64, 1000, 8), (24, 400, 2)):
        assert len(stack.pieces(jobs_of(*((i, 9, batch) for i in range(n))))) == count


def test_large_batches_make_small_chunks_and_larger_ones_go_one_by_one():
    def model():
        return nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4))

    stack = stack_of(model(), (1, 12, 12))
    assert stack.room == 25 * 8 * 8
    for batch in (1, 10, 100, 1000):
        for rows in stack.pieces(jobs_of(*((i, 1, batch) for i in range(64)))):
            assert rows.size == 1 or rows.size * whole(batch) * stack.room <= 2**21
    assert stack.suits(652)
    assert not stack.suits(656)
    assert sorted(rows.tolist() for rows in stack.pieces(jobs_of(*((i, 1, 656) for i in range(9))))) == [
        [i] for i in range(9)
    ]
    data = image_data()
    data = data._replace(x=np.tile(data.x, (30, 1, 1, 1)), y=np.tile(data.y, 30))
    data = data._replace(parts=[np.arange(2000), np.arange(2000, 2040), np.arange(2040, 3390)])
    trainer, x = trainer_of(model, data)
    jobs = jobs_of((0, 1, 656), (1, 1, 656), (2, 1, 20))
    assert [rows.tolist() for rows in trainer.pieces(jobs)] == [[0], [1], [2]], "the second has only 40 samples"
    for job in each(jobs):
        found = trainer.train(x, job)
        expected, loss = reference(model, data, x, job)
        assert np.allclose(found.updates[0], expected, atol=1e-6)
        assert found.loss[0] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("model", [odd_dense, odd_cnn])
def test_clients_with_fewer_samples_than_a_batch_have_company_of_their_own_size(model):
    trainer, x = trainer_of(model, image_data())  # 23, 7, 40, 12 and 31 samples
    jobs = jobs_of(*((c, 4, 30) for c in range(5)))
    assert sorted(sorted(rows.tolist()) for rows in trainer.pieces(jobs)) == [[0], [1], [2, 4], [3]]
    together = trainer.train(x, jobs.take([2, 4])).updates
    assert np.array_equal(together[0], trainer.train(x, jobs.take([2])).updates[0])


def numbers():
    """Return how many numbers the tensors of this process hold."""
    gc.collect()
    return sum(t.numel() for t in gc.get_objects() if issubclass(type(t), Tensor))


def test_nothing_is_kept_after_training():
    """A worker may never train again: its patches are not for ever."""
    before = numbers()
    trainer, x = trainer_of(odd_cnn, image_data())
    trainer.train(x, jobs_of((2, 3, 40)))
    samples = trainer.train_set.x.numel() + trainer.test_set.x.numel()
    assert numbers() - before - samples < 40 * 9 * 100, "the first convolution alone has as many numbers in its patches"


class Louder(nn.Linear):
    """A layer of a user's own that is more than its parent."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def watched():
    model = odd_dense()
    model[1].register_forward_hook(lambda _module, _inputs, out: 2 * out)
    return model


def watched_backwards():
    model = odd_dense()
    model[1].register_full_backward_pre_hook(lambda _module, d: (2 * d[0],))
    return model


def watched_weight():
    model = odd_dense()
    model[1].weight.register_hook(lambda g: 2 * g)
    return model


def own_forward():
    model = odd_dense()
    plain = model[1].forward
    model[1].forward = lambda x: 2 * plain(x)
    return model


def louder():
    return nn.Sequential(nn.Flatten(), Louder(144, 4))


def twice():
    shared = nn.Linear(4, 4)
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 4), shared, nn.ReLU(), shared)


def unbiased():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 4, bias=False))


def grouped():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(256, 4))


def circular():
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(288, 4))


def same():
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(288, 4))


def rows_only():
    return nn.Sequential(nn.Linear(12, 3), nn.Flatten(), nn.Linear(36, 4))


UNKNOWN = [watched, watched_backwards, watched_weight, own_forward, louder, twice]
UNKNOWN += [unbiased, strided, grouped, circular, same, rows_only]


@pytest.mark.parametrize("model", UNKNOWN)
def test_what_is_not_written_out_trains_all_the_same(model):
    data = image_data()
    trainer, x = trainer_of(model, data)
    assert trainer.stack is None
    update = trainer.train(x, jobs_of((0, 1, 23))).updates[0]  # one step over all its samples
    torch.manual_seed(0)
    module = model()
    part = data.parts[0]
    xb = (torch.from_numpy(data.x[part]).float() / 255 - data.mean[0]) / data.std[0]
    loss = F.cross_entropy(module(xb), torch.from_numpy(data.y[part]))
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
    assert np.allclose(update, -LR * expected.numpy(), atol=1e-6)


def test_large_convolutions_go_one_by_one():
    def net(outputs):
        model = nn.Sequential(nn.Conv2d(3, outputs, 5), nn.Flatten(), nn.Linear(outputs * 28 * 28, 2))
        return maybe_stack(model, (3, 32, 32))

    assert net(17) is not None  # 17 · 75 · 28² = 999,600 multiplications
    assert net(18) is None


def test_one_layer_is_a_model():
    trainer, x = trainer_of(lambda: nn.Linear(6, 1), regression_data())
    assert trainer.stack is not None
    assert np.isfinite(trainer.train(x, jobs_of((0, 3, 5))).updates).all()


def test_a_regression_to_several_numbers_is_not_taken_for_one():
    assert maybe_stack(nn.Sequential(nn.Linear(6, 3), nn.ReLU()), (6,), Regression()) is None


def test_a_task_with_a_loss_of_its_own_goes_one_by_one():
    class Smoothed(Classification):
        def loss(self, output, batch):
            return F.cross_entropy(output, batch.y, reduction="none", label_smoothing=0.1)

    assert maybe_stack(odd_dense(), (1, 12, 12), Smoothed()) is None


def test_torchs_default_type_does_not_matter():
    trainer, x = trainer_of(odd_cnn, image_data())
    expected = trainer.train(x, jobs_of((0, 2, 5))).updates
    torch.set_default_dtype(torch.float64)
    try:
        assert np.array_equal(trainer.train(x, jobs_of((0, 2, 5))).updates, expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_layers_are_named_as_the_module_names_them():
    model = nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    chain = layers(model, torch.zeros(1, 12, 12)) or []
    assert [layer.names for layer in chain if isinstance(layer, Linear)] == [
        ("0.1.weight", "0.1.bias"),
        ("1.1.weight", "1.1.bias"),
    ]
