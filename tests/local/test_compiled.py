"""The compiled kernels: exact on whole numbers, the same bits on any processor, and only for what they know."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from llvmlite.binding import get_host_cpu_features
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.core.settings import BadInput
from fedweave.core.settings import settings as part
from fedweave.local.compiled import table
from fedweave.local.compiled.network import CompiledNetwork
from fedweave.local.solvers import SGD, Adam
from fedweave.local.torch import trainer as trainer_module
from fedweave.local.torch.flat_module import FlatModule, initial_vector
from fedweave.local.torch.pieces import cut_into_pieces
from fedweave.local.torch.samples import Samples
from fedweave.local.torch.trainer import TorchTrainer
from fedweave.tasks import Classification, Regression
from jobs import jobs_of
from local.plain_loop import LR, each, reference, strided, trainer_of
from worlds import image_data, regression_data


def network_of(model, shape, task=None, x=None, y=None):
    x = np.zeros((1, *shape), np.float32) if x is None else x
    y = np.zeros(1, np.float32 if isinstance(task, Regression) else np.int64) if y is None else y
    samples = Samples(x, y, (), (), torch.device("cpu"))
    return CompiledNetwork.of(model, FlatModule(model).layout, samples, task or Classification())


# With these shares, factors are 0, 1 or 2.
dropouts = st.sampled_from([0, 0.5, 1]).map(lambda p: [nn.Dropout(p)]) | st.just([nn.Dropout(0.5)]) | st.just([])


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
        steps += draw(dropouts)
    body = nn.Sequential(*steps, nn.Flatten())
    try:
        width = body(torch.zeros(1, *shape)).shape[1]
    except RuntimeError:  # a kernel larger than what is left
        reject()
    hidden = draw(st.integers(1, 6))
    model = nn.Sequential(body, *draw(dropouts), nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    return model, shape


@given(chains(), st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 2**31), st.booleans())
@settings(max_examples=150, deadline=None)
def test_whole_numbers_give_exactly_the_gradient_of_autograd(chain, batch, seed, small):
    """Products and sums of small whole numbers are exact, and poolings have many ties: not a bit may differ.

    Dropout draws the same numbers in the same order.

    Means over powers of two are exact too. A small room makes a batch go through it in several shares.
    """
    model, shape = chain
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, (batch, *shape)).astype(np.float32)
    y = rng.integers(-3, 4, batch).astype(np.float32)
    rows = rng.integers(-1, 2, initial_vector(model).size).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "CACHED", 1 if small else table.CACHED)
        network = network_of(model, shape, Regression(), x, y)
    assert network.plan.numbers[table.FIT] >= 16 or small
    torch.manual_seed(seed)
    loss, length, first, squared = network._gradient_at(rows, np.arange(batch))
    found = torch.from_numpy(network._gradient.copy()).double()
    assume(float(found.abs().max()) * batch < 2**24)  # beyond this, float32 rounds whole numbers
    precise = model.double()
    with torch.no_grad():  # in the memory order of a trainer's weights, in which dropout draws
        pieces = torch.from_numpy(rows).double().split([p.numel() for p in precise.parameters()])
        for parameter, values in zip(precise.parameters(), pieces, strict=True):
            parameter.copy_(values.view(parameter.shape))
    inputs = torch.from_numpy(x).double().contiguous(memory_format=torch.channels_last)
    torch.manual_seed(seed)
    errors = (precise(inputs)[:, 0] - torch.from_numpy(y).double()) ** 2
    error = errors.mean()
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(error, list(precise.parameters()))])
    assert torch.equal(found, expected)
    assert loss == first == pytest.approx(error.item(), rel=1e-12)
    assert squared == pytest.approx((errors**2).mean().item(), rel=1e-12)
    assert length == pytest.approx(expected.norm().item(), rel=1e-12)


def test_a_convolution_is_its_definition():
    """y[o, r, q] = b[o] + Σ W[o, c, i, j] x[c, r + i, q + j]: seen as the derivative by the bias of a layer behind."""
    rng, (K, L), pad = np.random.default_rng(0), (3, 2), (1, 2)
    x = rng.standard_normal((5, 2, 5, 4)).astype(np.float32)
    conv = nn.Conv2d(2, 3, (K, L), padding=pad)
    padded = np.pad(x.astype(float), [(0, 0), (0, 0), (pad[0],) * 2, (pad[1],) * 2])
    height, width = padded.shape[2] - K + 1, padded.shape[3] - L + 1
    W, b = (t.detach().numpy().astype(float) for t in conv.parameters())
    y = np.zeros((5, 3, height, width)) + b[:, None, None]
    for r, q, i, j in product(range(height), range(width), range(K), range(L)):
        y[:, :, r, q] += padded[:, :, r + i, q + j] @ W[:, :, i, j].T
    model = nn.Sequential(conv, nn.Flatten(), nn.Linear(y[0].size, 1))
    network = network_of(model, (2, 5, 4), Regression(), x, np.zeros(5, np.float32))
    vector = initial_vector(model)
    loss, *_ = network._gradient_at(vector, np.arange(5))
    w, c = (t.detach().numpy().astype(float) for t in model[2].parameters())
    out = y.reshape(5, -1) @ w[0] + c
    assert loss == pytest.approx((out**2).mean(), rel=1e-5)
    assert np.allclose(network._gradient[-w.size - 1 : -1], 2 * out @ y.reshape(5, -1) / 5, atol=1e-4)


@given(chains(), st.integers(1, 20), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_outputs_are_those_of_the_module_without_dropout(chain, batch, seed):
    model, shape = chain
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((batch, *shape)).astype(np.float32))
    network = network_of(model, shape, Regression())
    with torch.no_grad():
        expected = model.eval()(x)
    assert torch.allclose(network.outputs(initial_vector(model), x), expected, rtol=1e-4, atol=1e-5)


def odd_dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 13), nn.ReLU(), nn.Linear(13, 4))


def odd_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 11, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(11, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(45, 4)
    )


def digest(model):
    """Return the SHA-256 of all that two clients computed."""
    data = image_data()
    torch.manual_seed(0)
    module = model()
    start = np.random.default_rng(0).normal(0, 0.1, initial_vector(module).size).astype(np.float32)
    trained = TorchTrainer(module, data, SGD(), 0).train(start, jobs_of((0, 9, 5), (2, 4, 40)))
    return hashlib.sha256(b"".join(np.asarray(column).tobytes() for column in trained[:3])).hexdigest()


@pytest.mark.parametrize("model", [odd_dense, odd_cnn])
def test_threads_change_no_bit(model, monkeypatch):
    monkeypatch.setattr(trainer_module, "THREAD", 1)
    used, call = list[tuple[int, int]](), CompiledNetwork.train_in_one_call

    def noted(self, *arguments):
        if threading.get_ident() not in {thread for thread, _ in used}:
            together_now.wait(60)  # a thread's first client lasts until every thread has one
        used.append((threading.get_ident(), id(self)))
        return call(self, *arguments)

    monkeypatch.setattr(CompiledNetwork, "train_in_one_call", noted)
    trainer, start = trainer_of(model, image_data())
    models = start + np.random.default_rng(1).normal(0, 0.1, (7, start.size)).astype(np.float32)
    jobs = jobs_of((0, 40, 3), (1, 1, 4), (2, 1, 30), (0, 2, 5), (1, 3, 1), (2, 1, 1), (0, 12, 7))
    versions, starts = jobs._replace(version=np.arange(7)), jobs._replace(starts=models)
    for x, these in ((start, jobs), (models, versions), (start, starts)):
        trainer.threads, together_now = 1, threading.Barrier(1)
        alone = trainer.train(x, these)
        for trainer.threads in (2, 3, 7, 20):
            used.clear()
            threads = min(trainer.threads, 7)
            together_now = threading.Barrier(threads)
            together = trainer.train(x, these)
            assert len(used) == 7
            assert len(set(used)) == len({network for _, network in used}) == threads, "no two threads share a network"
            for one, other in zip(alone[:-1], together[:-1], strict=True):
                assert np.array_equal(one, other, equal_nan=True)


def test_an_error_in_a_thread_is_that_of_the_round_and_ends_the_others(monkeypatch):
    monkeypatch.setattr(trainer_module, "THREAD", 1)
    trainer, start = trainer_of(odd_dense, image_data())
    trainer.threads = 3
    main, before, calls = threading.get_ident(), threading.active_count(), []

    def failing(self, *arguments):
        calls.append(threading.get_ident())
        if threading.get_ident() != main:
            raise RuntimeError("stopped")
        while threading.active_count() > before:  # this client lasts until the others have failed
            time.sleep(0.001)
        return 0.0, 0.0, 0.0, 0.0

    monkeypatch.setattr(CompiledNetwork, "train_in_one_call", failing)
    with pytest.raises(RuntimeError, match="stopped"):
        trainer.train(start, jobs_of(*[(0, 3, 4)] * 40))
    assert len(calls) <= 3


def test_ctrl_c_ends_all_threads(monkeypatch):
    monkeypatch.setattr(trainer_module, "THREAD", 1)
    trainer, start = trainer_of(odd_dense, image_data())
    main, before, begun = threading.get_ident(), threading.active_count(), threading.Event()
    jobs, call = jobs_of(*[(0, 3, 4)] * 40), CompiledNetwork.train_in_one_call

    def interrupted(self, *arguments):
        if threading.get_ident() == main:
            begun.set()
            raise KeyboardInterrupt
        assert begun.wait(60), "the main thread has a client too"
        return call(self, *arguments)

    trainer.threads = 1
    alone = trainer.train(start, jobs)
    trainer.threads = 3
    monkeypatch.setattr(CompiledNetwork, "train_in_one_call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(start, jobs)
    monkeypatch.undo()
    assert threading.active_count() == before
    assert np.array_equal(trainer.train(start, jobs).updates, alone.updates)


def test_absurd_batch_sizes_are_no_work(monkeypatch):
    """A batch has at most all samples of a client, whatever was asked for."""
    trainer, start = trainer_of(odd_dense, image_data())
    trainer.threads = 2
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("too little work for a thread"))
    assert np.isfinite(trainer.train(start, jobs_of(*[(0, 3, 2**31 - 1)] * 7)).updates).all()


OTHERS = ["-avx512f,-avx512vl,-avx512bw,-avx512dq", "-avx512f,-avx512vl,-avx512bw,-avx512dq,-avx2,-fma,-avx"]


@pytest.mark.skipif(
    not get_host_cpu_features().get("avx2"), reason="imitated downwards, from processors with AVX2 or more"
)
@pytest.mark.parametrize("features", OTHERS if os.environ.get("FEDWEAVE_FAULTS") else OTHERS[:1])
def test_the_kernels_have_the_same_bits_on_other_processors(features, tmp_path):
    """Sums are added in the order that the kernels write down, whatever vectors the processor has."""
    paths = os.pathsep.join([os.path.dirname(os.path.dirname(__file__)), *sys.path])
    environment = os.environ | {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": features, "PYTHONPATH": paths}
    environment |= {"NUMBA_CACHE_DIR": str(tmp_path)}  # what is kept there already would not be compiled
    run = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *digests, registers = run.stdout.split()
    assert registers == ("xmm" if "avx2" in features else "ymm"), "it was compiled for the other processor"
    assert digests == [digest(odd_dense), digest(odd_cnn)]


@pytest.mark.parametrize("model", [odd_dense, odd_cnn])
@pytest.mark.parametrize("solver", [SGD(), Adam()], ids=str)
def test_a_client_is_not_hurt_by_a_sample_that_is_not_its_own(model, solver):
    data = image_data()
    parts = [np.arange(i, 113, 5) for i in range(5)]
    data = data._replace(x=data.x.astype(np.float32), mean=(), std=(), parts=parts)
    trainer, x = trainer_of(model, data, solver)
    jobs = jobs_of(*((c, 9, 5) for c in range(5)), lr=1e-4)
    before = trainer.train(x, jobs).updates
    data.x[0] = np.inf
    hurt, *others = trainer.train(x, jobs).updates
    assert np.isnan(hurt).any()
    assert np.isfinite(before).all()
    assert np.array_equal(others, before[1:])


def test_pieces_are_similar_shares_of_the_work():
    work, lr = np.arange(100) ** 2, np.full(100, 0.1)
    for most in (1, 2, 7, 16, 100, 1000):
        pieces = cut_into_pieces(work, lr, most)
        assert len(pieces) == min(most, 100)
        assert sorted(np.concatenate(pieces)) == list(range(100))
        shares = [work[rows].sum() for rows in pieces]
        assert shares == sorted(shares, reverse=True)
        assert shares[0] - shares[-1] <= work.max()
    assert cut_into_pieces(work[:0], lr[:0], 5) == []
    assert len(cut_into_pieces(work, lr, 0)) == 1, "little work is one piece"
    assert len(cut_into_pieces(work, np.arange(100) % 3, 1)) == 3, "one for each learning rate"


@pytest.mark.parametrize("model", [odd_dense, odd_cnn])
def test_batches_larger_than_the_room_train_like_a_plain_loop(model, monkeypatch):
    monkeypatch.setattr(table, "CACHED", 1)
    data = image_data()
    trainer, x = trainer_of(model, data)
    assert trainer.network.plan.numbers[table.FIT] == table.LEAST
    for job in each(jobs_of((2, 3, 40), (4, 5, 9))):
        found, (expected, loss, _) = trainer.train(x, job), reference(model, data, x, job)
        assert np.allclose(found.updates[0], expected, atol=1e-6)
        assert found.loss[0] == pytest.approx(loss, rel=1e-5)


def test_lazy_samples_train_like_arrays():
    """A data set of items is read batch by batch, with the same bits."""
    from fedweave.data.columns import Items

    data = image_data()
    pixels = (data.x.astype(np.float32) / 255 - 0.3) / 0.5
    arrays = data._replace(x=pixels, mean=(), std=())
    items = Items([(torch.from_numpy(x), int(y)) for x, y in zip(pixels, data.y, strict=True)])
    (plain, x), (lazy, _) = trainer_of(odd_cnn, arrays), trainer_of(odd_cnn, arrays._replace(x=items))
    jobs = jobs_of((0, 9, 5), (2, 4, 40))
    assert lazy.network is not None
    assert np.array_equal(plain.train(x, jobs).updates, lazy.train(x, jobs).updates)


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
def test_what_the_kernels_do_not_know_trains_all_the_same(model):
    data = image_data()
    trainer, x = trainer_of(model, data)
    assert trainer.network is None
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
        return network_of(
            nn.Sequential(nn.Conv2d(outputs, outputs, 3), nn.Flatten(), nn.Linear(outputs * 900, 2)), (outputs, 32, 32)
        )

    assert net(60) is not None  # 9 · 60² · 30² = 29 million multiplications
    assert net(70) is None


def test_labels_beyond_the_outputs_are_left_to_torch():
    assert network_of(odd_dense(), (1, 12, 12), y=np.array([3])) is not None
    assert network_of(odd_dense(), (1, 12, 12), y=np.array([4])) is None


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_samples_may_be_a_view_of_others(kind):
    """Every second sample of a data set, which lie apart, and labels of any kind."""
    data = image_data()
    plain = data._replace(x=data.x[::2].copy(), y=data.y[::2].copy(), parts=[np.arange(50)])
    apart = plain._replace(x=data.x[::2], y=data.y.astype(kind)[::2])
    (trainer, x), (other, _) = trainer_of(odd_cnn, plain), trainer_of(odd_cnn, apart)
    assert other.network is not None
    jobs = jobs_of((0, 9, 5))
    assert np.array_equal(trainer.train(x, jobs).updates, other.train(x, jobs).updates)


def lazy(items, **options):
    """Return the data of the images in which the samples are these items."""
    from fedweave.data.columns import Items

    return image_data()._replace(x=Items(items, **options), mean=(), std=())


def pictures():
    data = image_data()
    return [(torch.from_numpy(x / np.float32(255)), int(y)) for x, y in zip(data.x, data.y, strict=True)]


def test_lazy_samples_of_another_shape_are_refused_in_one_sentence():
    items = [*pictures()[:-1], (torch.zeros(1, 9, 16), 0)]
    trainer, x = trainer_of(odd_cnn, lazy(items)._replace(parts=[np.array([len(items) - 1])]))
    assert trainer.network is not None
    with pytest.raises(BadInput, match=r"shape and type of the first, \(1, 12, 12\) .* Got \(1, 9, 16\)"):
        trainer.train(x, jobs_of((0, 1, 1)))


def test_labels_that_collate_makes_are_the_ones_that_count():
    def collate(found):
        return torch.stack([x for x, _ in found]), torch.tensor([3 - y for _, y in found])

    items = pictures()
    (collated, x), (plain, _) = (
        trainer_of(odd_cnn, data) for data in (lazy(items, collate=collate), lazy(items)._replace(y=3 - image_data().y))
    )
    assert collated.network is not None
    jobs = jobs_of((0, 3, 5))
    assert np.array_equal(collated.train(x, jobs).updates, plain.train(x, jobs).updates)


@pytest.mark.parametrize("labels", [lambda y: torch.eye(4)[y], lambda y: y.float()])
def test_soft_labels_of_collate_are_left_to_autograd(labels):
    def collate(found):
        return torch.stack([x for x, _ in found]), labels(torch.tensor([y for _, y in found]))

    assert trainer_of(odd_cnn, lazy(pictures(), collate=collate))[0].network is None


@pytest.mark.parametrize("wrong", [lambda y: y[1:], lambda y: y + 4])
def test_labels_of_collate_that_do_not_fit_are_refused_in_one_sentence(wrong):
    def collate(found):
        y = torch.tensor([y for _, y in found])
        return torch.stack([x for x, _ in found]), y if len(y) == 1 else wrong(y)

    trainer, x = trainer_of(odd_cnn, lazy(pictures(), collate=collate))
    with pytest.raises(BadInput, match=r"A batch of 5 samples needs 5 whole numbers from 0 to 3 as targets"):
        trainer.train(x, jobs_of((0, 3, 5)))


@part
class Noisy(SGD):
    """Adds noise, drawn from torch's generator."""

    def direction(self, state, g, y, x, lr, t):
        return g + torch.randn_like(g), state


