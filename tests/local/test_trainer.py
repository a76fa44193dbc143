"""Local training: the fast paths against a plain torch loop, company, uneven work, dropout, batch norm."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedweave.core.roles import Solver
from fedweave.local.batches import batches
from fedweave.local.solvers import SGD, Adam, Prox
from fedweave.local.torch.flat_module import FlatModule, initial_vector
from fedweave.local.torch.trainer import TorchTrainer
from fedweave.tasks.task import Task, add_up
from jobs import jobs_of
from local.plain_loop import LR, each, reference, strided, trainer_of
from worlds import image_data, regression_data

SIZES = [23, 7, 40, 12, 31]
JOBS = jobs_of((0, 9, 5), (1, 4, 5), (2, 12, 8), (3, 1, 12), (4, 9, 5))
FIRST = JOBS.take([0])


class Own(nn.Module):
    """A module of a user's own, with no layers that the fast path knows by name."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(144, 8, bias=False)
        self.scale = nn.Parameter(torch.ones(8))
        self.outer = nn.Linear(8, 4)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x.flatten(1))) * self.scale)


def logistic():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 4))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(45, 4)
    )


def dropped():
    return nn.Sequential(
        nn.Dropout(0.1), nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4), nn.Dropout(0.2)
    )


def dropped_cnn():
    return nn.Sequential(
        nn.Dropout(0.1), nn.Conv2d(1, 3, 3), nn.Dropout(0.2), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3, inplace=True),
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Dropout(0.4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(45, 4),
    )  # fmt: skip


def line():
    return nn.Sequential(nn.Linear(6, 1))


@pytest.mark.parametrize(
    ("model", "data", "compiled"),
    [
        (logistic, image_data, True),
        (mlp, image_data, True),
        (Own, image_data, False),
        (cnn, image_data, True),
        (strided, image_data, False),
        (dropped, image_data, True),
        (dropped_cnn, image_data, True),
        (line, regression_data, True),
    ],
)
def test_every_path_trains_like_a_plain_torch_loop(model, data, compiled):
    data = data()
    trainer, x = trainer_of(model, data)
    assert (trainer.network is not None) == compiled
    for rows in trainer.pieces(JOBS):
        jobs = JOBS.take(rows)
        trained = trainer.train(x, jobs)
        for i, job in enumerate(each(jobs)):
            expected = reference(model, data, x, job)
            assert np.allclose(trained.updates[i], expected.update, rtol=1e-3, atol=1e-5)
            assert trained.loss[i] == pytest.approx(expected.loss, rel=1e-4)
            assert trained.first_loss[i] == pytest.approx(expected.losses[0].mean(), rel=1e-4)
            squares = np.mean([(losses**2).mean() for losses in expected.losses])
            assert trained.squared_loss[i] == pytest.approx(squares, rel=1e-4)


@pytest.mark.parametrize("solver", [SGD(momentum=0.9), Prox(0.1)], ids=str)
def test_a_solver_of_any_kind_reports_its_losses(solver):
    """Step by step through the kernels and by autograd: the same numbers."""
    data, wanted = image_data(), ("first_loss", "squared_loss")
    (ours, x), (theirs, _) = trainer_of(mlp, data, solver), trainer_of(mlp, data, solver)
    theirs.network = None
    a, b = ours.train(x, JOBS), theirs.train(x, JOBS)
    for name in wanted:
        assert np.allclose(getattr(a, name), getattr(b, name), rtol=1e-4)
        assert (getattr(a, name) > 0).all()


def test_squared_losses_are_unknown_where_a_task_reports_means():
    def mean(output, batch):
        return F.cross_entropy(output, batch.y)

    def every(output, batch):
        return F.cross_entropy(output, batch.y, reduction="none")

    found = []
    for loss in (mean, every):
        torch.manual_seed(0)
        module = mlp()
        trainer = TorchTrainer(module, image_data(), SGD(), 0, task=Task(loss=loss))
        found.append(trainer.train(initial_vector(module), FIRST))
    assert np.isnan(found[0].squared_loss).all()
    assert found[0].first_loss == pytest.approx(found[1].first_loss)
    assert found[1].squared_loss > found[1].loss ** 2  # Jensen


