"""DELTA: its authors' code and fedweave side by side, on 8 clients, 3 a round, 10 rounds of given gradients.

Both sides get the same gradients, cohorts and probabilities. Their trainers need a GPU, downloads and modules that are
not published, so their functions are run one by one: local training, scores, probabilities, bins, aggregation.
Use: git clone https://github.com/L3030/DELTA_FL; python benchmarks/authors/delta.py DELTA_FL
"""

from __future__ import annotations

import math
import random
import time
from copy import deepcopy
from functools import partial
from itertools import permutations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from side_by_side import Table, apart, checkout_of, take
from torch import Tensor, nn

from fedweave.aggregate import InverseProbability, Varp, VarpRefreshed
from fedweave.core.records import Cohort, Layout, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.local.solvers import SGD
from fedweave.sample import IS, ClusterIS, Delta, PracticalDelta, PracticalIS

N, K, ROUNDS, DIM, LR = 8, 3, 10, 12, 0.1
CIFAR, LEAF = Path("Femnist and CIfar-10"), Path("LEAF")
SIZES = np.array([10, 20, 20, 30, 40, 50, 60, 70])
EVEN = np.full(N, 40)


# Our side


def view(sizes: Any, steps: Any, momentum: float = 0.0, **probes: Any) -> View:
    """Return what our parts see of clients with so many samples that take so many steps."""
    one, solver = np.ones(N), SGD(momentum)
    clients = Population(sizes / sizes.sum(), sizes, steps, np.ones(N, int), 0 * one, one, one > 0)
    asked = SimpleNamespace(**{name: lambda ids, rows=rows: rows[ids] for name, rows in probes.items()})
    layout = Layout(("w",), ((DIM,),), DIM)
    return View(1, np.zeros(DIM, np.float32), clients, layout, LR, lambda k: solver.effort(k, LR), probes=asked)  # pyright: ignore[reportArgumentType]


def replies(updates: Any, steps: Any, variance: Any = None) -> Replies:
    """Return answers with these updates."""
    one = np.ones(len(updates))
    return Replies(one > 0, updates, steps, one, one, one, one, variance=variance)


def cohort(ids: Any, expected: Any) -> Cohort:
    """Return these clients, each drawn once."""
    return Cohort(np.asarray(ids), np.ones(len(ids), int), np.asarray(expected, float))


def learned(sampler: Sampler, state: State, at: View, ids: Any, means: Any) -> State:
    """Return the state of a sampler after these clients walked along their mean gradients by plain SGD."""
    steps = at.population.steps[ids]
    return sampler.learn(state, at, cohort(ids, np.ones(len(ids))), replies(-LR * steps[:, None] * means[ids], steps))


# Their side


def parts(gradient: Any) -> list[Tensor]:
    """Return a gradient as they hold it, one tensor per layer."""
    flat = torch.tensor(gradient)
    return [flat[:8].reshape(2, 4).clone(), flat[8:].clone()]


class Model:
    """A model as they aggregate it: tensors by name, and a device, which does not matter here."""

    def __init__(self, values: Any):
        self.values = {"w": torch.tensor(np.asarray(values, np.float32))}

    def to(self, device: Any) -> Model:
        return self

    def state_dict(self) -> dict[str, Tensor]:
        return self.values

    def load_state_dict(self, values: dict[str, Tensor]) -> None:
        self.values = values


