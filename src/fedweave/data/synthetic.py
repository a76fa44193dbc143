"""Generated data: the regression of DELTA and Synthetic(α, β) of FedProx (Li et al., arXiv:1812.06127)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedweave.core.settings import BadInput
from fedweave.data.arrays import from_arrays
from fedweave.data.columns import Array
from fedweave.data.dataset import Dataset


def regression(
    clients: int = 20,
    samples: int = 1000,
    slope: float | Sequence[float] = 10.0,
    offset: float | Sequence[float] = 1.0,
    span: tuple[float, float] = (1.0, 2.0),
    noise: float = 0.0,
    seed: int = 0,
) -> Dataset:
    """DELTA's synthetic regression: y = log((A x − b)² / 2), ``samples`` per client; group = client.

    ``slope`` A and ``offset`` b are one number or one per client. x is uniform on ``span``, which must not
    contain the singularity b / A; the paper does not give the distribution of x. ``noise`` is the standard deviation
    of the noise added to y (the paper's gradient noise belongs to training, not to the data). The test set has a
    fifth as many further samples of each client.
    """
    _check_positive("regression", clients=clients, samples=samples)
    A, b = _per_client(slope, clients, "slope"), _per_client(offset, clients, "offset")
    low, high = span
    if not low < high or ((A * low - b) * (A * high - b) <= 0).any():
        raise BadInput(f"The 'span' parameter of regression must be a range without b / A in it. Got {span!r}.")
    if noise < 0:
        raise BadInput(f"The 'noise' parameter of regression must be at least 0. Got {noise!r}.")
    rng = np.random.default_rng(seed)

    def draw(each: int) -> tuple[Array, Array, Array]:
        group = np.repeat(np.arange(clients), each)
        x = rng.uniform(low, high, len(group))
        y = np.log((A[group] * x - b[group]) ** 2 / 2) + noise * rng.standard_normal(len(group))
        return x[:, None].astype(np.float32), y.astype(np.float32), group

    x, y, group = draw(samples)
    test_x, test_y, test_group = draw(max(1, samples // 5))
    return from_arrays(x, y, test_x, test_y, "regression", group, test_group)


def classification(
    clients: int = 30,
    samples: int = 50,
    classes: int = 10,
    features: int = 60,
    alpha: float = 1.0,
    beta: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """Synthetic(α, β): each client labels its own kind of x by its own linear model; group = client.

    Client k: y = argmax(W_k x + b_k), W_k and b_k ~ N(u_k, 1), u_k ~ N(0, α); x ~ N(v_k, Σ), Σ_jj = j^−1.2,
    v_k ~ N(B_k, 1), B_k ~ N(0, β), with α and β as standard deviations. Sizes are ``samples`` plus a
    log-normal(4, 2) number; a fifth of each client's samples is test data.
    """
    _check_positive("classification", clients=clients, samples=samples, classes=classes, features=features)
    if alpha < 0 or beta < 0:
        raise BadInput(f"The 'alpha' and 'beta' parameters must be at least 0. Got {alpha!r} and {beta!r}.")
    rng = np.random.default_rng(seed)
    sizes = samples + rng.lognormal(4, 2, clients).astype(np.int64)
    u, B = rng.normal(0, alpha, clients), rng.normal(0, beta, clients)
    spread = np.arange(1, features + 1) ** -0.6  # square root of Σ's diagonal
    parts: list[tuple[Array, Array]] = []
    for k in range(clients):
        W, b = rng.normal(u[k], 1, (features, classes)), rng.normal(u[k], 1, classes)
        v = rng.normal(B[k], 1, features)
        x = v + spread * rng.standard_normal((sizes[k], features))
        parts.append((x.astype(np.float32), np.argmax(x @ W + b, axis=1)))
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    group = np.repeat(np.arange(clients), sizes)
    return from_arrays(x, y, name="synthetic", group=group, classes=classes)


def quadratics(clients: int = 1000, dim: int = 10, seed: int = 0) -> Dataset:
    """FedACS's toy example: client m has the objective F_m(x) = ½ ‖x − e_m‖² with its own point e_m ~ N(0, I).

    For the model ``quadratic``. The points are samples, one per client (partition ``natural``); with several samples a
    client's optimum is their mean. The test samples are the same points, so the test loss is the mean objective.
    """
    _check_positive("quadratics", clients=clients, dim=dim)
    x = np.random.default_rng(seed).standard_normal((clients, dim)).astype(np.float32)
    y, each = np.zeros(clients, np.float32), np.arange(clients)
    return Dataset("quadratics", x, y, x, y, 0, group=each, test_group=each)


def _check_positive(caller: str, **values: int) -> None:
    wrong = [f"The {k!r} parameter of {caller} must be at least 1. Got {v!r}." for k, v in values.items() if v < 1]
    if wrong:
        raise BadInput(*wrong)


def _per_client(value: float | Sequence[float], clients: int, name: str) -> Array:
    array = np.asarray(value, np.float64)
    if array.shape not in ((), (clients,)) or not np.isfinite(array).all():
        raise BadInput(
            f"The {name!r} parameter of regression must be one number or {clients}. Got shape {array.shape}."
        )
    return np.broadcast_to(array, clients)
