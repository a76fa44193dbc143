"""Privacy accounting of central differential privacy: (ε, δ) of Gaussian noise on the sum of clipped updates.

Neighbours are runs with and without one client's updates (its contributions zeroed out). The functions need the
``dp-accounting`` library: ``pip install 'fedweave[private]'``.
"""

from __future__ import annotations

import math
from importlib.util import find_spec

import numpy as np

from fedweave.core.settings import BadInput


def needs_library() -> None:
    """Raise BadInput if the library is missing."""
    if find_spec("dp_accounting") is None:  # imported only where used, because that takes a second
        raise BadInput("Privacy accounting needs dp-accounting: pip install 'fedweave[private]'.")


def epsilon_participation_known(noise: float, spent: float, delta: float) -> float:
    """Return ε against observers who know which clients took part; ``spent`` is Σ c² over a client's rounds.

    A round in which the client is drawn c times is a Gaussian mechanism with sensitivity c (in units of the clip) and
    deviation ``noise``; Gaussian mechanisms compose exactly into one with sensitivity √(Σ c²). It holds for every
    sampler whose draws do not depend on the data, such as FedACS's.
    """
    needs_library()
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(noise / math.sqrt(spent), delta)) if spent > 0 else 0.0


def epsilon(noise: float, rounds: int, draws: int, probability: float, delta: float) -> float:
    """Return ε against observers who do not know which clients took part: sampling amplifies privacy.

    A round's ``draws`` with replacement hit the client c ~ Binomial(draws, probability) times, so its mechanism is a
    mixture of Gaussians at 0 … draws, composed ``rounds`` times by its privacy loss distribution (an upper bound).
    ``probability`` is that of the client drawn most often.
    """
    needs_library()
    from dp_accounting.pld.privacy_loss_distribution import from_mixture_gaussian_mechanism
    from scipy.stats import binom

    if not (0 <= probability <= 1 and noise > 0 and 0 < delta < 1 and rounds >= 1 and draws >= 1):
        raise BadInput("epsilon needs noise > 0, rounds and draws >= 1, a probability in [0, 1] and 0 < delta < 1.")
    if probability == 0:
        return 0.0
    chance = binom.pmf(np.arange(draws + 1), draws, probability)
    often = np.flatnonzero(chance > 1e-18)  # rarer counts are below rounding; their mass goes to the largest
    hit, share = often.astype(float), chance[often]
    share[-1] = max(1 - share[:-1].sum(), share[-1])
    one = from_mixture_gaussian_mechanism(noise, hit.tolist(), share.tolist(), value_discretization_interval=1e-2)
    return float(one.self_compose(rounds).get_epsilon_for_delta(delta))
