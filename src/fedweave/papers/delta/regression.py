"""DELTA's synthetic regression (figures 4, 11, 12, 13): two parameters, exact gradients, and noise of a chosen size.

The clients fit y = log((A x − b)²/2) by its own formula, θ = (a, b), from 1,000 samples each. The paper leaves open how
x is drawn (here uniform on [1, 2], without the singularity), where θ starts (a ~ U(1, 2), b ~ U(0, 1)), how many local
steps there are (five) and what a noise of ν means: here every gradient of client i gets s_i N(0, I), s_i spread evenly
over [0, ν]. All clients share A and b, so they differ only in their noise, as in the paper ("controls the
heterogeneity"). The theoretical samplers know it: DELTA knows σ_i², and IS the updates of all clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedweave import methods
from fedweave.core.randomness import Stream, rng_for, rngs_for
from fedweave.core.records import Array, Assignment, Layout, Population, Replies
from fedweave.core.roles import Solver
from fedweave.data.synthetic import regression as generated
from fedweave.engine.links import draw_arrivals
from fedweave.method import Method
from fedweave.papers.common.claims import Claim, Outcome, mean_and_error
from fedweave.papers.common.parallel import Progress, run_by_key
from fedweave.papers.common.scale import Scale, Size
from fedweave.round import first_state, run_round

LR, STEPS, TINY = 0.001, 5, 1e-12
NAMES = ("fedavg", "power_of_choice", "fedis", "feddelta")


class RegressionEngine:
    """Clients with exact gradients of their log-quadratic loss, and noise in each of them."""

    def __init__(self, x: Array, y: Array, noise: Array, solver: Solver, seed: int):
        self.x, self.y, self.noise, self.solver, self.seed = x, y, noise, solver, seed  # (N, samples) twice and (N,)
        self.layout = Layout(names=("theta",), shapes=((2,),), parameters=2)

    def _error(self, theta: Array, ids: Array) -> tuple[Array, Array, Array]:
        z = theta[..., :1] * self.x[ids] - theta[..., 1:]
        square = z**2 / 2 + TINY
        return np.log(square) - self.y[ids], z, square

    def gradients(self, x: Array, ids: Array) -> Array:
        """Return the true gradients (k, 2) at one point, or at one point per client."""
        error, z, square = self._error(np.broadcast_to(x, (ids.size, 2)), ids)
        pull = 2 * error * z / square
        return np.stack([(pull * self.x[ids]).mean(1), -pull.mean(1)], axis=1)

    def variances(self, round: int, x: Array, ids: Array, population: Population) -> Array:
        """Return E‖ν_i‖² = 2 s_i²."""
        return 2 * self.noise[ids] ** 2

    def losses(self, x: Array, ids: Array) -> Array:
        """Return each client's mean squared error (k,)."""
        return (self._error(np.broadcast_to(x, (ids.size, 2)), ids)[0] ** 2).mean(1)

    def _take_steps(self, assignment: Assignment) -> tuple[Array, Array]:
        """Return updates (k, 2) and the noisy gradients (steps, k, 2); all clients take the same number of steps."""
        x, ids, lr = assignment.x, assignment.cohort.ids, assignment.lr
        steps, rngs = (
            int(assignment.population.steps[0]),
            rngs_for(self.seed, assignment.round, Stream.NOISE, ids.tolist()),
        )
        drawn = [rng.standard_normal((steps, 2)) for rng in rngs]
        noise = self.noise[ids, None, None] * np.reshape(drawn, (ids.size, steps, 2))
        y, found = np.tile(x, (ids.size, 1)), np.empty((steps, ids.size, 2))
        state = self.solver.begin(y)
        for t in range(steps):
            found[t] = self.gradients(y, ids) + noise[:, t]
            d, state = self.solver.direction(state, found[t], y, x, lr, t)
            y = y - lr * d
        return y - x, found

    def rehearse(self, assignment: Assignment) -> Array:
        """Return the updates that the cohort would send, including noise."""
        return self._take_steps(assignment)[0]

    def train(self, assignment: Assignment) -> Replies:
        """Return what the cohort sends."""
        ids, population, x = assignment.cohort.ids, assignment.population, assignment.x
        received = draw_arrivals(self.seed, assignment.round, ids, population)
        updates, g = self._take_steps(assignment)
        variance = ((g - g.mean(0)) ** 2).sum(2).mean(0) if assignment.context.measure else None
        first, size = np.linalg.norm(g[0], axis=1), np.full(ids.size, x.nbytes)
        loss, seconds = self.losses(x, ids), population.latency[ids]
        updates[~received] = 0
        return Replies(
            received=received,
            updates=updates,
            steps=population.steps[ids],
            loss=loss,
            first_gradient=first,
            seconds=seconds,
            bytes_up=size,
            variance=variance,
        )

    def evaluate(self, x: Array) -> Mapping[str, Any]:
        """Return the global loss, over all clients."""
        loss = float(self.losses(x, np.arange(len(self.x))).mean())
        return {"accuracy": np.nan, "loss": loss, "class_accuracy": np.zeros(0)}

    evaluate_later = evaluate

    def evaluate_clients(self, x: Array, ids: Array) -> Array:
        """Return each client's own loss: there is no other data."""
        return self.losses(x, ids)


