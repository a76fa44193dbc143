"""FedAWARE: its authors' code and fedweave side by side, on 8 clients, 3 a round, 10 rounds of a small network.

Both sides start from the same model and train the same cohorts on the same (full) batches; then each goes its own way,
so differences add up. FedLab, on which their code rests, is not needed: what they use of it is restated below in a few
lines (SCAFFOLD's server step is FedLab's, so only its clients are the authors').
Use: git clone https://github.com/dunzeng/FedAWARE; python benchmarks/authors/fedaware.py FedAWARE
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from side_by_side import Table, apart, checkout_of, take
from torch import Tensor, nn

import fedweave as fw
from fedweave import methods, server
from fedweave.aggregate import Aware
from fedweave.core.records import Population
from fedweave.round import measures
from fedweave.system import HybridPlus
from fedweave.system.worlds import steps_of

N, K, ROUNDS, LR, SHAPE, CLASSES = 8, 3, 10, 0.1, (6,), 3
SIZES = np.array([12, 15, 20, 24, 30, 36, 40, 60])


def network(shape: Any = SHAPE, classes: int = CLASSES) -> nn.Module:
    """Return the small dense network of both sides."""
    return nn.Sequential(nn.Linear(SHAPE[0], 5), nn.Tanh(), nn.Linear(5, CLASSES))


def data() -> fw.data.Dataset:
    """Return the samples of eight clients with different labels and different amounts of data."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(N), SIZES)
    y = rng.integers(0, 2, group.size) + group % 2
    x = rng.standard_normal((group.size, *SHAPE)) + 0.7 * y[:, None] + 0.3 * rng.standard_normal((N, 6))[group]
    x = x.astype(np.float32)
    return fw.data.Dataset("toy", x, y, x[:20], y[:20], CLASSES, group=group)


DATA = data()


def experiment(method: fw.Method) -> fw.Experiment:
    """Return our side: client i takes 1, 3, …, 15 steps on all its data at once."""
    work = fw.system.Static(work=(1, 15), loss_rate=(0.0, 0.0))
    settings = {"partition": fw.partition.Natural(), "system": work, "rounds": ROUNDS, "lr": LR, "workers": 1}
    return fw.Experiment(method=method, data=DATA, model=network, batch_size=1000, **settings)


# What they use of FedLab


class Aggregators:
    """Weighted means with weights that are made to sum to one."""

    @staticmethod
    def fedavg_aggregate(vectors: list[Tensor], weights: Any = None) -> Tensor:
        w = torch.ones(len(vectors)) if weights is None else torch.as_tensor(weights)
        return (w / w.sum()).to(vectors[0].dtype) @ torch.stack(vectors)


class Holder:
    """A model that is read and set as one vector; reading cuts it off from its gradients, as in FedLab."""

    attached = False

    def __init__(self) -> None:
        self._model, self.cuda = network(), False
        self.num_clients, self.sample_ratio, self.round = N, K / N, 0

    @property
    def model(self) -> nn.Module:
        return self._model

    @property
    def model_parameters(self) -> Tensor:
        flat = torch.cat([p.reshape(-1) for p in self._model.parameters()])
        return flat if self.attached else flat.detach()

    @property
    def model_gradients(self) -> Tensor:
        return torch.cat([p.grad.reshape(-1) for p in self._model.parameters() if p.grad is not None])

    def set_model(self, vector: Tensor) -> None:
        with torch.no_grad():
            parts = vector.split([p.numel() for p in self._model.parameters()])
            for p, part in zip(self._model.parameters(), parts, strict=True):
                p.copy_(part.reshape(p.shape))


class Trainer(Holder):
    """What a client has: an optimiser, a loss, and the memories of SCAFFOLD and FedDyn."""

    def __init__(self) -> None:
        super().__init__()
        self.lr, self.alpha, self.args = LR, 0.1, SimpleNamespace(dataset="toy")
        self.optimizer, self.criterion = torch.optim.SGD(self._model.parameters(), LR), nn.CrossEntropyLoss()
        self.cs: list[Any] = [None] * N
        self.L: list[Any] = [None] * N