class Frame:
    """A table that is not written."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def to_csv(self, *_: Any, **__: Any) -> None:
        pass


FILES = SimpleNamespace(DataFrame=Frame)
UNUSED = ("client_num", "sample_num", "datasetname", "localepoch", "client_drift", "seed_num", "localbs", "br")


class Net(nn.Module):
    """A small network in their two halves."""

    def __init__(self) -> None:
        super().__init__()
        self.feature, self.classifier = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.feature(x))


USES: dict[str, Any] = {
    "torch": torch,
    "np": np,
    "nn": nn,
    "math": math,
    "deepcopy": deepcopy,
    "optim": torch.optim,
    "Variable": lambda x: x,
    "seed": 0,
}
SETTINGS = SimpleNamespace(beta=0.5, globallr=1.0, lr=LR, bs=1, csd_importance=0, optimizer="DELTA", round_num=ROUNDS)


def compare_learned(folder: Path) -> None:
    """Compare the learned probabilities over ten rounds."""
    files = {"CIFAR-10": folder / CIFAR / "local_update.py", "LEAF": folder / LEAF / "local_update_FEMNIST.py"}
    names = ["FedTrain.reweight", "FedTrain.reweight_prac"]
    code = {name: take(file, names, USES) for name, file in files.items()}

    def both(theirs: str, rule: str, ours: Sampler, sizes: Any, steps: Any) -> list[float]:
        rng, differences = np.random.default_rng(0), []
        p, at = [1 / N] * N, view(sizes, steps)
        state = ours.init(at.population)
        for _ in range(ROUNDS):
            ids, g = np.sort(rng.choice(N, K, replace=False)), rng.standard_normal((N, DIM)) + np.arange(N)[:, None] / 4
            shown, counts = [parts(g[i]) for i in ids], [int(n) for n in sizes[ids]]
            more = (0, SETTINGS) if rule == "reweight_prac" else ()
            p = getattr(code[theirs], rule)(None, p, ids.tolist(), shown, counts, *more)
            state = learned(ours, state, at, ids, g)
            differences.append(apart([float(v) for v in p], state["probability"]))
        return differences

    even, uneven = np.full(N, 5), np.arange(1, 2 * N, 2)
    mix, zeta = PracticalDelta(K, variant="code", floor=0), PracticalDelta(K, variant="code", alpha2=0, floor=0)
    table = Table("Learned probabilities; clients with 10 to 70 samples")
    for what, theirs, rule, ours, steps in (
        ("CIFAR-10 reweight_prac: PracticalDelta(variant='code')", "CIFAR-10", "reweight_prac", mix, even),
        ("    clients take 1 to 15 steps", "CIFAR-10", "reweight_prac", mix, uneven),
        ("    with the default floor", "CIFAR-10", "reweight_prac", PracticalDelta(K, variant="code"), uneven),
        ("LEAF reweight_prac: PracticalDelta(variant='code', alpha2=0)", "LEAF", "reweight_prac", zeta, even),
        ("    clients take 1 to 15 steps", "LEAF", "reweight_prac", zeta, uneven),
        ("CIFAR-10 reweight (practical IS): PracticalIS", "CIFAR-10", "reweight", PracticalIS(K, floor=0), even),
        ("    clients take 1 to 15 steps", "CIFAR-10", "reweight", PracticalIS(K, floor=0), uneven),
        (
            "CIFAR-10 reweight_prac: the paper's rule without noise, gradients summed",
            "CIFAR-10",
            "reweight_prac",
            PracticalDelta(K, alpha2=0, floor=0),
            even,
        ),
    ):
        table.add(what, both(theirs, rule, ours, SIZES, steps))
    same = [parts(np.ones(DIM)) for _ in range(K)]  # no client differs from the mean
    p = code["LEAF"].reweight_prac(None, [1 / N] * N, [0, 1, 2], same, [5] * K, 0, SETTINGS)
    table.fact("LEAF reweight_prac after three equal gradients: their p", [float(v) for v in p[:K]])
    state = learned(zeta, zeta.init(view(EVEN, even).population), view(EVEN, even), np.arange(K), np.ones((N, DIM)))
    table.fact("    ours", state["probability"][:K].tolist())


def compare_oracles(folder: Path) -> None:
    """Compare the probabilities of the versions for which all clients train."""
    rng, ours = np.random.default_rng(1), Delta(K, floor=0)
    g, everyone, steps = rng.standard_normal((N, DIM)), list(range(N)), np.full(N, 5)
    away = np.linalg.norm(g - g.mean(0), axis=1)
    this = SimpleNamespace(N=N, sampled_clients=everyone, train_clients=everyone, global_model=Model(np.zeros(1)))
    table = Table("Probabilities when all clients train; noise 0 on our side, since theirs has none")
    for name, file in (("LEAF", LEAF / "local_update_FEMNIST.py"), ("MNIST", CIFAR / "local_update_class.py")):

        def found(rule: str, sizes: Any = SIZES, beta: float = 0.5, file: Path = file) -> Any:
            def trained(model: Any, *rest: Any, data_set: int, **more: Any) -> tuple[Any, int, list[Tensor]]:
                return model, int(sizes[data_set]), parts(g[data_set])

            uses = USES | {"local_epoch": trained, "model_utils": SimpleNamespace(batch_data=lambda *_: None)}
            uses |= {"dataloader": SimpleNamespace(DataLoader=lambda *_, **__: None)}
            code = take(folder / file, [f"FedTrain.{rule}"], uses)
            settings = SimpleNamespace(**{**vars(SETTINGS), "beta": beta})
            return np.array([float(v) for v in getattr(code, rule)(this, None, None, settings, 0, everyone)])

        at = view(SIZES, steps, updates=g)
        table.add(f"{name}, IS: IS (eq. 5)", [apart(found("reweight_theory"), IS(K, floor=0).law({}, at) / K)])
        p = found("reweight_prac_theory")
        share = shares(SIZES)
        second, text = (np.sqrt(share), "√(L/ΣL)") if name == "LEAF" else (share, "L/ΣL")
        table.add(f"{name}, DELTA: ½ (L/ΣL) ζ + ½ {text}", [apart(p, shares(share * away + second))])
        for what, sizes, theirs in (
            ("    Delta (eq. 13)", SIZES, p),
            ("    Delta (eq. 13), with β = 1 and equal data", EVEN, found("reweight_prac_theory", EVEN, 1.0)),
        ):
            at = view(sizes, steps, gradients=g, variances=np.zeros(N))
            table.add(what, [apart(theirs, ours.law({}, at) / K)])


def shares(score: Any) -> Any:
    """Return a score as shares of its sum."""
    return score / score.sum()


def compare_local(folder: Path) -> None:
    """Compare what local training reports with what we infer from an update."""
    rng = np.random.default_rng(2)
    batches = [(torch.tensor(rng.standard_normal((6, 4)), dtype=torch.float32), torch.tensor([0, 1] * 3))] * 4
    table = Table("Mean local gradient: reported by their training, and as our samplers infer it from the update")
    rules: dict[str, Any] = {"choose_optimizer": lambda model, *_: torch.optim.SGD(model.parameters(), LR)}
    rules["schedule_lr"] = lambda *_: LR
    for name, file, momentum, more in (
        ("CIFAR-10, plain SGD", CIFAR / "local_update.py", 0.0, ()),
        ("LEAF, local momentum 0.9", LEAF / "local_update_FEMNIST.py", 0.9, (range(24),)),
    ):
        code = take(folder / file, ["local_epoch"], USES | rules)
        torch.manual_seed(0)
        model = Net()
        x = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        model, count, gradients = code.local_epoch(model, deepcopy(model), batches, "cpu", SETTINGS, 0, 2, *more)
        u = nn.utils.parameters_to_vector(model.parameters()).detach() - x
        mean = torch.cat([g.reshape(-1) for g in gradients])
        inferred = -u / (LR * float(SGD(momentum).effort(np.array([8]), LR)[0]))
        table.add(f"{name}, 8 steps; L of 24 samples in 4 batches is {count}", [apart(mean, inferred)])
    code = take(folder / CIFAR / "local_update.py", ["local_epoch"], USES | rules)
    try:
        _, count, gradients = code.local_epoch(Net(), Net(), [], "cpu", SETTINGS, 0, 2)
        outcome = f"L = {count}, gradients {float(gradients[0][0, 0])}"
    except ZeroDivisionError as e:
        outcome = str(e)
    table.fact("CIFAR-10, a client with fewer samples than a batch (the last, partial one is dropped)", outcome)
    for file in (CIFAR / "local_update.py", LEAF / "local_update_FEMNIST.py"):
        rate = take(folder / file, ["schedule_lr"], USES).schedule_lr
        table.fact(f"learning rates of {file.parent} in rounds 0, 5, 9 of 10", [rate(t, SETTINGS) for t in (0, 5, 9)])


def compare_aggregation(folder: Path) -> None:
    """Compare one aggregation, and then the server's momentum over ten rounds."""
    rng = np.random.default_rng(3)
    ids, p = np.array([1, 4, 6]), shares(np.arange(2.0, 2 + N))
    x, u = rng.standard_normal(DIM), rng.standard_normal((K, DIM)).astype(np.float32)
    table = Table("Aggregation: the step, for three distinct clients drawn with replacement")

    def theirs(file: Path, sizes: Any, *more: Any) -> Any:
        code, model = take(folder / file, ["IS_communicate"], USES), Model(x)
        before, chosen = model.values["w"].clone(), [Model(x + d) for d in u]
        counts = [int(n) for n in sizes[ids]]
        code.IS_communicate(model, chosen, SETTINGS, p[ids].tolist(), N, counts, *more)
        return model.values["w"] - before

    def ours(sizes: Any) -> Any:
        at = view(sizes, np.full(N, 5))
        return InverseProbability().combine({}, at, cohort(ids, K * p[ids]), replies(u, at.population.steps[ids]))[0]

    plain = CIFAR / "pro_comm_helpers.py"
    table.add("CIFAR-10 (prox) against InverseProbability, equal data", [apart(theirs(plain, EVEN, None), ours(EVEN))])
    table.add("    10 to 70 samples", [apart(theirs(plain, SIZES, None), ours(SIZES))])
    leaf = LEAF / "comm_helpers.py"
    table.add("LEAF (prox) against InverseProbability, equal data", [apart(theirs(leaf, EVEN, None, K), ours(EVEN))])
    zero = {"w": torch.zeros(DIM)}
    momentum = LEAF / "comm_helpers_momentum.py"
    table.add("LEAF with momentum, first round, equal data", [apart(theirs(momentum, EVEN, zero, K), ours(EVEN))])
    start = {"w": torch.tensor(x, dtype=torch.float32)}  # as their run() begins: a copy of the model
    step = theirs(CIFAR / "comm_helpers.py", EVEN, start)
    table.add("CIFAR-10 with momentum, first round, equal data", [apart(step, ours(EVEN))])
    table.add("    the same plus 0.2 times the initial model", [apart(step, ours(EVEN) + 0.2 * x)])
    means = partial(exact_mean, take(folder / plain, ["IS_communicate"], USES).IS_communicate, p)
    table.add("its mean over all draws with replacement against Σ ω u, equal data", [means(EVEN, True)])
    table.add("    10 to 70 samples", [means(SIZES, True)])
    table.add("    drawn without replacement, equal data", [means(EVEN, False)])
    table.add("probabilities in LEAF's weights against those of the clients drawn", weights_in_a_run(folder, p))


