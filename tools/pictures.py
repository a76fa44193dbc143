"""Draw the pictures of docs/explanations from the library's own functions. Run: python tools/pictures.py"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

import fedweave as fw

FOLDER = Path(__file__).parents[1] / "docs/explanations"
BLUE, ORANGE, GREY = "#2563eb", "#d97706", "#9ca3af"
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "fedweave", "font.size": 9, "axes.spines.top": False} | {
    "axes.spines.right": False,
    "legend.frameon": False,
    "font.family": "sans-serif",
}


def fedacs(left: Axes, right: Axes) -> None:
    """Eight clients of equal weight: what FedAvg minimises, and whom FedACS asks instead."""
    loss_rate, steps = np.array([0, 0, 0, 0, 0.2, 0.3, 0.4, 0.5]), np.array([24, 18, 12, 8, 24, 18, 12, 8])
    weight, at = np.full(8, 1 / 8), np.arange(1, 9)
    asked = fw.theory.acs_probability(weight, loss_rate, steps)
    for axes, p in ((left, weight), (right, asked)):
        axes.bar(at - 0.2, p, 0.38, color=GREY, label="how often it is asked")
        axes.bar(
            at + 0.2, fw.theory.surrogate_weight(p, loss_rate, steps), 0.38, color=BLUE, label="how much it counts"
        )
        axes.axhline(1 / 8, color=ORANGE, lw=1, label="how much it should count")
        axes.set_xlabel("client")
        axes.set_ylim(0, 0.32)
    left.set_title("FedAvg: asks evenly, counts unevenly")
    right.set_title("FedACS: asks unevenly, counts evenly")
    left.legend()


def fedaware(left: Axes, right: Axes) -> None:
    """Three momenta, their mean, and the shortest vector of their convex hull."""
    first = np.array([[2.0, 0.3], [1.6, 0.9], [-0.5, 1.1]])
    for axes, momenta, title in (
        (left, first, "Two clients agree, one differs"),
        (right, np.vstack([first[:2], [[0.03, 0.06]]]), "One client has hardly anything left to learn"),
    ):
        _, point = fw.solve.min_norm_point(momenta)
        axes.fill(*momenta.T, color=GREY, alpha=0.2)
        vectors = [(m, GREY, "momenta of clients") for m in momenta]
        vectors += [(momenta.mean(0), ORANGE, "their mean: FedAvg"), (point, BLUE, "the shortest: FedAWARE")]
        for end, colour, label in vectors:
            axes.annotate("", end, (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.6})
            if label not in axes.get_legend_handles_labels()[1]:
                axes.plot([], [], color=colour, label=label)
        axes.set(xlim=(-0.7, 2.2), ylim=(-0.75, 1.3), aspect="equal", title=title)
    left.legend(loc="lower left")


def latency(left: Axes, right: Axes) -> None:
    """How often clients are asked by their latency, and what a round and the training cost."""
    seconds = np.exp(norm.ppf((np.arange(30) + 0.5) / 30))  # log-normal, of median one
    factor = np.full(30, 1 / 30**2)
    plan = fw.solve.latency_plan(seconds, factor, alpha=1.0, epsilon=0.1, cohort_sizes=[8])
    uniform, size = np.full(30, 1 / 30), plan.cohort_size
    left.plot(seconds, plan.probability, "o-", color=BLUE, ms=3, label="latency-optimal")
    left.plot(seconds, uniform, color=ORANGE, label="uniform")
    left.set(xlabel="latency of the client in seconds", ylabel="probability of a draw", ylim=(0, None))
    left.set_title(f"Thirty clients, {size} draws a round")
    left.legend()
    rounds = [fw.theory.rounds_needed(p, factor, size, 1.0, 0.1) for p in (uniform, plan.probability)]
    each = [fw.theory.expected_round_seconds(p, seconds, size) for p in (uniform, plan.probability)]
    total = np.multiply(rounds, each)
    for n, (label, values) in enumerate((("rounds", rounds), ("seconds a round", each), ("total time", total))):
        for shift, value, colour in zip((-0.2, 0.2), values, (ORANGE, BLUE), strict=True):
            right.bar(n + shift, value / values[0], 0.38, color=colour)
            right.text(n + shift, value / values[0], f"{value:.3g}", ha="center", va="bottom")
        right.text(n, -0.06, label, ha="center", va="top")
    right.set(xticks=[], ylabel="relative to uniform")
    right.set_title("More rounds, but shorter ones", pad=14)


def delta(left: Axes, right: Axes) -> None:
    """Gradients of twelve clients in two dimensions; circles are the probabilities of a draw."""
    rng = np.random.default_rng(3)
    gradients = np.vstack([rng.normal((2, 1), 0.25, (9, 2)), rng.normal((0.3, -0.6), 0.2, (3, 2))])
    weight, mean = np.full(12, 1 / 12), gradients.mean(0)
    differs = np.linalg.norm(gradients - mean, axis=1)
    laws = (
        (left, "Importance sampling: long gradients", np.linalg.norm(gradients, axis=1)),
        (right, "DELTA: gradients unlike the mean", fw.theory.delta_score(differs**2, np.zeros(12))),
    )
    for axes, title, score in laws:
        p = fw.theory.importance_probability(weight, score)
        axes.scatter(*gradients.T, s=4000 * p, color=BLUE, alpha=0.45, lw=0)
        axes.annotate("", mean, (0, 0), arrowprops={"arrowstyle": "->", "color": ORANGE, "lw": 1.6})
        axes.plot([], [], color=ORANGE, label="gradient of the objective")
        axes.set(xlim=(-0.4, 2.9), ylim=(-1.3, 2.2), aspect="equal", title=title)
    left.legend(loc="lower right")


def feddd(left: Axes, right: Axes) -> None:
    """What clients leave out, and what that does to the length of a round."""
    up = np.array([8, 6, 5, 4, 3, 2, 1.2, 0.8]) * 1e6
    size, compute, down, at = np.full(8, 8e6), np.full(8, 1.0), 4 * up, np.arange(1, 9)
    rate = fw.solve.dropout_plan(size, compute, up, down, np.zeros(8), keep=0.6, max_rate=0.8, penalty=1.0)
    left.bar(at, 1 - rate, color=BLUE)
    left.axhline(0.6, color=ORANGE, lw=1, label="the budget: 60 % of all models")
    left.set(xlabel="client, by the rate of its link", ylabel="share of its model that it sends", ylim=(0, 1.15))
    left.set_title("Slow clients send less")
    left.legend()
    seconds = compute + size * (1 / up + 1 / down)
    right.bar(at - 0.2, seconds, 0.38, color=GREY, label="whole models")
    right.bar(at + 0.2, compute + size * (1 - rate) * (1 / up + 1 / down), 0.38, color=BLUE, label="FedDD")
    right.set(xlabel="client, by the rate of its link", ylabel="seconds")
    right.set_title("The round ends with the slowest")
    right.legend(loc="upper left")


PICTURES: tuple[Callable[[Axes, Axes], None], ...] = (fedacs, fedaware, latency, delta, feddd)


def draw(picture: Callable[[Axes, Axes], None], folder: Path) -> Path:
    """Draw one picture and return its file."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.5, 3.2), layout="constrained")
        picture(*figure.subplots(1, 2))
        path = folder / f"{picture.__name__}.svg"
        figure.savefig(path, metadata={"Date": None})
    return path


if __name__ == "__main__":
    for one in PICTURES:
        draw(one, FOLDER)
