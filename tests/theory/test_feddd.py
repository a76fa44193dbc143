"""FedDD's convergence against adversarial masks, enumeration and a closed form."""

from itertools import combinations

import numpy as np
import pytest

from fedweave import theory


@pytest.mark.parametrize(("clients", "senders"), [(2, 1), (5, 1), (5, 3), (7, 6), (4, 4), (1, 1)])
def test_mask_error_is_the_largest_ratio_and_the_mean_over_subsets(clients, senders):
    """max over u of (mean of those who send − mean)²/variance, as an eigenvalue; and its mean over all subsets."""
    masked, mean = np.zeros(clients), np.full(clients, 1 / clients)
    masked[:senders] = 1 / senders
    largest = clients * ((masked - mean) ** 2).sum()  # the functional is zero on constants: its norm is the answer
    assert theory.mask_error([senders, clients], clients) == pytest.approx(largest)
    u = np.random.default_rng(0).standard_normal(clients)
    misses = [(u[list(who)].mean() - u.mean()) ** 2 for who in combinations(range(clients), senders)]
    assert np.mean(misses) == pytest.approx(theory.mask_error([senders], clients) / max(clients - 1, 1) * u.var())
    assert max(misses) <= theory.mask_error([senders], clients) * u.var() + 1e-12


class Clients:
    """Quadratics with any curvature and FedDD in plain NumPy: one gradient step, masked mean, sparse downloads."""

    def __init__(self, rng, n=4, dim=3):
        roots = rng.standard_normal((n, dim, dim))
        self.H, self.best = roots @ roots.transpose(0, 2, 1) / 3 + 0.1 * np.eye(dim), rng.standard_normal((n, dim))
        self.rng, self.L = rng, np.linalg.eigvalsh(self.H).max()

    def gradients(self, x):
        return np.einsum("nij,nj->ni", self.H, x - self.best)

    def value(self, x):
        return np.einsum("ni,ni->", x - self.best, self.gradients(x)) / 2 / len(self.H)

    def run(self, x, lr, rounds, refresh, choose):
        """Return ‖∇F‖² and ε of every round, and the largest σ² on the way."""
        n = len(self.best)
        local, found, errors, spread = np.tile(x, (n, 1)), [], [], 0.0
        for t in range(1, rounds + 1):
            g = self.gradients(np.tile(x, (n, 1)))
            found.append((g.mean(0) ** 2).sum())
            spread = max(spread, ((g - g.mean(0)) ** 2).sum(1).mean())
            mean, slope = local.mean(0), self.gradients(local).mean(0)
            after = local - lr * self.gradients(local)
            mask = choose(after - x, g.mean(0))
            errors.append(theory.mask_error(mask.sum(0), n))
            x = (after * mask).sum(0) / mask.sum(0)
            if t % refresh:
                local = np.where(mask, x, after)
                assert np.allclose(
                    local.mean(0), mean - lr * slope
                )  # masks leave the mean of the clients' models alone
            else:
                local = np.tile(x, (n, 1))
        return np.array(found), np.array(errors), spread


def covering(rng, shape):
    """Return a random mask in which every entry is sent by somebody."""
    mask = rng.random(shape) < rng.uniform(0.2, 0.9)
    mask[rng.integers(0, shape[0], shape[1]), np.arange(shape[1])] = True
    return mask


def against(update, gradient):
    """Send what goes uphill most: an adversary's mask."""
    uphill = update * gradient
    return (uphill > np.median(uphill)) | (uphill == uphill.max(0))


@pytest.mark.parametrize("refresh", [1, 2, 4])
def test_theorem_2_corrected_for_any_masks_and_any_refresh(refresh):
    rng = np.random.default_rng(refresh)
    for i in range(12):
        clients = Clients(rng)
        chance = (lambda u, g: covering(rng, u.shape)) if i % 2 else against
        x, lr = 3 * rng.standard_normal(3), rng.uniform(0.1, 1) / clients.L
        best = np.linalg.solve(clients.H.sum(0), np.einsum("nij,nj->i", clients.H, clients.best))
        found, errors, spread = clients.run(x, lr, 80, refresh, chance)
        gap = clients.value(x) - clients.value(best)
        assert found.mean() <= theory.dropout_bound(gap, 80, lr, clients.L, errors, np.sqrt(spread), refresh)


@pytest.mark.parametrize("refresh", [2, 4, 100])
def test_theorem_2_corrected_for_random_masks_and_rare_broadcasts(refresh):
    """The mean over 40 runs with c of N senders at random, and a bound far below the one for any masks."""
    rng = np.random.default_rng(10 + refresh)
    clients, senders = Clients(rng, n=8), 5
    best = np.linalg.solve(clients.H.sum(0), np.einsum("nij,nj->i", clients.H, clients.best))
    x, lr, runs = best + 0.5, 0.3 / clients.L, []

    def some(update, _):
        return np.argsort(rng.random(update.shape), axis=0) < senders

    for _ in range(40):
        found, errors, spread = clients.run(x, lr, 60, refresh, some)
        runs.append((found.mean(), spread))
    measured, sigma, gap = np.mean([m for m, _ in runs]), np.sqrt(max(s for _, s in runs)), clients.value(x)
    gap -= clients.value(best)
    bound = theory.dropout_bound(gap, 60, lr, clients.L, errors, sigma, refresh, 8)
    assert measured <= bound < theory.dropout_bound(gap, 60, lr, clients.L, errors, sigma, refresh) / 2


