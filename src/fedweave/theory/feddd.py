"""FedDD: how far masked aggregation is from the mean, and the convergence bound of Theorem 2 that can be proved.

Theorem 2 (eq. 22) as printed is false: its residual falls with η for every way to choose the masks, because (28) and
(29) drop inner products as if masks were right on average, and Assumption 3 bounds the error by the length of the
*models*, which is as large as one likes after a translation. Counterexample: N = 2 clients with optima ±e, of which
only the first ever uploads. The model settles at the first optimum, ‖∇F‖² = σ² = e², for every learning rate.

What holds for one local gradient step η ≤ 1/L per round, equal weights, masks chosen in any way and every entry sent by
somebody: let ε be the ``mask_error`` and σ² = (1/N) Σ σ_n², σ_n ≥ ‖∇F_n − ∇F‖. The masked mean of updates u_n differs
from their mean by at most √(ε (1/N) Σ ‖u_n − ū‖²). Clients start j rounds after a whole broadcast at most η σ S_j away
from the model in quadratic mean, S_0 = 0 and S_{j+1} = √(1 + ε) ((1 + η L) S_j + 1), so a round is a gradient step with
an error of at most ρ_j σ in the gradient, ρ_j = √ε + (√(ε/(1 + ε)) + η L + √ε (1 + η L)) S_j.
"""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array


def mask_error(uploaders: Array, clients: int, random: bool = False) -> float:
    """Return ε: ‖masked mean − mean‖² ≤ ε (1/N) Σ ‖u_n − ū‖² where entry k was sent by ``uploaders[k]`` clients.

    max_k N/c_k − 1 for masks chosen in any way, reached where those who send agree and the others cancel them.
    ``random``: in the mean over masks that take c_k clients at random, (N/c_k − 1)/(N − 1).
    """
    c = np.asarray(uploaders, float)
    if ((c < 1) | (c > clients)).any():
        entry = int(np.flatnonzero((c < 1) | (c > clients))[0])
        raise ValueError(f"Every entry must be sent by 1 to {clients} clients. Got {c[entry]!r} for entry {entry}.")
    return float(clients / c.min() - 1) / ((clients - 1 or 1) if random else 1)


def dropout_bound(
    gap: float,
    rounds: int,
    lr: float,
    smoothness: float,
    epsilon: Array | float,
    sigma: float,
    refresh: int = 1,
    random: bool = False,
) -> float:
    """FedDD, Theorem 2 corrected: a bound of (1/T) Σ ‖∇F(W^t)‖², whole broadcasts after every ``refresh``-th round (h).

    2 gap/(η T) + σ² (1/T) Σ ρ_j², with gap = F(W^0) − F*; for h = 1 the residual is ε σ², which the example above
    reaches. ``epsilon`` is ε of all rounds or of each. ``random``: masks are drawn without regard to the values and
    h = 1, so errors have mean zero and (2 gap/T + L η² ε σ²)/(2 η − L η²) bounds the expectation; ε is then the random
    ``mask_error``. That is below the printed eq. 22 of the same ε.
    """
    if not 0 < lr * smoothness <= 1:
        raise ValueError(f"lr must be in (0, 1/L]. Got {lr!r} for L = {smoothness!r}.")
    if random and refresh > 1:
        raise ValueError(
            f"random masks are covered for refresh=1 only: clients must start at the model. Got {refresh}."
        )
    errors = np.broadcast_to(np.asarray(epsilon, float), rounds)
    if random:
        return (2 * gap / rounds + smoothness * lr**2 * errors.mean() * sigma**2) / (2 * lr - smoothness * lr**2)
    z, away, last, total = lr * smoothness, 0.0, 0.0, 0.0
    for t, e in enumerate(errors):
        away = 0.0 if t % refresh == 0 else away
        total += (np.sqrt(e) + (np.sqrt(last / (1 + last)) + z + np.sqrt(e) * (1 + z)) * away) ** 2
        away, last = np.sqrt(1 + e) * ((1 + z) * away + 1) if e > 0 else 0.0, e
    return float(2 * gap / (lr * rounds) + sigma**2 * total / rounds)