def exact_mean(communicate: Any, p: Any, sizes: Any, replacement: bool) -> float:
    """Return how far the mean of their step is from Σ ω u: every ordered draw, times its probability."""
    u, total = np.random.default_rng(5).standard_normal((N, DIM)), np.zeros(DIM)
    for ids in product(range(N), repeat=K) if replacement else permutations(range(N), K):
        s, model = list(ids), Model(np.zeros(DIM))
        communicate(model, [Model(u[i]) for i in s], SETTINGS, p[s].tolist(), N, sizes[s].tolist(), None)
        total += p[s].prod() / (1 if replacement else sequential(p[s])) * model.values["w"].numpy()
    return apart(total, shares(sizes) @ u)


def sequential(p: Any) -> float:
    """Return what divides Π p for draws one after the other among the clients left."""
    return float(np.prod(1 - np.cumsum(p) + p))


def weights_in_a_run(folder: Path, p: Any) -> list[float]:
    """Run LEAF's loop with stand-ins for training, and return how far its p are from those of who trained."""
    trained: list[list[int]] = []
    given: list[Any] = []

    def train(model: Any, shared: Any, batches: Any, *rest: Any) -> tuple[Any, int, None]:
        trained[-1].append(rest[-1])
        return model, 1, None

    uses = {"local_epoch": train, "pd": FILES, "random": random, "time": time, "print": lambda *_: None}
    uses["model_utils"] = SimpleNamespace(batch_data=lambda *_: None)
    code, everyone = take(folder / LEAF / "local_update_FEMNIST.py", ["FedTrain.run"], USES | uses), list(range(N))
    this = SimpleNamespace(N=N, S=K, T=ROUNDS, global_model=Model(np.zeros(1)), models=[Model(np.zeros(1))] * K)
    this.sampled_clients, this.train_clients, this.test_loader = everyone, everyone, everyone
    this.set_weights, this.sample_clients = lambda: trained.append([]), lambda *_: None
    this.reweight_prac_theory = lambda p_before, device, args, t, order: p[order].tolist()
    this.combine_weights = lambda args, sizes, used, vt: given.append(used)
    this.test = lambda *_: (0, 0)
    random.seed(0)
    torch.manual_seed(0)
    code.run(this, SimpleNamespace(**vars(SETTINGS), **dict.fromkeys(UNUSED, 1)))
    return [apart(used, p[who]) for used, who in zip(given, trained, strict=True)]


