"""DELTA's synthetic regression (figures 4, 11, 12, 13): two parameters, exact gradients, and noise of a chosen size.

The clients fit y = log((A x − b)²/2) by its own formula, θ = (a, b), from 1,000 samples each. The paper leaves open how
x is drawn (here uniform on [1, 2], without the singularity), where θ starts (a ~ U(1, 2), b ~ U(0, 1)), how many local
steps there are (five) and what a noise of ν means: here every gradient of client i gets s_i N(0, I), s_i spread evenly
over [0, ν]. All clients share A and b, so they differ only in their noise, as in the paper ("controls the
heterogeneity"). The theoretical samplers know it: DELTA knows σ_i², and IS the updates of all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedweave import methods
from fedweave.core.randomness import Stream, rng_for, rngs_for
from fedweave.core.records import Array, Assignment, Layout, Population, Replies
from fedweave.core.roles import Solver
from fedweave.data.synthetic import regression as generated
from fedweave.engine.links import draw_arrivals
from fedweave.method import Method
from fedweave.papers.common.bounds import population_of
from fedweave.papers.common.panels import Make, Panel, Records, curves
from fedweave.papers.common.record import Record
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.delta.setup import last_tenth, mean_of
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


@dataclass(frozen=True, kw_only=True)
class Regression:
    """One run of a method on the regression."""

    method: Method
    slope: float
    offset: float
    noise: float
    clients: int
    samples: int  # per client
    rounds: int
    lr: float = LR
    steps: int = STEPS


def run_regression(arm: Regression, seed: int) -> Record:
    """Run a method; return the global loss and its logarithm after each round."""
    n, samples, method = arm.clients, arm.samples, arm.method
    data = generated(n, samples, arm.slope, arm.offset, seed=seed)
    x, y = data.x[:, 0].reshape(n, samples).astype(float), data.y.reshape(n, samples).astype(float)
    engine = RegressionEngine(x, y, np.linspace(0, arm.noise, n), method.solver, seed)
    population = population_of(np.full(n, 1 / n), arm.steps)
    start = rng_for(seed, 0, Stream.MODEL).random(2) + np.array([1.0, 0.0])
    state, losses = first_state(method, start, population, 2), []
    for _ in range(arm.rounds):
        state, _ = run_round(method, state, population, engine, arm.lr, seed)
        losses.append(engine.evaluate(state.x)["loss"])
    loss, rounds = np.array(losses), np.arange(1.0, arm.rounds + 1)
    return Record({"round": rounds, "accuracy": np.full(loss.size, np.nan), "loss": loss, "log_loss": np.log(loss)})


@dataclass(frozen=True)
class Size:
    """How much of a figure is run."""

    samples: int  # per client
    rounds: int
    seeds: int
    per_round: int = 10


SIZES: dict[Scale, Size] = {
    "smoke": Size(10, 8, 2, 5),
    "laptop": Size(50, 2000, 30),
    "paper": Size(1000, 2000, 30),
}
FIXED, BEST = "0.001 for all", "0.001 for all; beside it every method's best"


def _figure(item: str, shows: str, slope: float, offset: float, noises: tuple[float, ...], clients: int) -> Study:
    tuned, named = item in ("fig4", "fig11"), {noise: f", ν = {noise:g}" for noise in noises}

    def at(scale: Scale) -> Mapping[str, Regression]:
        s = SIZES[scale]
        return {
            name + suffix: Regression(
                method=getattr(methods, name)(s.per_round), slope=slope, offset=offset, noise=noise, clients=clients,
                samples=s.samples, rounds=s.rounds,
            )
            for noise, suffix in named.items()
            for name in NAMES
        }  # fmt: skip

    def settings(scale: Scale) -> Mapping[str, Any]:
        s = SIZES[scale]
        return {
            "data": f"y = log(({slope:g} x − {offset:g})²/2)",
            "samples a client": s.samples,
            "clients": clients,
            "participation": f"{s.per_round / clients:.1%}",
            "client sizes": "equal",
            "rounds": s.rounds,
            "local steps": STEPS,
            "steps an epoch": "exact gradients and noise",
            "learning rate": BEST if tuned else FIXED,
            "tuning": BEST if tuned else FIXED,
        }

    return Study(
        name=f"delta/{item}",
        shows=shows,
        arms=at,
        seeds={scale: size.seeds for scale, size in SIZES.items()},
        measures={
            "log loss, all rounds": Measure(mean_of("log_loss"), digits=3),
            "log loss, last tenth": Measure(last_tenth("log_loss"), digits=3),
            "jitter": Measure(jitter, digits=3),
        },
        panels=[_panel(noise, suffix) for noise, suffix in named.items()],
        settings=settings,
        work=run_regression,
        columns=("tuned",) if tuned else (),
        notes=READING,
    )


def jitter(record: Record) -> float:
    """Return the mean change of the log loss from round to round over the last 100 rounds."""
    return float(np.abs(np.diff(record.rounds["log_loss"][-100:])).mean())


def _panel(noise: float, suffix: str) -> Make:
    """Return one frame of a figure: the methods at one noise."""
    make: Callable[[Records], Panel] = curves(f"Noise ν = {noise:g}", "log_loss", y_label="Log of the global loss")
    return lambda records: make({arm.removesuffix(suffix): r for arm, r in records.items() if arm.endswith(suffix)})


READING = (
    "All rounds: the mean of the log loss over the whole run, which measures speed; jitter: its mean change a round.",
    "The appendix has one learning rate, too small for 2000 rounds; captions 4 and 11 say tuned: both are run.",
    "How x is drawn, where the parameters start, what ν means and the number of local steps are not in the paper.",
)
HIGH, SMALL = (20.0, 30.0, 40.0), (1.0, 5.0, 10.0)
STUDIES = (
    _figure("fig4", "synthetic regression, A = 10, b = 1, 10 of 20 clients, noise 20, 30, 40", 10, 1, HIGH, 20),
    # Its caption drops the square of figure 4's formula; the appendix keeps it, and so do we.
    _figure("fig11", "synthetic regression with other parameters, A = 8, b = 2", 8, 2, HIGH, 20),
    _figure("fig12", "synthetic regression with small noise, of which the paper gives no numbers", 10, 1, SMALL, 20),
    _figure("fig13", "synthetic regression, 10 of 200 clients", 10, 1, HIGH, 200),
)
