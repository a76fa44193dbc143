"""FedDD: how far masked aggregation is from the mean, and the convergence bound of Theorem 2 that can be proved.

Theorem 2 (eq. 22) as printed is false: its residual falls with η for every way to choose the masks, because (28) and
(29) drop inner products as if masks were right on average, and Assumption 3 bounds the error by the length of the
*models*, which is as large as one likes after a translation. Counterexample: N = 2 clients with optima ±e, of which
only the first ever uploads. The model settles at the first optimum, ‖∇F‖² = σ² = e², for every learning rate.

What holds, for one local gradient step η ≤ 1/L per round, equal weights and every entry sent by somebody. With ε the
``mask_error``, the masked mean of v_n differs from their mean by at most √(ε var v), var v = (1/N) Σ ‖v_n − v̄‖². A
client goes on from the new model W where it sent, and from its own result where it did not (eq. 5). So the *mean Z of
the clients' models* is untouched by masks: Z ← Z − η (1/N) Σ ∇F_n(W_n), exactly, and the others' spread around it never
grows by a masked average. Mask errors enter Z only with the whole broadcasts (eq. 6), and W differs from Z by the last
one.
"""

from __future__ import annotations

import math

import numpy as np

from fedweave.core.records import Array


def mask_error(uploaders: Array, clients: int) -> float:
    """Return ε = max_k N/c_k − 1: ‖masked mean − mean‖² ≤ ε (1/N) Σ ‖u_n − ū‖², entry k sent by c_k = ``uploaders[k]``.

    For masks chosen in any way; reached where those who send agree and the others agree on something else. In the mean
    over masks that take c_k clients at random it is ε/(N − 1).
    """
    c = np.asarray(uploaders, float)
    if ((c < 1) | (c > clients)).any():
        entry = int(np.flatnonzero((c < 1) | (c > clients))[0])
        raise ValueError(f"Every entry must be sent by 1 to {clients} clients. Got {c[entry]!r} for entry {entry}.")
    return float(clients / c.min() - 1)


def dropout_bound(
    gap: float,
    rounds: int,
    lr: float,
    smoothness: float,
    epsilon: Array | float,
    sigma: float,
    refresh: int = 1,
    clients_if_random: int | None = None,
) -> float:
    """FedDD, Theorem 2 corrected: a bound of (1/T) Σ ‖∇F(W^t)‖², whole broadcasts after every ``refresh``-th round (h).

    gap = F(W^0) − F*; ``epsilon`` is ε of all rounds or of each; σ² ≥ (1/N) Σ ‖∇F_n − ∇F‖². Masks are chosen in any
    way, or, with ``clients_if_random`` = N, at random: the bound is then of the expectation. The clients' models spread
    by at most η σ S before a round and by η σ s after their steps, s = (1 + η L) S + 1:

        (√(2 gap/(η T) + σ² (1/T) Σ ρ²) + η L σ √((1/T) Σ l²))²

    - m is ε for any masks, ε/(N − 1) at random; κ is 1 (0 for ε = 0), N/(N − 1) ε/(1 + ε) at random
    - the next round has S = √κ s and l = √m s, and both are 0 in the first round and after a whole broadcast
    - ρ = η L S; with a whole broadcast ρ = η L S + √m s for any masks, ρ² = (η L S)² + η L m s² at random

    For h = 1 that is 2 gap/(η T) + ε σ², which the example above reaches. At random it is then sharpened to
    (2 gap/T + L η² m σ²)/(2 η − L η²), which is reached as well; eq. 22 is above it.
    """
    if not 0 < lr * smoothness <= 1:
        raise ValueError(f"lr must be in (0, 1/L]. Got {lr!r} for L = {smoothness!r}.")
    errors = np.broadcast_to(np.asarray(epsilon, float), rounds)
    misses = errors / max(clients_if_random - 1, 1) if clients_if_random else errors
    if clients_if_random and refresh == 1:
        return (2 * gap / rounds + smoothness * lr**2 * misses.mean() * sigma**2) / (2 * lr - smoothness * lr**2)
    z, apart, lag, residual, behind = lr * smoothness, 0.0, 0.0, 0.0, 0.0
    for t, (e, miss) in enumerate(zip(errors, misses, strict=True), 1):
        behind += lag**2
        after, whole = (1 + z) * apart + 1, t % refresh == 0
        jump = math.sqrt(miss) * after
        residual += (z * apart) ** 2 + z * jump**2 if whole and clients_if_random else (z * apart + whole * jump) ** 2
        kept = clients_if_random / max(clients_if_random - 1, 1) * e / (1 + e) if clients_if_random else float(e > 0)
        apart, lag = (0.0, 0.0) if whole else (math.sqrt(kept) * after, jump)
    descent = 2 * gap / (lr * rounds) + sigma**2 * residual / rounds
    return (math.sqrt(descent) + z * sigma * math.sqrt(behind / rounds)) ** 2