class ScaffoldServer(Holder):
    """FedLab's server of SCAFFOLD: x + mean dy, c + (|S|/N) mean dc."""

    def setup_optim(self, lr: float) -> None:
        self.lr, self.global_c = lr, torch.zeros_like(self.model_parameters)

    def global_update(self, buffer: list[list[Tensor]]) -> None:
        dy, dc = (torch.stack([b[i] for b in buffer]) for i in (0, 1))
        self.set_model(self.model_parameters + self.lr * dy.mean(0))
        self.global_c += dc.sum(0) / N


class Serializer:
    """FedLab's way to set a model from outside."""

    @staticmethod
    def deserialize_model(model: nn.Module, vector: Tensor) -> None:
        nn.utils.vector_to_parameters(vector.float().clone(), model.parameters())


ITERATIONS: list[int] = []


def count(steps: Any) -> Iterator[int]:
    """Stand in for a progress bar, and count."""
    ITERATIONS.append(0)
    for i in steps:
        ITERATIONS[-1] = i + 1
        yield i


def quiet(*_: Any, **__: Any) -> None:
    """Stand in for print."""


USES: dict[str, Any] = {
    "torch": torch,
    "np": np,
    "random": random,
    "tqdm": count,
    "print": quiet,
    "Aggregators": Aggregators,
    "SerializationTool": Serializer,
    "ScaffoldServerHandler": ScaffoldServer,
    **dict.fromkeys(("SyncServerHandler", "FedAvgServerHandler", "FedNovaServerHandler"), Holder),
    **dict.fromkeys(("SGDSerialClientTrainer", "FedDynSerialClientTrainer"), Trainer),
}
METER = SimpleNamespace(update=quiet)
Answer = Callable[[Any, Any, int, Tensor, list[Any]], list[Tensor]]  # trainer, server, client, model, batches


def plain(trainer: Any, server: Any, i: int, x: Tensor, batches: list[Any]) -> list[Tensor]:
    """Train as FedAWARE, FedAvg and FedAvgM do."""
    return trainer.train(x, batches, METER, METER)


def with_steps(trainer: Any, server: Any, i: int, x: Tensor, batches: list[Any]) -> list[Tensor]:
    """Train as FedNova does, which sends its number of steps too."""
    return [*plain(trainer, server, i, x, batches), torch.tensor([float(trainer.epochs)])]


def with_variates(trainer: Any, server: Any, i: int, x: Tensor, batches: list[Any]) -> list[Tensor]:
    """Train as SCAFFOLD does."""
    return trainer.train(i, x, server.global_c, batches, METER, METER)


def with_memory(trainer: Any, server: Any, i: int, x: Tensor, batches: list[Any]) -> list[Tensor]:
    """Train as FedDyn does."""
    answer = trainer.train(i, x, batches, METER, METER)
    trainer.L[i] = trainer.L[i].detach()
    return [answer[0].detach()]


Watch = Callable[[Any, Any, Any, list[Tensor]], dict[str, float]]  # theirs, state, round, their updates


def follow(
    ours: fw.Method, theirs: Any, trainer: Any, answer: Answer, shuffled: bool = False, watch: Watch | None = None
) -> dict[str, list[float]]:
    """Run both sides on our cohorts and return the differences by quantity, one per round.

    ``shuffled``: their server takes the answers for those of the same clients in another order, as their samplers do.
    """
    found: dict[str, list[float]] = defaultdict(list)
    rng = np.random.default_rng(1)
    rows = [torch.from_numpy(np.flatnonzero(DATA.group == i)) for i in range(N)]
    x, y = torch.from_numpy(DATA.x), torch.from_numpy(DATA.y)
    for state, happened in fw.rounds(experiment(ours)):
        if state.round == 1:
            theirs.set_model(torch.from_numpy(happened.view.x.copy()))
        ids, before = happened.cohort.ids, theirs.model_parameters
        theirs.sampler = SimpleNamespace(explored=state.round >= theirs.explored_from)
        theirs.sampler.last_sampled = (rng.permutation(ids) if shuffled else ids), None
        buffer = []
        for i in ids:
            trainer.epochs = int(happened.view.population.steps[i])
            buffer.append(answer(trainer, theirs, int(i), before, [(x[rows[i]], y[rows[i]])]))
        updates = [b[0] if answer is with_variates else b[0] - before for b in buffer]
        theirs.global_update(buffer)
        found["local updates"].append(apart(torch.stack(updates), happened.replies.updates))
        found["model"].append(apart(theirs.model_parameters, state.x))
        for name, value in (watch(theirs, state, happened, updates) if watch else {}).items():
            found[name].append(value)
    return found


