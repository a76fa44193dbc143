"""Toy worlds that tests share: clients, views, cohorts and replies, small data sets and small experiments.

Every maker fills in the plainest value and takes what matters to a test by keyword; a number stands for a whole column.
"""

import numpy as np
from torch import nn

import fedweave as fw
from fedweave.core.records import NO_CONTEXT, Assignment, Cohort, Layout, Population, Replies, View
from fedweave.engine.simulator import Simulator
from fedweave.local.client_data import ClientData
from fedweave.local.quadratic import QuadraticTrainer

N = 8  # clients of ``data`` and ``population``


def filled(size, plain, given):
    """Return the ``plain`` columns with the ``given`` ones in their place."""
    given = {k: np.full(size, v) if np.isscalar(v) else v for k, v in given.items()}
    return plain | given


def equal_clients(n, **fields):
    """Return a population of ``n`` equal clients that are always there and always heard."""
    one, whole = np.ones(n), np.ones(n, int)
    plain = {
        "weight": one / n,
        "samples": 10 * whole,
        "steps": 3 * whole,
        "batch_size": whole,
        "loss_rate": 0 * one,
        "latency": one,
        "available": one > 0,
    }
    return Population(**filled(n, plain, fields))


def layout(dim, parameters=None):
    """Return the layout of a vector whose first ``parameters`` entries are trained; all of them unless given."""
    trained = dim if parameters is None else parameters
    return Layout(names=("w", "running_mean"), shapes=((trained,), (dim - trained,)), parameters=trained)


def view(population, dim=2, **fields):
    """Return what a server stage sees in round 1 of a model of zeros; the effort of a step is 1."""
    plain = {
        "round": 1,
        "x": np.zeros(dim),
        "population": population,
        "layout": layout(dim),
        "lr": 0.1,
        "effort_of": lambda steps: steps.astype(float),
    }
    return View(**(plain | fields))


class Probes:
    """Clients that answer as a test says: a function of the ids, or one row for each client."""

    def __init__(self, **answers):
        for name, answer in answers.items():
            setattr(self, name, answer if callable(answer) else lambda ids, rows=answer: rows[ids])


def assignment(engine, round, x, cohort, population, lr, context=NO_CONTEXT):
    """Return what this cohort is asked in this round, for an engine."""
    fields = {"x": x, "layout": engine.layout, "lr": lr, "seed": getattr(engine, "seed", 0)}
    return Assignment(view(population, round=round, **fields), cohort, context)


def cohort(ids, **fields):
    """Return a cohort in which each client is drawn once, and was certain to be."""
    ids = np.asarray(ids, int)
    return Cohort(ids=ids, **filled(ids.size, {"count": np.ones(ids.size, int), "expected": np.ones(ids.size)}, fields))


def replies(updates, received=None, **fields):
    """Return answers with these updates (k, D); the rows of the lost ones are zero."""
    one = np.ones(len(updates))
    received = one > 0 if received is None else np.array(received, bool)
    plain = {"steps": one, "loss": one, "first_gradient": one, "seconds": one, "bytes_up": one}
    updates = np.where(received[:, None], updates, np.zeros(1, updates.dtype))
    return Replies(received=received, updates=updates, **filled(one.size, plain, fields))


def quadratic_simulator(problem, solver, seed, weight, upload=None):
    """Return a simulator of clients with quadratic objectives."""
    return Simulator(QuadraticTrainer(problem, solver, seed, weight), upload)


def data():
    """Return images of eight clients with 1 to 40 samples each."""
    return image_data((5, 25, 30, 1, 39, 30, 40, 30), (1, 8, 8), classes=10)


def population(loss_rate=0.0):
    """Return the eight clients of ``data``, of which the n-th takes n steps."""
    samples = np.array([part.size for part in data().parts])
    batch = np.minimum(7, samples)
    return equal_clients(
        N, samples=samples, steps=np.arange(1, N + 1), batch_size=batch, loss_rate=loss_rate, latency=2.0
    )


def everyone():
    """Return the cohort of all eight."""
    return cohort(np.arange(N))


def dense():
    """Return a network for the images of ``data``."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def image_data(sizes=(23, 7, 40, 12, 31), shape=(1, 12, 12), classes=4, seed=0):
    """Return random images that belong to clients of these sizes, in no order; the first thirty are the test set."""
    rng, n = np.random.default_rng(seed), sum(sizes)
    x, y = rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, classes, n)
    mean, std = (0.3,) * shape[0], (0.5,) * shape[0]
    return client_data(x, y, sizes, mean=mean, std=std, order=rng.permutation(n))


def regression_data(sizes=(23, 7, 40, 12, 31), seed=0):
    """Return a noisy line in six dimensions."""
    rng, n = np.random.default_rng(seed), sum(sizes)
    x = rng.standard_normal((n, 6)).astype(np.float32)
    return client_data(x, (x @ np.arange(6) + rng.standard_normal(n)).astype(np.float32), sizes)


def client_data(x, y, sizes, mean=(), std=(), order=None):
    """Return these samples, of which each client has so many; the first thirty are the test set."""
    parts = np.split(np.arange(len(x)) if order is None else order, np.cumsum(sizes)[:-1])
    return ClientData(x=x, y=y, test_x=x[:30], test_y=y[:30], mean=mean, std=std, parts=parts)


def experiment(method=None, **changes):
    """Return six uneven clients of the digits, half of them slow and lossy: a run takes a tenth of a second."""
    settings = {
        "data": "digits",
        "partition": fw.partition.Dirichlet(clients=6, alpha=0.5),
        "system": fw.system.Dynamic(slow_work=(1, 2), fast_work=(4, 6)),
        "rounds": 6,
        "workers": 1,
    }
    return fw.Experiment(method=method or fw.methods.fedavg(3), **(settings | changes))