def compare_memories(folder: Path) -> None:
    """Compare the two ways in which FedVARP is combined with a sampler, over ten rounds of three given updates."""
    table = Table("FedVARP: the model, for a uniform cohort")
    code = take(folder / LEAF / "comm_helpers.py", ["FedVARP_communicate", "FedVARP_communicate_modify"], USES)
    for what, rule, ours, sizes in (
        ("FedVARP_communicate: Varp(), equal data", "FedVARP_communicate", Varp(), EVEN),
        ("    10 to 70 samples", "FedVARP_communicate", Varp(), SIZES),
        (
            "FedVARP_communicate_modify: VarpRefreshed(), equal data",
            "FedVARP_communicate_modify",
            VarpRefreshed(),
            EVEN,
        ),
        ("    10 to 70 samples", "FedVARP_communicate_modify", VarpRefreshed(), SIZES),
    ):
        rng, at, differences = np.random.default_rng(6), view(sizes, np.full(N, 5)), []
        model, x, state = Model(np.ones(DIM)), np.ones(DIM), ours.init(at.population, DIM)
        mean, last = {"w": torch.zeros(DIM)}, [{"w": torch.zeros(DIM)} for _ in range(N)]
        for _ in range(ROUNDS):
            ids, u = np.sort(rng.choice(N, K, replace=False)), rng.standard_normal((K, DIM)).astype(np.float32)
            sent, counts = [Model(model.values["w"].numpy() + d) for d in u], sizes[ids].tolist()
            more = ([1 / N] * K, {"w": torch.zeros(DIM)}) if rule.endswith("modify") else ()
            getattr(code, rule)(model, sent, SETTINGS, counts, mean, last, N, K, ids.tolist(), *more)
            chosen = cohort(ids, np.full(K, K / N))
            step, state = ours.combine(state, at, chosen, replies(u, at.population.steps[ids]))
            x = x + step
            differences.append(apart(model.values["w"], x))
        table.add(what, differences)