def prepared(theirs: Any, **settings: Any) -> Any:
    """Return their server with the settings that its methods read from the command line."""
    theirs.explored_from = settings.pop("explored_from", 1)
    weights = SIZES / SIZES.sum()
    args = SimpleNamespace(**{"projection": 0, "weights": weights, "k": K, "glr": 1.0, "method": "", **settings})
    if hasattr(args, "alpha"):
        theirs.setup_optim(None, args.alpha, args)
    elif hasattr(args, "alpha_dyn"):
        theirs.setup_optim(args.alpha_dyn)
    else:
        args.glr = settings.get("lr", 1.0)
        theirs.setup_optim(None, args)
    return theirs


def aware(alpha: float, start: Any = "everyone", **fields: Any) -> fw.Method:
    """Return FedAWARE with α of the paper, and these settings of its aggregator."""
    method = methods.fedaware(K, alpha, start)
    assert isinstance(method.aggregator, Aware)
    return replace(method, aggregator=replace(method.aggregator, **fields))


class ExactSolver:
    """Ours in the place of theirs, which leaves everything else of their code to compare."""

    @staticmethod
    def find_min_norm_element_FW(vectors: list[Tensor]) -> tuple[Any, float]:  # noqa: N802
        return fw.solve.min_norm_point(torch.stack(vectors).numpy())[0], 0.0