def printed(gap, rounds, lr, L, e, sigma, h):
    """Eq. 22 as the paper has it."""
    below = 2 * lr - L * lr**2 - L * e * lr**2 - 4 * (e + 1) * e * lr**2
    sparse = (h - 1) * (2 * e + 2 * e * lr**2 * L**2 + 2 * lr**2 * L**2 + 3)
    return 2 * gap / (rounds * below) + L * e * lr**2 * sigma**2 * (sparse + 1) / (h * below)


def test_theorem_2_as_printed_fails_where_ours_is_reached():
    """Optima ±e, only the first client sends: the model goes to its optimum, ‖∇F‖² = e² = σ² and ε = 1."""
    e, lr, x, found = 1.5, 0.01, 0.0, []
    for _ in range(5000):
        found.append(x**2)
        x -= lr * (x - e)
    sigma, error = e, theory.mask_error([1], 2)
    assert found[-1] == pytest.approx(e**2)
    assert printed(0.0, 5000, lr, 1.0, error, sigma, 1) < 0.01 * np.mean(found)
    bound = theory.dropout_bound(0.0, 5000, lr, 1.0, error, sigma)
    assert np.mean(found) <= bound == pytest.approx(e**2)
    assert np.mean(found) > 0.97 * bound


def test_random_masks_settle_exactly_where_the_bound_says():
    """Equal curvature, c of N at random: v ← (1 − η)² v + η² ε σ² settles at η ε σ²/(2 − η), the bound for T → ∞."""
    n, c, lr, sigma = 5, 2, 0.2, 1.7
    error = theory.mask_error([c], n)
    v = 0.0
    for _ in range(500):
        v = (1 - lr) ** 2 * v + lr**2 * error / (n - 1) * sigma**2
    assert v == pytest.approx(theory.dropout_bound(0.0, 1, lr, 1.0, error, sigma, clients_if_random=n))
    for e in (0.1, 0.7, 2.0):
        small = 0.5 / (1 + e + 4 * (e + 1) * e)
        assert theory.dropout_bound(1.0, 9, small, 1.0, e, 2.0, clients_if_random=2) <= printed(
            1.0, 9, small, 1.0, e, 2.0, 1
        )


def test_theorem_2_in_its_limits():
    """Whole uploads: gradient descent, for every refresh. More rounds between broadcasts: a larger residual."""
    for h in (1, 3, 7):
        assert theory.dropout_bound(4.0, 10, 0.5, 1.0, 0.0, 9.0, h) == pytest.approx(2 * 4 / 5)
    by_h = [theory.dropout_bound(0.0, 12, 0.1, 1.0, 0.5, 1.0, h) for h in (1, 2, 3, 4, 6, 12)]
    assert by_h == sorted(by_h)
    assert by_h[0] == pytest.approx(0.5)
    assert theory.dropout_bound(0.0, 4, 0.1, 1.0, [0.0, 1.0, 0.0, 3.0], 2.0) == pytest.approx(4.0)


def test_nonsense_about_dropout_is_refused():
    with pytest.raises(ValueError, match=r"entry must be sent by 1 to 5.*entry 1"):
        theory.mask_error([2, 0], 5)
    with pytest.raises(ValueError, match="1/L"):
        theory.dropout_bound(1.0, 5, 1.5, 1.0, 0.1, 1.0)


def test_two_rounds_and_a_broadcast_by_hand():
    """ε = 1, η L = ½, h = 2: s = 1 then 5/2, so ρ = 0 then ½ + 5/2, and the model lags by 1 in the second round.

    At random of N = 3: m = ½ and κ = ¾, s = 1 then 1 + (3/2) √¾, ρ² = 0 then (½)² ¾ + ½ · ½ s², and l² = ½.
    """
    any_mask = theory.dropout_bound(3.0, 2, 0.5, 1.0, 1.0, 2.0, 2)
    assert any_mask == pytest.approx((np.sqrt(6 + 4 * 9 / 2) + 0.5 * 2 * np.sqrt(1 / 2)) ** 2)
    s = 1 + 1.5 * np.sqrt(0.75)
    at_random = theory.dropout_bound(3.0, 2, 0.5, 1.0, 1.0, 2.0, 2, 3)
    residual = (0.25 * 0.75 + 0.25 * s**2) / 2
    assert at_random == pytest.approx((np.sqrt(6 + 4 * residual) + 0.5 * 2 * np.sqrt(0.5 / 2)) ** 2)


@pytest.mark.parametrize(("clients", "senders"), [(5, 1), (5, 2), (6, 5)])
def test_masked_averages_of_random_clients_shrink_the_spread_as_the_bound_has_it(clients, senders):
    """Those who send take their mean, the others keep theirs: (N − c)/(N − 1) of the variance, over all subsets."""
    v = np.random.default_rng(1).standard_normal(clients)
    left = []
    for who in combinations(range(clients), senders):
        after = v.copy()
        after[list(who)] = v[list(who)].mean()
        assert after.mean() == pytest.approx(v.mean())
        assert after.var() <= v.var() + 1e-12
        left.append(after.var())
    e = theory.mask_error([senders], clients)
    assert np.mean(left) == pytest.approx(clients / (clients - 1) * e / (1 + e) * v.var())