def compare_draws(folder: Path) -> None:
    """Compare how many clients are drawn and how likely each one is."""
    table = Table("Draws: expected number of times a client is drawn")
    p, rounds = shares(np.arange(1.0, 1 + N) ** 1.5), 20_000
    exact = np.zeros(N)
    for order in map(list, permutations(range(N), K)):
        exact[order] += p[order].prod() / sequential(p[order])
    code = take(folder / CIFAR / "local_update.py", ["FedTrain.sample_clients"], USES)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (they draw from it)
    this = SimpleNamespace(N=N, S=K)
    drawn = np.stack([code.sample_clients(this, SETTINGS, p.tolist()).numpy() for _ in range(rounds)])
    seen = np.bincount(drawn.ravel(), minlength=N) / rounds
    distinct = all(len(set(row)) == K for row in drawn.tolist())
    noise = 4.5 * math.sqrt(K / rounds) / float(np.linalg.norm(exact))
    table.add(
        f"theirs against one after the other without replacement (distinct: {distinct})", [apart(seen, exact)], noise
    )
    table.add("that law against n p, on which their weights 1/(m p) rely", [apart(exact, K * p)])
    plain = PracticalDelta(K, floor=0)
    at = view(EVEN, np.full(N, 5))
    table.add("ours, with replacement, against n p", [apart(plain.law({"probability": p}, at), K * p)])
    fedavg = SimpleNamespace(optimizer="FedAvg")
    twice = np.mean([len(set(code.sample_clients(this, fedavg, None).tolist())) < K for _ in range(2000)])
    table.fact("their FedAvg on CIFAR-10: share of cohorts with a client drawn twice", f"{twice:.3f}")
    norms = np.random.default_rng(4).uniform(1, 9, N)
    clusters = take(
        folder / LEAF / "py_func" / "clustering.py",
        ["get_clusters_with_alg1", "sample_clients_cluster"],
        {**USES, "choice": np.random.choice},
    )
    bins = clusters.get_clusters_with_alg1(5, shares(norms))
    sampler = ClusterIS(5, form="bins", norms="oracle", floor=0)
    laws = sampler.groups({}, view(EVEN, np.full(N, 5), updates=norms[:, None].astype(np.float32)))
    table.add(
        "cluster-based IS: their 5 bins against ClusterIS(5, form='bins')",
        [apart(b, law) for b, (law, _) in zip(bins, laws, strict=True)],
    )
    table.add("    sum of the bins against 5 p", [apart(bins.sum(0), 5 * shares(norms))])
    table.fact("    their draws from 5 bins: LEAF", len(clusters.sample_clients_cluster(bins)))


def main() -> None:
    """Compare everything."""
    folder = checkout_of(__doc__, "https://github.com/L3030/DELTA_FL", str(LEAF / "local_update_FEMNIST.py"))
    torch.set_num_threads(1)
    compare_learned(folder)
    compare_oracles(folder)
    compare_local(folder)
    compare_aggregation(folder)
    compare_memories(folder)
    compare_draws(folder)


if __name__ == "__main__":
    main()
