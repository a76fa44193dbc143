"""Seconds to solve FedAWARE's eq. 8 on a given Gram matrix of 1,000 clients, cold, and how exact the answer is.

The Gram matrices are those of D = 10^6 long momenta: independent ones (drawn from the Wishart law, so that no table of
4 GB is needed), of different lengths, with a common part, with a part per class as Dirichlet label skew makes them; and
of models so small that the Gram matrix is singular. The other side is SciPy's NNLS (Lawson and Hanson) on the Cholesky
factor, one BLAS thread for both, alternating. ``gap`` is the certificate (‖d‖² − min ⟨d, m⟩)/‖d‖²; where ‖d‖ is 0 up to
rounding there is none, and ``length``, ‖d‖ over the mean length, says so.
Use: python benchmarks/min_norm.py [--clients 1000] [--turns 5]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits

from fedweave.solve import min_norm_weights

DIM = 10**6
Array = Any


def wishart(n: int, rng: np.random.Generator) -> Array:
    """Return the Gram matrix of n standard normal vectors of length DIM, by Bartlett's decomposition."""
    A = np.tril(rng.standard_normal((n, n)), -1)
    A[np.diag_indices(n)] = np.sqrt(rng.chisquare(DIM - np.arange(n)))
    return A @ A.T / DIM


def grams(n: int, seed: int = 0) -> Iterator[tuple[str, Array]]:
    """Yield Gram matrices by name."""
    rng = np.random.default_rng(seed)
    W, length = wishart(n, rng), np.exp(rng.standard_normal(n))
    by_class = rng.dirichlet(np.full(10, 0.1), n) @ (rng.standard_normal((10, 10)) + 1)
    yield "independent", W
    yield "different lengths", W * np.outer(length, length)
    yield "a common part", W + 1
    yield "parts per class", (0.3 * W + by_class @ by_class.T) * np.outer(length, length)
    yield "parts per class, little noise", (0.001 * W + by_class @ by_class.T) * np.outer(length, length)
    for rank in (10, 50, 300, 900):
        X = rng.standard_normal((n, rank)) + 0.5
        yield f"rank {rank}", X @ X.T
    X = rng.standard_normal((n, 900))
    yield "rank 900, origin near the hull", X @ X.T
    X = rng.standard_normal((n, 300))
    yield "rank 300, origin inside", X @ X.T
    X = X.astype(np.float32)
    yield "the same from float32 sums", X @ X.T
    X = np.repeat(rng.standard_normal((n // 10, 5000)) + 0.05, 10, 0)
    yield "each ten times", X @ X.T


def by_nnls(Q: Array) -> Array:
    """Return the weights by Lawson and Hanson: min ‖L'u‖² + (1'u − 1)² for Q = LL'."""
    Q = Q / np.diag(Q).mean()
    try:
        L = np.linalg.cholesky(Q + 1 + 1e-12 * np.eye(len(Q)))
    except np.linalg.LinAlgError:  # float32 sums
        L = np.linalg.cholesky(Q + 1 + 1e-5 * np.eye(len(Q)))
    u, _ = nnls(L.T, np.linalg.solve(L, np.ones(len(Q))), maxiter=30 * len(Q))
    return u / u.sum()


def timed(function: Callable[[Array], Array], Q: Array) -> tuple[float, Array]:
    """Return seconds and weights."""
    begin = time.perf_counter()
    weights = function(Q)
    return time.perf_counter() - begin, weights


def measure(name: str, Q: Array, turns: int) -> dict[str, Any]:
    """Return the median seconds of ours, of NNLS and of their ratio, and what each found."""
    Q = Q.astype(float)
    rows = [(timed(min_norm_weights, Q), timed(by_nnls, Q)) for _ in range(turns)]
    (_, ours), (_, theirs) = rows[-1]
    seconds = np.array([(a[0], b[0]) for a, b in rows])
    product, other = Q @ ours, theirs @ Q @ theirs
    square, near = ours @ product, (ours @ np.sqrt(np.diag(Q))) ** 2
    return {
        "gram": name,
        "seconds": float(np.median(seconds[:, 0])),
        "slowest": float(seconds[:, 0].max()),
        "nnls_seconds": float(np.median(seconds[:, 1])),
        "ratio": float(np.median(seconds[:, 0] / seconds[:, 1])),
        "gap": float((square - product.min()) / square) if square > 1e-12 * near else None,
        "length": float(np.sqrt(max(square, 0) / near)),
        "excess_over_nnls": float((square - other) / max(other, 1e-14 * near)),
        "support": int(np.count_nonzero(ours > 1e-9)),
    }


def main() -> None:
    """Measure and print one JSON object per Gram matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.2f}, cores: {os.cpu_count()}", flush=True)
    with threadpool_limits(1, "blas"):
        for name, Q in grams(options.clients):
            print(json.dumps(measure(name, Q, options.turns)), flush=True)


if __name__ == "__main__":
    main()