@pytest.mark.parametrize("model", [logistic, mlp, Own, cnn, strided, dropped_cnn])
@pytest.mark.parametrize("solver", [SGD(), SGD(momentum=0.9), Adam(), Prox(0.1)], ids=str)
def test_company_does_not_change_a_single_bit(model, solver):
    data = image_data()
    trainer, x = trainer_of(model, data, solver)
    jobs = jobs_of(*((c, t, 5) for c, t in zip((2, 0, 4, 3, 1), (12, 9, 9, 5, 1), strict=True)))
    together, losses, *_ = trainer.train(x, jobs)
    for i, job in enumerate(each(jobs)):
        alone, loss, *_ = trainer.train(x, job)
        assert np.array_equal(alone[0], together[i])
        assert loss[0] == losses[i]


def gradients_on_the_way(model, data, x, job, solver, still=False):
    """Return the stochastic gradients (steps, D) that a client meets, by plain autograd; ``still``: all at x."""
    torch.manual_seed(0)
    module = model()
    (plan,) = batches(0, job, data.parts)
    y, state, found = torch.from_numpy(x.copy()), solver.begin(torch.from_numpy(x)), []
    for t in range(int(job.steps[0])):
        nn.utils.vector_to_parameters(y.clone(), module.parameters())
        rows = plan.where[t, : plan.size[t]]
        xb = (torch.from_numpy(data.x[rows]).float() / 255 - data.mean[0]) / data.std[0]
        loss = F.cross_entropy(module(xb), torch.from_numpy(data.y[rows]))
        g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, list(module.parameters()))])
        found.append(g.numpy().astype(float))
        d, state = solver.direction(state, g, y, torch.from_numpy(x), LR, t)
        y = y if still else y - LR * d
    return np.array(found)


@pytest.mark.parametrize("model", [logistic, mlp, Own, cnn, strided])
@pytest.mark.parametrize("solver", [SGD(), SGD(momentum=0.9), Prox(0.1)], ids=str)
def test_the_variance_on_the_way_is_that_of_the_gradients_met(model, solver):
    """σ² = mean ‖g_t − mean g‖², found while training; who does not ask gets the same update and no number."""
    data = image_data()
    trainer, x = trainer_of(model, data, solver)
    for rows in trainer.pieces(JOBS):
        jobs = JOBS.take(rows)
        plain, asked = trainer.train(x, jobs), trainer.train(x, jobs._replace(measure=True))
        assert np.array_equal(plain.updates, asked.updates)
        assert np.isnan(plain.variance).all()
        for job, variance in zip(each(jobs), asked.variance, strict=True):
            g = gradients_on_the_way(model, data, x, job, solver)
            assert variance == pytest.approx(((g - g.mean(0)) ** 2).sum(1).mean(), rel=1e-3, abs=1e-9)
            alone = trainer.train(x, job._replace(measure=True))
            assert alone.variance[0] == variance, "whatever its company"


