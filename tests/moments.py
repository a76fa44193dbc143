"""Exact first and second moments of federated rounds on quadratics, without sampling: the independent side of bounds.

F_m(x) = h_m ‖x − x_m*‖²/2. T local steps with gradient noise of variance σ² move a client by k (x* − x) plus noise,
k = 1 − (1 − η h)^T, so a round x ← x + Σ w_m u_m is linear in x and only E[w] and E[w w'] matter.
"""

from dataclasses import dataclass

import numpy as np


def anonymous(p, q, draws):
    """Return E[w] and E[w w'] of FedACS eq. 3: w_m = c_m Z_m/K, one link per client and round."""
    arrive = p * (1 - q)
    second = (1 - 1 / draws) * np.outer(arrive, arrive)
    np.fill_diagonal(second, ((1 - 1 / draws) * p**2 + p / draws) * (1 - q))
    return arrive, second


def inverse_probability(p, weight, draws):
    """Return E[w] and E[w w'] of draws with replacement: w_i = ω_i c_i/(n p_i)."""
    return weight, (1 - 1 / draws) * np.outer(weight, weight) + np.diag(weight**2 / p) / draws


@dataclass
class World:
    """Isotropic quadratics."""

    optimum: np.ndarray  # (M, d)
    h: np.ndarray  # (M,)

    @classmethod
    def random(cls, rng, clients, dim=2, equal=False):
        """Return random clients, of equal curvature or not."""
        h = np.full(clients, rng.uniform(0.3, 3)) if equal else rng.uniform(0.3, 3, clients)
        return cls(rng.standard_normal((clients, dim)) * rng.uniform(0.2, 3), h)

    def centre(self, weight):
        """Return the curvature of Σ weight F_m and its optimum."""
        H = weight @ self.h
        return H, (weight * self.h) @ self.optimum / H

    def value(self, weight, mean, square):
        """Return E Σ weight F_m(x) for E x = mean and E ‖x‖² = square."""
        apart = square - 2 * self.optimum @ mean + (self.optimum**2).sum(1)
        return weight @ (self.h * apart) / 2

    def lowest(self, weight):
        """Return the minimum of Σ weight F_m."""
        _, x = self.centre(weight)
        return self.value(weight, x, x @ x)

    def gradient(self, weight, mean, square):
        """Return E ‖Σ weight ∇F_m(x)‖²."""
        H, x = self.centre(weight)
        return H**2 * (square - 2 * x @ mean + x @ x)

    def own_gradients(self, mean, square):
        """Return E ‖∇F_m(x)‖² (M,)."""
        return self.h**2 * (square - 2 * self.optimum @ mean + (self.optimum**2).sum(1))

    def dissimilarity(self, weight):
        """Return β and κ with Σ weight ‖∇F_m‖² ≤ β² ‖∇F‖² + κ²: exact for equal curvature, else the best κ of a β."""
        H, x = self.centre(weight)
        a = weight @ self.h**2
        c = (weight * self.h**2) @ self.optimum / a
        spread = (weight * self.h**2) @ ((self.optimum - c) ** 2).sum(1)
        if np.ptp(self.h) == 0:
            return 1.0, np.sqrt(spread)
        B = 1.2 * a
        return np.sqrt(B) / H, np.sqrt(spread + a * B / (B - a) * ((c - x) ** 2).sum())

    def reach(self, steps, lr):
        """Return k (M,)."""
        return 1 - (1 - lr * self.h) ** steps

    def noise(self, steps, lr, sigma):
        """Return the variance of the noise in an update (M,)."""
        powers = [((1 - lr * h) ** (2 * np.arange(t))).sum() for h, t in zip(self.h, steps, strict=True)]
        return lr**2 * sigma**2 * np.array(powers)

    def next(self, moments, weights, steps, lr, sigma=0.0):
        """Return E x and E ‖x‖² after a round."""
        mean, square = moments
        first, second = weights
        k = self.reach(steps, lr)
        first, second = first * k, second * np.outer(k, k)
        pull, whole = first.sum(), second.sum()
        towards = first @ self.optimum - second.sum(0) @ self.optimum
        noise = np.diag(weights[1]) @ self.noise(steps, lr, sigma)
        after = (1 - 2 * pull + whole) * square + 2 * towards @ mean + noise
        return (1 - pull) * mean + first @ self.optimum, after + np.einsum(
            "mn,md,nd->", second, self.optimum, self.optimum
        )

    def path(self, x, rounds, weights, steps, lr, sigma=0.0):
        """Return the moments before each of the rounds."""
        moments = [(x, x @ x)]
        for _ in range(rounds - 1):
            moments.append(self.next(moments[-1], weights, steps, lr, sigma))
        return moments
