"""What arithmetic decides of FedACS: table 2 and appendix E on assumptions, and exact statements of sections 3 to 5.

An instance has clients with random weights ω, gradients g_m at many points, steps and loss rates. An implication is
tried with the smallest constants of its premise and the constants that the appendix derives from them. One instance
that fails refutes a statement; instances in which it holds do not prove it. V = Σ ω ‖g_m − g‖², S = Σ ω ‖g_m‖²,
N = ‖g‖², g = Σ ω g_m.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedweave import methods, theory
from fedweave.core.records import Array
from fedweave.engine.simulator import Simulator
from fedweave.local.quadratic import Quadratics, QuadraticTrainer
from fedweave.method import Method
from fedweave.papers.common.bounds import population_of
from fedweave.papers.common.panels import bars
from fedweave.papers.common.record import Record, value
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.fedacs.quadratics import TINY, mean_coefficients
from fedweave.round import first_state

INSTANCES = 100


class Instance:
    """Gradients (P, M, d) of M clients at P points, what the assumptions bound, and steps and loss rates."""

    def __init__(self, rng: np.random.Generator):
        points, clients, dim = 30, int(rng.integers(2, 9)), 3
        self.rng, self.weight = rng, rng.dirichlet(np.ones(clients))
        scale = np.exp(rng.normal(0, 2, (points, clients, 1)))
        self.g = scale * rng.standard_normal((points, clients, dim)) + rng.standard_normal((points, 1, dim))
        self.of_all = np.einsum("m,pmd->pd", self.weight, self.g)
        self.apart = ((self.g - self.of_all[:, None]) ** 2).sum(2)  # (P, M) ‖g_m − g‖²
        self.long = (self.g**2).sum(2)  # (P, M) ‖g_m‖²
        self.steps, self.lost = rng.integers(1, 40, clients), rng.uniform(0, 0.6, clients)
        self.V, self.S, self.N = self.apart @ self.weight, self.long @ self.weight, (self.of_all**2).sum(1)

    def constants(self, left: Array, least: float) -> tuple[float, float]:
        """Return some β² ≥ least, and the smallest κ² with left ≤ β² N + κ² at every point."""
        beta = least + self.rng.exponential()
        return beta, max(float((left - beta * self.N).max()), 0.0)


def holds(left: Array | float, right: Array | float) -> bool:
    """Return whether left ≤ right everywhere, up to rounding."""
    return bool(np.all(left <= np.multiply(1 + 1e-9, right)))


def _three_implies_six(i: Instance) -> bool:
    beta, kappa = i.constants(i.S, 1.0)
    return holds(i.V, (4 + 2 * beta) * i.N + 2 * kappa)


def _six_implies_three(i: Instance) -> bool:
    beta, kappa = i.constants(i.V, 0.0)
    return holds(i.S, 2 * (1 + beta) * i.N + 2 * kappa)


def _proportional(i: Instance) -> tuple[int, Array, Array]:
    """Return (62)'s example: M, equal weights, and g_m = m g₁ at growing lengths of g₁."""
    clients = i.weight.size
    return clients, np.full(clients, 1 / clients), np.arange(1, clients + 1) * 10.0 ** np.arange(6)[:, None]


def _six_without_four(i: Instance) -> bool:
    clients, weight, g = _proportional(i)
    mean = g @ weight
    apart = (g - mean[:, None]) ** 2
    bounded = holds(apart @ weight, ((clients - 1) / (clients + 1)) ** 2 * mean**2)
    return bounded and bool(apart.max() > 1e6 * apart[0].max())


def _printed_mean(i: Instance) -> bool:
    clients, weight, g = _proportional(i)
    return bool(np.allclose(g @ weight, clients * (clients + 1) / 2 * g[:, 0]))


def _four_without_seven(i: Instance) -> bool:
    """Unit quadratics: gradients x − x_m* differ by constants, and grow without bound."""
    optimum, x = i.g[0], 10.0 ** np.arange(6)[:, None, None]
    g = x - optimum
    apart = ((g - np.einsum("m,pmd->pd", i.weight, g)[:, None]) ** 2).sum(2)
    return bool(np.allclose(apart, apart[0]) and (g[-1] ** 2).sum(1).min() > 1e6)


def _splits(i: Instance) -> bool:
    """(63), one client whose samples are the points: E ‖g(ξ)‖² = ‖E g(ξ)‖² + E ‖g(ξ) − E g(ξ)‖²."""
    g = i.g[:, 0]
    return bool(np.isclose((g**2).sum(1).mean(), (g.mean(0) ** 2).sum() + g.var(0).sum()))


RELATIONS: dict[str, Callable[[Instance], bool]] = {
    "3 ⇒ 6 (54)": _three_implies_six,
    "6 ⇒ 3 (56)": _six_implies_three,
    "4 ⇒ 5, D² = Σ D_m²": lambda i: holds(i.V, i.apart.max(0).sum()),
    "5 ⇒ 4, Σ D_m² = D²": lambda i: holds(i.apart.max(0).sum(), i.V.max()),
    "5 ⇒ 4, D_m² = D²/ω_m": lambda i: holds(i.apart, i.V.max() / i.weight),
    "7 ⇒ 4 (60)": lambda i: holds(i.apart.max(1), 2.0 ** (i.weight.size - 1) * i.long.sum(1)),
    "4 without 7": _four_without_seven,
    "4 ⇒ 6 (61)": lambda i: holds(i.V, i.weight @ i.apart.max(0)),
    "6 without 4 (62)": _six_without_four,
    "(62): ∇F = M(M + 1)/2 ∇F₁": _printed_mean,
    "8 ⇔ 7 and bounded variance (63)": _splits,
}