def compare_aware(folder: Path, solver: Any) -> None:
    """Compare FedAWARE's rounds: as the authors' code reads it, and what each reading changes."""
    names = ["FedAvgSerialClientTrainer", "Server_MomentumGradientCache"]
    diversity = take(folder / "utils.py", ["gradient_diversity"], USES).gradient_diversity

    def watch(ours: fw.Method, theirs: Any, state: Any, happened: Any, updates: list[Tensor]) -> dict[str, float]:
        mine = state.aggregator
        seen = {"momenta": apart(torch.stack(theirs.projector.momentum), -mine["momentum"][np.arange(N)])}
        logged = measures.of_round(ours.aggregator, state, happened)["diversity"]
        seen["diversity as logged"] = apart(diversity(updates), logged)
        if mine["weights"].any():
            seen["weights λ̃, largest difference"] = float(np.abs(theirs.projector.feedback - mine["weights"]).max())
        return seen

    def both(
        ours: fw.Method, alpha: float, by: Any = ExactSolver, shuffled: bool = False, **settings: Any
    ) -> dict[str, list[float]]:
        uses = USES | {"MinNormSolver": by}
        uses["FedAWARE_Projector"] = take(folder / "utils.py", ["FedAWARE_Projector"], uses).FedAWARE_Projector
        code = take(folder / "fedaware.py", names, uses)
        theirs = prepared(code.Server_MomentumGradientCache(), alpha=alpha, **settings)
        return follow(ours, theirs, code.FedAvgSerialClientTrainer(), plain, shuffled, partial(watch, ours))

    for alpha, by in ((0.5, ExactSolver), (0.3, ExactSolver), (0.3, solver)):
        which = "an exact solver" if by is ExactSolver else "their own solver"
        reading = f"Aware(alpha={1 - alpha}, unit=True, first='share')"
        table = Table(f"FedAWARE, -alpha {alpha} -startup 1, with {which}, against {reading}")
        for name, values in both(aware(1 - alpha, unit=True, first="share"), alpha, by).items():
            table.add(name, values)
    table = Table("FedAWARE's model, -alpha 0.3, with an exact solver, against other readings")
    late = aware(0.7, "mean", unit=True, first="share")
    table.add("-startup 0 against start='mean'", both(late, 0.3, explored_from=-(-N // K))["model"])
    shadow = both(aware(0.7, unit=True, first="share", project=True), 0.3, projection=1)
    table.add("-projection 1 against project=True", shadow["model"])
    for what, ours in (
        ("m = u at first: fedaware_unit(alpha=0.7)", aware(0.7, unit=True)),
        ("... and α as in the paper: fedaware_unit(alpha=0.3)", aware(0.3, unit=True)),
        ("... and momenta as they are, the paper: fedaware(alpha=0.3)", aware(0.3)),
    ):
        table.add(what, both(ours, 0.3)["model"])
    filed = both(aware(0.7, unit=True, first="share"), 0.3, shuffled=True)
    table.add("answers filed under other clients, as their sampler does", filed["model"])


def compare_solver(solver: Any) -> None:
    """Compare their Frank–Wolfe iteration with the exact solution on unit vectors."""
    table = Table("Eq. 8: length of their direction over that of the shortest one, minus 1")
    for n, dim, common in ((8, 53, 1.0), (100, 1000, 0.0), (100, 1000, 0.1), (100, 20, 0.5), (100, 20, 0.0)):
        rng, excess, apart_by, inside = np.random.default_rng(0), [], [], False
        del ITERATIONS[:]
        for _ in range(3):
            m = rng.standard_normal((n, dim)) + common
            m = (m / np.linalg.norm(m, axis=1, keepdims=True)).astype(np.float32)
            found, _ = solver.find_min_norm_element_FW(list(torch.from_numpy(m)))
            best = fw.solve.min_norm_weights(m.astype(float) @ m.T.astype(float))
            length, shortest = (float(np.linalg.norm(w @ m)) for w in (found, best))
            inside = shortest < 1e-6  # the origin lies in the hull: there is nothing to divide by
            excess.append(length / shortest - 1)
            apart_by.append(length if inside else apart(found @ m, best @ m))
        if not inside:
            table.add(f"{n} unit vectors in R^{dim}, {common} added; iterations {ITERATIONS}", excess)
        what = "their length, ours is 0" if inside else "distance of directions"
        table.add(f"    {n} in R^{dim}: {what}", apart_by)
    pair = [torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0])]
    weight = solver.find_min_norm_element_FW(pair)[0][0]
    table.fact("two vectors, the second twice the first: their weight of the first", weight)


def compare_baselines(folder: Path) -> None:
    """Compare the baselines' servers and clients."""
    base, b = take(folder / "base_trainer.py", ["SerialClientTrainer"], USES), folder / "baselines"
    table = Table("Baselines: the model")

    def row(what: str, ours: fw.Method, server: Any, trainer: Any, answer: Answer = plain, **more: Any) -> None:
        table.add(what, follow(ours, server, trainer, answer, **more)["model"])

    sgd = base.SerialClientTrainer
    m = take(b / "fedavgm.py", ["FedAvgMServerHandler"], USES).FedAvgMServerHandler
    row("fedavgm(β 0.7)", methods.fedavgm(K, beta=0.7), prepared(m(), fedm_beta=0.7), sgd())
    row("    answers filed under other clients", methods.fedavgm(K), prepared(m(), fedm_beta=0.7), sgd(), shuffled=True)
    opt = take(b / "fedopt.py", ["FedOptServerHandler_"], USES).FedOptServerHandler_
    yogi = {"option": "yogi", "beta1": 0.9, "beta2": 0.99, "tau": 1e-4, "lr": 0.01}
    tau = replace(methods.fedyogi(K), server=server.Yogi(0.01, tau=1e-4))
    row("fedyogi with server.Yogi(0.01, tau=1e-4)", tau, prepared(opt(), **yogi), sgd())
    row("fedyogi as it is, τ = 1e-3", methods.fedyogi(K), prepared(opt(), **yogi), sgd())
    nova = take(b / "fednova.py", ["FedNovaServerHandler_"], USES | {"MinNormSolver": None}).FedNovaServerHandler_
    row("fednova_renorm", methods.fednova_renorm(K), prepared(nova()), sgd(), with_steps)
    row("fednova", methods.fednova(K), prepared(nova()), sgd(), with_steps)
    names = ["ScaffoldServerHandler_", "ScaffoldSerialClientTrainer_"]
    scaffold = take(b / "scaffold.py", names, USES)
    client = scaffold.ScaffoldSerialClientTrainer_
    row("scaffold", methods.scaffold(K), prepared(scaffold.ScaffoldServerHandler_()), client(), with_variates)
    dyn = take(b / "feddyn.py", ["FedDynServerHandler", "FedDynSerialClientTrainer_"], USES)
    walk = dyn.FedDynSerialClientTrainer_

    class Attached(walk):
        """Their client if reading the model did not cut it off from its gradients."""

        attached = True

    for what, alpha, trainer in (
        ("feddyn(α 0.1)", 0.1, walk()),
        ("    its clients if their penalties had gradients", 0.1, Attached()),
        ("    their clients as they are, against feddyn(α 1e-12): no penalty", 1e-12, walk()),
    ):
        row(what, methods.feddyn(K, alpha), prepared(dyn.FedDynServerHandler(), alpha_dyn=0.1), trainer, with_memory)


def compare_draws(folder: Path) -> None:
    """Compare Hybrid+'s draws in law, and see what their samplers file under whom."""
    table = Table("Hybrid+: frequencies of epochs and batch sizes minus the uniform law, in standard errors")
    draw, rounds = take(folder / "settings.py", ["get_heterogeneity"], USES).get_heterogeneity, 4000
    sizes = np.array([8, 10, 11, 14, 25])
    np.random.seed(0)  # noqa: NPY002 (they draw from it)
    theirs = np.array([[draw(SimpleNamespace(agnostic=1), int(n)) for n in sizes] for _ in range(rounds)])
    one, whole = np.ones(sizes.size), np.ones(sizes.size, int)
    columns = {"steps": whole, "batch_size": whole, "loss_rate": 0 * one, "latency": one, "available": one > 0}
    base = Population(weight=one / sizes.size, samples=sizes, **columns)
    worlds = [HybridPlus().population(base, r, 0) for r in range(1, rounds + 1)]
    epochs = [w.steps // np.ceil(sizes / w.batch_size).astype(int) for w in worlds]
    ours = np.stack([[w.batch_size for w in worlds], epochs], axis=-1)
    for name, drawn in (("theirs", theirs), ("ours", ours)):
        off = [deviation(drawn[:, :, 1].ravel(), range(2, 6))]
        off += [deviation(drawn[:, j, 0], range(10, n) if n > 10 else [n]) for j, n in enumerate(sizes)]
        table.add(f"{name}: epochs 2 … 5, batches 10 … n − 1, or n up to 10", off, 4.5)
    loops = [
        e * len(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(n)), int(b)))
        for n, (b, e) in zip(sizes, theirs[0], strict=True)
    ]
    ours = steps_of(theirs[0, :, 1], sizes, theirs[0, :, 0])
    table.add("steps of their first draws against ours", [apart(loops, ours)])
    table = Table("Their samplers, 100 clients, 10 a round, 500 rounds: share of answers filed under another client")
    samplers = take(folder / "utils.py", ["FeedbackSampler", "UniformSampler"], USES)
    for name, startup in (("FeedbackSampler", 1), ("FeedbackSampler", 0), ("UniformSampler", 0)):
        sampler, wrong, explored = getattr(samplers, name)(100), [], 0
        for t in range(500):
            more = {"startup": startup if t == 0 else 0} if name == "FeedbackSampler" else {}
            trained = sampler.sample(10, **more)
            wrong.append(np.mean(trained != np.asarray(sampler.last_sampled[0])))
            explored += not getattr(sampler, "explored", True)
        table.fact(f"{name}, startup {startup}; rounds without eq. 8: {explored}", f"{np.mean(wrong):.3f}")


def deviation(drawn: Any, support: Any) -> float:
    """Return the largest deviation of a value's frequency from the uniform law on ``support``; inf outside of it."""
    if not np.isin(drawn, support).all():
        return np.inf
    p = 1 / len(support)
    spread = np.sqrt(p * (1 - p) / drawn.size) or 1.0
    return max(abs(float(np.mean(drawn == value)) - p) / spread for value in support)


def main() -> None:
    """Compare everything."""
    folder = checkout_of(__doc__, "https://github.com/dunzeng/FedAWARE", "fedaware.py")
    torch.set_num_threads(1)
    solver = take(folder / "min_norm_solvers.py", ["MinNormSolver"], USES).MinNormSolver
    compare_solver(solver)
    compare_aware(folder, solver)
    compare_baselines(folder)
    compare_draws(folder)


if __name__ == "__main__":
    main()