@pytest.mark.parametrize("model", [mlp, cnn, strided])
def test_probes_of_loss_and_variance(model):
    data = image_data()
    trainer, x = trainer_of(model, data)
    for client, part in enumerate(data.parts):
        g = gradients_on_the_way(model, data, x, jobs_of((client, -(-part.size // 5), 5)), SGD(), still=True)
        expected = ((g - g.mean(0)) ** 2).sum(1).mean()
        one = np.array([client])
        assert trainer.variances(x, 1, one, np.array([5])) == pytest.approx([expected], rel=1e-3)
        torch.manual_seed(0)
        module = model()
        xb = (torch.from_numpy(data.x[part]).float() / 255 - data.mean[0]) / data.std[0]
        loss = F.cross_entropy(module(xb), torch.from_numpy(data.y[part])).item()
        assert trainer.losses(x, one) == pytest.approx([loss], rel=1e-5)


@pytest.mark.parametrize("model", [logistic, mlp, Own, cnn, strided])
def test_prox_zero_is_sgd_bit_for_bit(model):
    data = image_data()
    (plain, x), (pulled, _) = trainer_of(model, data, SGD()), trainer_of(model, data, Prox(0.0))
    assert np.array_equal(plain.train(x, FIRST)[0], pulled.train(x, FIRST)[0])


class Lagged(Solver):
    """Steps along this gradient and the one before, which it keeps as it is or as a copy."""

    def __init__(self, copies):
        self.copies = copies

    def begin(self, y):
        return ()

    def direction(self, state, g, y, x, lr, t):
        return g + state[0] if state else 1 * g, (1 * g if self.copies else g,)


def test_a_solver_may_keep_a_gradient():
    found = []
    for copies in (False, True):
        trainer, x = trainer_of(Own, image_data(), Lagged(copies))
        found.append(trainer.train(x, FIRST).updates)
    assert np.array_equal(*found)


def test_prox_keeps_clients_nearer():
    data = image_data()
    trainer, x = trainer_of(mlp, data)
    free = trainer.train(x, JOBS.take([2]))[0]
    held = trainer_of(mlp, data, Prox(5.0))[0].train(x, JOBS.take([2]))[0]
    assert np.linalg.norm(held) < np.linalg.norm(free)


@pytest.mark.parametrize("model", [logistic, Own])
def test_pieces_cover_all_jobs_once_with_equal_learning_rates(model):
    trainer, _ = trainer_of(model, image_data())
    jobs = jobs_of(*((i % 5, 1 + i % 7, 1 + i % 40) for i in range(200)))
    jobs = jobs._replace(lr=np.where(np.arange(200) % 3, 0.1, 0.05))
    pieces = trainer.pieces(jobs)
    assert sorted(np.concatenate(pieces)) == list(range(200))
    assert all(len(set(some.lr)) == 1 for some in map(jobs.take, pieces))


@pytest.mark.parametrize(("layer", "compiled"), [(nn.Dropout, True), (nn.AlphaDropout, False)])
def test_dropout_draws_at_the_clients_address(layer, compiled):
    def model():
        return nn.Sequential(nn.Flatten(), nn.Linear(144, 30), layer(0.5), nn.Linear(30, 4))

    trainer, x = trainer_of(model, image_data())
    assert (trainer.network is not None) == compiled
    first, *_ = trainer.train(x, JOBS.take([0, 1]))
    torch.rand(7)  # the global stream is neither read nor moved
    before = torch.get_rng_state()
    second, *_ = trainer.train(x, JOBS.take([1, 0]))
    assert np.array_equal(first, second[::-1])
    assert torch.equal(before, torch.get_rng_state())
    assert not np.array_equal(first, trainer.train(x, JOBS.take([0, 1])._replace(dispatch=np.array([2, 2])))[0])


def test_dropout_called_as_a_function_goes_one_by_one():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(144, 4)

        def forward(self, x):
            return self.layer(F.dropout(x.flatten(1), 0.5, self.training))

    trainer, x = trainer_of(Hidden, image_data())
    assert trainer.network is None
    assert np.array_equal(trainer.train(x, FIRST)[0], trainer.train(x, FIRST)[0])


def batch_norm():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(300, 4))


def test_batch_norm_buffers_are_part_of_the_vector():
    trainer, x = trainer_of(batch_norm, image_data())
    layout = trainer.layout
    assert layout.dim - layout.parameters == 6
    assert layout.names[-2:] == ("1.running_mean", "1.running_var")
    update, *_ = trainer.train(x, FIRST)
    buffers = layout.split(update[0])
    assert buffers["1.running_mean"].any()
    again, *_ = trainer.train(x, FIRST)
    assert np.array_equal(update, again)  # nothing is left over from the last participation


def test_a_negative_variance_is_lifted_to_zero():
    trainer, x = trainer_of(batch_norm, image_data())
    trainer.layout.split(x)["1.running_var"][:] = -1.0
    assert np.isfinite(trainer.evaluate(x, 0, 30)["loss"][0])


def test_flat_module_reads_what_it_loads():
    flat = FlatModule(cnn())
    x = np.random.default_rng(1).standard_normal(flat.layout.dim).astype(np.float32)
    flat.load(x)
    assert np.array_equal(flat.read(), x)
    for name, tensor in flat.layout.split(x).items():
        assert np.array_equal(dict(flat.module.named_parameters())[name].detach().numpy(), tensor)


def test_flat_gradient_is_autograds():
    torch.manual_seed(0)
    plain, flat = cnn(), FlatModule(cnn())
    flat.load(initial_vector(plain))
    xb, yb = torch.randn(6, 1, 12, 12), torch.tensor([0, 1, 2, 3, 0, 1])
    F.cross_entropy(plain(xb), yb).backward()
    inner = flat.gradient(F.cross_entropy(flat.module(flat.fit(xb)), yb))
    flat.parameters.copy_(inner)  # through the views, the inner order becomes the outer one
    expected = np.concatenate([p.grad.reshape(-1).numpy() for p in plain.parameters()])
    assert np.allclose(flat.read(), expected, atol=1e-6)


def test_evaluation_adds_up():
    data = image_data()
    trainer, x = trainer_of(mlp, data)
    whole, parts = trainer.evaluate(x, 0, 30), [trainer.evaluate(x, i, i + 10) for i in (0, 10, 20)]
    correct, count = whole["class_accuracy"]
    assert whole["loss"][0] == pytest.approx(add_up(parts)["loss"][0], rel=1e-5)
    assert np.array_equal(correct, add_up(parts)["class_accuracy"][0])
    assert np.array_equal(count, np.bincount(data.test_y, minlength=4))
    with torch.no_grad():
        images = (torch.from_numpy(data.test_x).float() / 255 - 0.3) / 0.5
        torch.manual_seed(0)
        guess = mlp()(images).argmax(1).numpy()
    assert np.array_equal(correct, np.bincount(data.test_y[guess == data.test_y], minlength=4))


class Masked(nn.Module):
    """Constants of all kinds: a bool mask, a -inf mask, a table that is not saved, a frozen layer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keep", torch.ones(4, dtype=torch.bool))
        self.register_buffer("causal", torch.full((2, 2), float("-inf")))
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.frozen = nn.Linear(144, 8).requires_grad_(False)
        self.f = nn.Linear(8, 4)

    def forward(self, x):
        return self.f(self.frozen(x.flatten(1))) * self.keep + self.table


def test_constants_stay_and_do_not_travel():
    data = image_data()
    trainer, x = trainer_of(Masked, data)
    assert trainer.layout.names == ("f.weight", "f.bias")
    frozen = trainer.flat.module.frozen.weight.clone()
    for job in each(JOBS):
        update, *_ = trainer.train(x, job)
        assert np.isfinite(update).all()
        assert update.any()
    module = trainer.flat.module
    assert module.keep.all()
    assert torch.equal(module.frozen.weight, frozen)
    assert trainer.evaluate(x, 0, 30)["loss"][0] > 0


def test_a_linear_layer_on_part_of_a_sample_is_not_mistaken_for_a_flat_one():
    def model():
        return nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))

    data = image_data()
    trainer, x = trainer_of(model, data)
    update, *_ = trainer.train(x, FIRST)
    assert np.allclose(update[0], reference(model, data, x, FIRST)[0], rtol=1e-3, atol=1e-5)


def test_a_last_batch_of_one_sample_is_no_trouble_for_batch_norm():
    def model():
        return nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    trainer, x = trainer_of(model, image_data())
    update, *_ = trainer.train(x, jobs_of((4, 4, 10)))  # 31 samples: batches of 10, 10, 10 and 1
    assert np.isfinite(update).all()