class Setting(NamedTuple):
    """One panel of a figure."""

    slope: float
    offset: float
    noise: float
    clients: int


def run_regression(
    method: Method, setting: Setting, samples: int, rounds: int, seed: int, lr: float = LR, steps: int = STEPS
) -> Array:
    """Return the logarithm of the global loss after each round."""
    n = setting.clients
    data = generated(n, samples, setting.slope, setting.offset, seed=seed)
    x, y = data.x[:, 0].reshape(n, samples).astype(float), data.y.reshape(n, samples).astype(float)
    noise, one = np.linspace(0, setting.noise, n), np.ones(n)
    engine = RegressionEngine(x, y, noise, method.solver, seed)
    population = Population(
        weight=one / n,
        samples=samples * one,
        steps=np.full(n, steps),
        batch_size=one,
        loss_rate=0 * one,
        latency=one,
        available=one > 0,
    )
    start = rng_for(seed, 0, Stream.MODEL).random(2) + np.array([1.0, 0.0])
    state, losses = first_state(method, start, population, 2), []
    for _ in range(rounds):
        state, _ = run_round(method, state, population, engine, lr, seed)
        losses.append(engine.evaluate(state.x)["loss"])
    return np.log(losses)


@dataclass(frozen=True, kw_only=True)
class FigureSize(Size):
    """How much of a figure is run."""

    samples: int  # per client


SIZES: dict[Scale, FigureSize] = {
    "smoke": FigureSize(samples=20, rounds=60, seeds=2),
    "laptop": FigureSize(samples=50, rounds=2000, seeds=10),
    "paper": FigureSize(samples=1000, rounds=2000, seeds=10),
}


def fig4(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 4: A = 10, b = 1, 10 of 20 clients, noise 20, 30 and 40."""
    return _figure("delta/fig4", [Setting(10, 1, noise, 20) for noise in (20.0, 30.0, 40.0)], scale, on_progress)


def fig11(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 11: A = 8, b = 2. Its caption drops the square of figure 4's formula, which H.2 keeps, and so do we."""
    return _figure("delta/fig11", [Setting(8, 2, noise, 20) for noise in (20.0, 30.0, 40.0)], scale, on_progress)


def fig12(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 12: small noise; the paper names no numbers."""
    return _figure("delta/fig12", [Setting(10, 1, noise, 20) for noise in (1.0, 5.0, 10.0)], scale, on_progress)


def fig13(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 13: 10 of 200 clients."""
    return _figure("delta/fig13", [Setting(10, 1, noise, 200) for noise in (20.0, 30.0, 40.0)], scale, on_progress)


def _figure(item: str, settings: list[Setting], scale: Scale, on_progress: Progress | None) -> Outcome:
    size = SIZES[scale]
    contest = {name: getattr(methods, name)(10) for name in NAMES}
    calls = {
        (s, n, seed): (method, s, size.samples, size.rounds, seed)
        for s in settings
        for n, method in contest.items()
        for seed in range(size.seeds)
    }
    found = run_by_key(run_regression, calls, on_progress)
    rows, claims = [], []
    for s in settings:
        paths = {n: np.array([found[s, n, seed] for seed in range(size.seeds)]) for n in NAMES}
        tail = {n: p[:, -max(size.rounds // 10, 1) :].mean(1) for n, p in paths.items()}
        for n, p in paths.items():
            mean, error = mean_and_error(tail[n].tolist())
            rows.append(
                {
                    "noise": f"{s.noise:g}",
                    "method": n,
                    "log loss, end": f"{mean:.3f} ± {error:.3f}",
                    "median": float(np.median(tail[n])),
                    "quarters": " ".join(f"{q.mean():.2f}" for q in np.array_split(p, 4, axis=1)),
                    "jitter": float(np.abs(np.diff(p[:, -100:])).mean()),
                }
            )
        claims += _claims(s, tail, scale)
    first = settings[0]
    setting = (
        f"y = log((A x − b)²/2) with A = {first.slope:g}, b = {first.offset:g}; 10 of {first.clients} clients, "
        f"{size.samples} samples each, {STEPS} steps of {LR:g}, {size.rounds} rounds, {size.seeds} seeds."
    )
    reading = (
        "end: mean over the last tenth of the rounds; quarters: means over the quarters, in order; jitter: mean change "
        "from round to round over the last 100. One learning rate for all, as H.2 says; the captions say tuned."
    )
    return Outcome(item, scale, rows, claims, (setting, reading))


def _claims(setting: Setting, tail: Mapping[str, Array], scale: Scale) -> list[Claim]:
    """Judge whether DELTA ends below each of the others, by the differences of the same seeds."""
    claims = []
    for other in NAMES[:-1]:
        text = f"noise {setting.noise:g}: feddelta ends at a lower loss than {other}"
        lead, error = mean_and_error((tail[other] - tail["feddelta"]).tolist())
        evidence = f"log loss lower by {lead:.3f} ± {error:.3f}"
        if scale == "smoke":
            claims.append(Claim.not_run(text, evidence))
        else:
            claims.append(Claim.judge(text, bool(lead > 2 * error), evidence))
    return claims