REGULAR = (methods.fedavg_is(2), methods.fedavg_us(2), methods.fedos(2), methods.fedavg_full())  # B.1


def _shares(method: Method, i: Instance, lost: Array) -> Array:
    """Return Ω, the weights of the objective that a method minimises, from its mean coefficients: c T, normalised."""
    population, problem = population_of(i.weight, i.steps, lost), Quadratics(i.g[0])
    engine = Simulator(QuadraticTrainer(problem, method.solver, 0, i.weight))
    state = first_state(method, np.zeros(i.g.shape[2]), population, i.g.shape[2])
    pull = mean_coefficients(method, state, population, engine, TINY)[0] * i.steps
    return pull / pull.sum()


def _matched(i: Instance) -> bool:
    lost = 1 - 0.9 * i.steps.min() / i.steps
    return all(np.allclose(_shares(method, i, lost), i.weight) for method in REGULAR)


def _unmatched(i: Instance) -> bool:
    same = theory.is_consistent(i.lost, i.steps)
    return all(np.allclose(_shares(method, i, i.lost), i.weight) == same for method in REGULAR)


def _one_surrogate(i: Instance) -> bool:
    omega = theory.surrogate_weight(i.weight, i.lost, i.steps)
    return all(np.allclose(_shares(method, i, i.lost), omega) for method in REGULAR)


def _limit(i: Instance) -> tuple[float, float, float]:
    """Return ‖∇F‖² where two clients with optima ±e settle (88c), χ² (90), and κ² = 4 Ω₁ Ω₂ e²."""
    (q1, q2), (t1, t2), e = i.lost[:2], i.steps[:2], 1 + i.rng.exponential()
    reach = (1 - q1) * t1, (1 - q2) * t2
    chi = (reach[1] - reach[0]) ** 2 / (4 * reach[0] * reach[1])
    kappa = 4 * reach[0] * reach[1] / sum(reach) ** 2 * e**2
    return ((reach[1] - reach[0]) / sum(reach) * e) ** 2, chi, kappa


def _tight(i: Instance) -> bool:
    gradient, chi, kappa = _limit(i)
    return bool(np.isclose(gradient, chi * kappa))


def _tight_as_printed(i: Instance) -> bool:
    gradient, chi, _ = _limit(i)
    return bool(np.isclose(gradient, chi, atol=1e-12))


def _floor_as_printed(i: Instance) -> bool:
    """Optima ±e, curvature L, one draw, one step: x ← (1 − z) x ± z e, z = η L, so E ‖∇F‖² tends to κ² z/(2 − z)."""
    L, e, z = 1 + i.rng.exponential(4), 1 + i.rng.exponential(), 0.1 * i.rng.random()
    kappa = (L * e) ** 2  # with β = 1, since Σ ω ‖∇F_m‖² = ‖∇F‖² + (L e)²
    return holds(kappa * z / (2 - z), z / L * kappa)


def _never_longer(i: Instance) -> bool:
    p = theory.acs_probability(i.weight, i.lost, i.steps)
    return holds(*(theory.effective_step(law, i.lost, i.steps) for law in (p, i.weight)))


EXAMPLES: dict[str, Callable[[Instance], bool]] = {
    "(15): Ω = ω": lambda i: np.allclose(_shares(methods.fedacs(2), i, i.lost), i.weight),
    "(4), B.2: IS, US, OS, full share Ω": _one_surrogate,
    "(13): consistent if (1 − q) T is equal": _matched,
    "(13): only then": _unmatched,
    "(88), (90): ‖∇F‖² = χ² κ²": _tight,
    "(91): ‖∇F‖² = χ²": _tight_as_printed,
    "(10): ‖∇F̃‖² ≤ η_eff τ_eff κ²/β²": _floor_as_printed,
    "FedACS's step is never longer than FedAvg's": _never_longer,
}


def try_statement(name: str, seed: int) -> Record:
    """Return in which share of the instances a statement holds, and whether it holds in all."""
    rng, statement = np.random.default_rng(seed), {**RELATIONS, **EXAMPLES}[name]
    share = float(np.mean([statement(Instance(rng)) for _ in range(INSTANCES)]))
    return Record(values={"share": share, "holds": float(share == 1)})


def _study(item: str, shows: str, statements: Mapping[str, object], *notes: str) -> Study:
    return Study(
        name=f"fedacs/{item}",
        shows=shows,
        arms=lambda scale: {name: name for name in statements},
        work=try_statement,
        seeds={"smoke": 1, "laptop": 5, "paper": 5},
        measures={"holds": Measure(value("holds")), "share of instances": Measure(value("share"), "%")},
        panels=(bars("Instances in which it holds", value("share"), "Share"),),
        exact=True,
        notes=notes,
    )


STUDIES: tuple[Study, ...] = (
    _study(
        "table2",
        "assumptions on the dissimilarity of clients (appendix E): which implies which, tried on gradients",
        RELATIONS,
        "Exactly, S = V + N: 3 with β² is 6 with β² − 1 and the same κ².",
        "5 implies 4 with D_m² = D²/ω_m; in general no D_m² sum to D².",
        "E.5 names Assumption 2 (smoothness); what it needs is the bounded variance of Assumption 1.",
    ),
    _study(
        "examples",
        "exact statements: who minimises which objective, the tight bound of G.3, and the length of FedACS's step",
        EXAMPLES,
        "(10) is tried in the limit R → ∞ of a small η; it fails where L > 2 (fedweave.theory.fedacs).",
        "Section 5: FedACS's step may be longer than FedAvg's. But a harmonic mean never exceeds the arithmetic one.",
    ),
)