class Blurred(list):
    """Items that are augmented when they are read."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + 0.1 * torch.rand(()), y


@pytest.mark.parametrize("what", ["solver", "samples"])
def test_what_draws_does_so_at_the_clients_address(what):
    data = lazy(Blurred(pictures())) if what == "samples" else image_data()
    trainer, x = trainer_of(odd_cnn, data, Noisy() if what == "solver" else None)
    assert trainer.network is not None
    first = trainer.train(x, jobs_of((0, 3, 5), (1, 3, 5))).updates
    torch.rand(7)
    before = torch.get_rng_state()
    second = trainer.train(x, jobs_of((1, 3, 5), (0, 3, 5))).updates
    assert np.array_equal(first, second[::-1])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("solver", [SGD(), Noisy()], ids=str)
def test_dropout_draws_between_samples_and_solver_as_the_module_does(solver):
    """Whatever else draws from the same generator: the same numbers as by autograd."""

    def model():
        return nn.Sequential(nn.Dropout(0.3), nn.Conv2d(1, 3, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(300, 4))

    (ours, x), (theirs, _) = (trainer_of(model, lazy(Blurred(pictures())), solver) for _ in range(2))
    assert ours.network is not None
    theirs.network = None
    jobs = jobs_of((0, 9, 5), (2, 4, 40), lr=0.01)
    assert np.allclose(ours.train(x, jobs).updates, theirs.train(x, jobs).updates, atol=1e-6)
    assert ours.network._factors.size == 40 * (144 + 300), "those of one batch are kept"


def test_another_device_is_refused_before_a_sample_is_taken(monkeypatch):
    samples = Samples(np.zeros((1, 1, 12, 12), np.float32), np.zeros(1, np.int64), (), (), torch.device("cpu"))
    samples.device = torch.device("cuda")
    monkeypatch.setattr(samples, "take", None)
    model = odd_dense()
    assert CompiledNetwork.of(model, FlatModule(model).layout, samples, Classification()) is None


def test_one_layer_is_a_model():
    trainer, x = trainer_of(lambda: nn.Linear(6, 1), regression_data())
    assert trainer.network is not None
    assert np.isfinite(trainer.train(x, jobs_of((0, 3, 5))).updates).all()


def test_a_regression_to_several_numbers_is_not_taken_for_one():
    assert network_of(nn.Sequential(nn.Linear(6, 3), nn.ReLU()), (6,), Regression()) is None


def test_a_task_with_a_loss_of_its_own_goes_one_by_one():
    class Smoothed(Classification):
        def loss(self, output, batch):
            return F.cross_entropy(output, batch.y, reduction="none", label_smoothing=0.1)

    assert network_of(odd_dense(), (1, 12, 12), Smoothed()) is None


def test_without_numba_clients_train_one_by_one(monkeypatch):
    monkeypatch.setattr("fedweave.local.torch.trainer.find_spec", lambda _name: None)
    data = image_data()
    trainer, x = trainer_of(odd_cnn, data)
    assert trainer.network is None
    job = jobs_of((0, 9, 5))
    assert np.allclose(trainer.train(x, job).updates[0], reference(odd_cnn, data, x, job)[0], atol=1e-6)


def test_torchs_default_type_does_not_matter():
    trainer, x = trainer_of(odd_cnn, image_data(), Adam())
    expected = trainer.train(x, jobs_of((0, 2, 5))).updates
    torch.set_default_dtype(torch.float64)
    try:
        assert np.array_equal(trainer.train(x, jobs_of((0, 2, 5))).updates, expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_layers_are_named_as_the_module_names_them():
    model = nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    chain, outputs = table.chain_of(model, (1, 12, 12))
    assert outputs == (2,)
    assert [layer.names for layer in chain if layer.names] == [("0.1.weight", "0.1.bias"), ("1.1.weight", "1.1.bias")]


if __name__ == "__main__":
    from fedweave.local.compiled import kernels

    torch.set_num_threads(1)
    module, target = made = kernels.compiled()
    assembly = target.emit_assembly(module.clone())
    kernels.compiled = lambda: made
    found = max(name for name in ("xmm", "ymm", "zmm") if f"%{name}" in assembly)
    sys.stdout.write(f"{digest(odd_dense)} {digest(odd_cnn)} {found}")
