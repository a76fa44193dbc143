"""Local training in PyTorch: any module; small chains of layers by compiled kernels where Numba is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from threading import Lock, Thread
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array, Layout
from fedweave.core.roles import Solver
from fedweave.data.ragged import Ragged
from fedweave.local.batches import Batches, batches
from fedweave.local.client_data import ClientData
from fedweave.local.compiled.network import CompiledNetwork
from fedweave.local.torch.flat_module import FlatModule
from fedweave.local.torch.pieces import PIECES, cut_into_pieces
from fedweave.local.torch.samples import Change, Samples, run
from fedweave.local.torch.threads import drawing_from, one_thread
from fedweave.local.torch.variance import Spread
from fedweave.local.trainer import ALL_ROWS, EVALUATION_BATCH, Jobs, Trained, of_each, of_one
from fedweave.tasks import Task, default_for
from fedweave.tasks.task import Batch, Sums, add_up
from fedweave.upload.codec import ClientModel, ModelFleet

THREAD = 2**24  # multiplications of a thread's share: much longer than its start
WORTHWHILE = 2**26  # multiplications of a piece: much longer than its way to a worker and back
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class TorchTrainer:
    """Trains clients from a given model and measures models in PyTorch, with one thread."""

    @one_thread()
    def __init__(
        self,
        model: nn.Module,
        data: ClientData,
        solver: Solver,
        seed: int,
        device: str = "cpu",
        task: Task | None = None,
    ):
        """Take over ``model``; without a ``task`` the one that fits the labels."""
        self.device = torch.device(device)
        if device != "cpu":  # same seed, same bits: no algorithm that is chosen by timing or adds up in any order
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
            torch.backends.cudnn.allow_tf32 = False
        self.data, self.solver, self.seed = data, solver, seed
        self.task = task or default_for(data.y)
        self.train_set = Samples(data.x, data.y, data.mean, data.std, self.device)
        self.test_set = Samples(data.test_x, data.test_y, data.mean, data.std, self.device)
        self.flat = FlatModule(model.to(self.device))
        self.batch_norm = any(isinstance(m, BATCH_NORMS) for m in model.modules())
        self.network, self._twins = None, list[CompiledNetwork]()
        self.threads = 1  # of small clients in compiled kernels; bits do not depend on it
        if data.transform is None and find_spec("numba") is not None:
            self.network = CompiledNetwork.of(model, self.flat.layout, self.train_set, self.task)
        self.models = ModelFleet((ClientModel(self.flat.layout),))

    @property
    def name(self) -> str:
        """What trains."""
        return "TorchTrainer" if self.network is None else "TorchTrainer with compiled kernels"

    @property
    def layout(self) -> Layout:
        """The model's tensors in the flat vector."""
        return self.flat.layout

    @property
    def test_size(self) -> int:
        """How many test samples there are."""
        return self.test_set.size

    def pieces(self, jobs: Jobs) -> Sequence[Array | slice]:
        """Return the rows that train in one call, those with the most work first."""
        work, most = self._work(jobs), jobs.client.size
        if self.network is not None:  # small clients: as many in a piece as are worth a worker
            most = min(PIECES, int(work.sum()) // WORTHWHILE)
            if most < 2 and not np.count_nonzero(jobs.lr != jobs.lr[0]):
                return [ALL_ROWS]
        return cut_into_pieces(work, jobs.lr, most)

    def _work(self, jobs: Jobs) -> Array:
        """Return what each client has to do: samples, or multiplications where the kernels train."""
        parts, clients = self.data.parts, jobs.client
        sizes = parts.sizes[clients] if isinstance(parts, Ragged) else np.array([parts[c].size for c in clients])
        return jobs.steps * np.minimum(jobs.batch_size, sizes) * (self.network.plan.work if self.network else 1)

    @one_thread()
    def train(self, x: Array, jobs: Jobs) -> Trained:
        """Train one piece from the model ``x``, one client after another."""
        updates = np.empty((jobs.client.size, self.layout.dim), np.float32)
        if self.network is not None and self.network.in_one_call(self.solver, jobs.measure):
            rows = self._train_in_threads(self.network, x, jobs, updates)
        else:
            plans = batches(self.seed, jobs, self.data.parts)
            each = [self._train_one(of_one(x, jobs, i), jobs, i, plan, updates[i]) for i, plan in enumerate(plans)]
            rows = np.array(each)
        updates -= of_each(x, jobs)
        return Trained(updates, *rows.T)

    def _train_in_threads(self, network: CompiledNetwork, x: Array, jobs: Jobs, out: Array) -> Array:
        """Write the clients' models to ``out``, each by one call of the kernels, which hold up no other thread."""
        n, plans, turn = jobs.client.size, enumerate(batches(self.seed, jobs, self.data.parts)), Lock()
        rows, errors = np.empty((n, 5)), list[BaseException]()
        count = max(1, min(self.threads, n, int(self._work(jobs).sum()) // THREAD if self.threads > 1 else 1))
        twins = [self._twins.pop() if self._twins else network.another() for _ in range(count - 1)]

        def train(network: CompiledNetwork) -> None:
            try:
                while not errors:
                    with turn:
                        i, plan = next(plans, (n, None))
                    if plan is None:
                        return
                    y, steps = out[i], int(jobs.steps[i])
                    y[:] = of_one(x, jobs, i) if jobs.starts is None else jobs.starts[i]
                    total, first, first_loss, squares = network.train_in_one_call(y, plan, float(jobs.lr[i]))
                    rows[i] = total / steps, first, float("nan"), first_loss, squares / steps
            except BaseException as e:  # such as Ctrl-C: the others end after their client
                errors.append(e)

        others = [Thread(target=train, args=(twin,)) for twin in twins]
        for thread in others:
            thread.start()
        train(network)
        for thread in others:
            thread.join()
        if errors:
            raise errors[0]
        self._twins += twins  # an interrupted thread may still write to its own
        return rows

    def _train_one(self, x: Array, jobs: Jobs, i: int, plan: Batches, out: Array) -> tuple[float, ...]:
        """Write the model of client i to ``out``; return its numbers, in the order of ``Trained``."""
        if self.network is None:
            return self._train_module(x, jobs, i, plan, out)
        out[:] = x if jobs.starts is None else jobs.starts[i]
        steps, spread = int(jobs.steps[i]), Spread(jobs.measure)
        begin = partial(self._begin, jobs=jobs, only=i, inner=torch.from_numpy)
        with self._drawing(jobs, i):
            found = self.network.train(out, plan, self.solver, begin, float(jobs.lr[i]), spread)
        total, first, first_loss, squares = found
        return total / steps, first, float(spread.variance([steps])[0]), first_loss, squares / steps

    def _begin(
        self, y: Tensor, jobs: Jobs, only: int, inner: Callable[[Array], Tensor] | None = None
    ) -> tuple[Tensor, ...]:
        """Return the solver's state at the start of the ``only`` client; ``inner`` orders vectors as ``y`` is."""
        if jobs.memory is None:
            return self.solver.begin(y)
        inner, share = inner or self.flat.inner, 1.0 if jobs.share is None else float(jobs.share[only])
        sent = None if jobs.broadcast is None else inner(of_one(jobs.broadcast, jobs, only))
        return self.solver.begin_with_memory(y, inner(jobs.memory[only]), sent, share)

    def _train_module(self, x: Array, jobs: Jobs, i: int, plan: Batches, out: Array) -> tuple[float, ...]:
        """Do the same through autograd."""
        steps, lr = int(jobs.steps[i]), float(jobs.lr[i])
        index = torch.from_numpy(plan.where).to(self.device)
        flat, solver = self.flat, self.solver
        flat.load(x if jobs.starts is None else jobs.starts[i])
        flat.module.train()
        y = flat.parameters
        g, first, first_loss, spread = None, float("nan"), float("nan"), Spread(jobs.measure)
        start, state = y.clone(), self._begin(y, jobs, i)
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        squares = torch.zeros_like(total, dtype=torch.float64)
        change = self._change(jobs, i)
        with self._drawing(jobs, i):
            for t in range(steps):
                if self.batch_norm:  # one sample has no spread: such a batch uses the running averages
                    flat.module.train(bool(plan.size[t] > 1))
                batch = self.train_set.take(index[t, : int(plan.size[t])], change)
                loss, squared = self.task.training_loss(self._outputs(batch), batch)
                g = flat.gradient(loss, None if state else g)  # a solver may keep a gradient, but only in its state
                first, first_loss = (float(g.norm()), loss.item()) if t == 0 else (first, first_loss)
                with torch.no_grad():
                    spread.add(g[None], t)
                    d, state = solver.direction(state, g, y, start, lr, t)
                    if solver.sends_last_step and t == steps - 1:
                        y.copy_(start)
                    y.sub_(d, alpha=lr)
                    total += loss
                    squares += squared
        flat.read(out)
        return (
            float(total) / steps, first, float(spread.variance([steps])[0]), first_loss, float(squares) / steps
        )  # fmt: skip

    def _drawing(self, jobs: Jobs, i: int) -> AbstractContextManager[None]:
        """Have layers, solvers and lazy samples that draw do so at the client's own address."""
        if self.network is not None and self.network.draws_nothing(self.solver):
            return nullcontext()
        return drawing_from(rng_for(self.seed, int(jobs.dispatch[i]), Stream.NOISE, int(jobs.client[i])))

    def _change(self, jobs: Jobs, i: int) -> Change | None:
        """Return the transform of a client's training batches, which draws at the client's own address."""
        if self.data.transform is None:
            return None
        rng = rng_for(self.seed, int(jobs.dispatch[i]), Stream.TRANSFORM, int(jobs.client[i]))
        return partial(self.data.transform, rng=torch.Generator().manual_seed(int(rng.integers(2**63))))

    @one_thread()
    def gradients(self, x: Array, clients: Array) -> Array:
        """Return the gradients (k, D) of clients' losses at ``x``, layers as when measuring; buffers have none."""
        return np.stack([self._gradient(x, int(client)) for client in clients])

    def _gradient(self, x: Array, client: int) -> Array:
        self.flat.load(x)
        self.flat.module.eval()
        part = torch.from_numpy(np.asarray(self.data.parts[client])).to(self.device)
        total = torch.zeros_like(self.flat.parameters)
        with self._measuring(client):
            for index in part.split(EVALUATION_BATCH):
                total += self.flat.gradient(self._loss(self.train_set.take(index), "sum"))
        return self.flat.outer(total / len(part))

    @one_thread()
    def variances(self, x: Array, dispatch: int, clients: Array, batch_size: Array) -> Array:
        """Return the variance (k,) at ``x`` of the gradients of one pass over each one's batches, as when measuring."""
        pairs = zip(clients.tolist(), batch_size.tolist(), strict=True)
        return np.array([self._variance(x, dispatch, client, size) for client, size in pairs])

    def _variance(self, x: Array, dispatch: int, client: int, batch_size: int) -> float:
        self.flat.load(x)
        self.flat.module.eval()
        steps = -(-self.data.parts[client].size // batch_size)
        job = Jobs(*(np.array([v]) for v in (client, steps, batch_size, dispatch)), lr=np.ones(1))
        (plan,) = batches(self.seed, job, self.data.parts)
        spread, where = Spread(True), torch.from_numpy(plan.where).to(self.device)
        with self._measuring(client):
            for t, (row, size) in enumerate(zip(where, plan.size, strict=True)):
                spread.add(self.flat.gradient(self._loss(self.train_set.take(row[: int(size)])))[None], t)
        return float(spread.variance([plan.size.size])[0])

    @one_thread()
    @torch.no_grad()
    def losses(self, x: Array, clients: Array) -> Array:
        """Return the mean loss (k,) of ``x`` on each client's data, layers as when measuring."""
        return np.array([self._mean_loss(x, int(client)) for client in clients])

    def _mean_loss(self, x: Array, client: int) -> float:
        self.flat.load(x)
        self.flat.module.eval()
        part = torch.from_numpy(np.asarray(self.data.parts[client])).to(self.device)
        pieces = (self.train_set.take(index) for index in part.split(EVALUATION_BATCH))
        with self._measuring(client):
            return sum(float(self._loss(batch, "sum", x)) for batch in pieces) / len(part)

    def _measuring(self, number: int) -> AbstractContextManager[None]:
        """Have layers that draw also when a model is measured do so at the address of this client or sample."""
        return drawing_from(rng_for(self.seed, 0, Stream.MEASURE, number))

    def _loss(self, batch: Batch, reduction: Literal["mean", "sum"] = "mean", x: Array | None = None) -> Tensor:
        return self.task.reduced_loss(self._outputs(batch, x), batch, reduction)

    def _outputs(self, batch: Batch, x: Array | None = None) -> Any:
        """Return what the model that is loaded says; if it is ``x`` and needs no gradient, the kernels may say it."""
        if x is not None and self.network is not None:
            return self.network.outputs(x, batch.x)
        return run(self.flat.module, self.flat.fit(batch.x))

    @one_thread()
    @torch.no_grad()
    def evaluate(self, x: Array, begin: int, end: int) -> Sums:
        """Return the task's sums over test samples [begin, end)."""
        self.flat.load(x)
        self.flat.module.eval()
        with self._measuring(begin):
            return self._sums(x, torch.arange(begin, end, device=self.device))

    @one_thread()
    @torch.no_grad()
    def evaluate_clients(self, x: Array, clients: Array) -> list[Sums]:
        """Return the task's sums over each client's own test samples; an empty one for a client that has none."""
        return [self._client_sums(x, int(client)) for client in clients]

    def _client_sums(self, x: Array, client: int) -> Sums:
        part = np.asarray(self.data.test_parts[client], np.int64) if self.data.test_parts else np.zeros(0)
        if not part.size:
            return {}
        self.flat.load(x)
        self.flat.module.eval()
        with self._measuring(client):
            slices = torch.from_numpy(part).to(self.device).split(EVALUATION_BATCH)
            return add_up([self._sums(x, index) for index in slices])

    def _sums(self, x: Array, index: Tensor) -> Sums:
        """Return the task's sums over these test samples, by the model ``x``, which is loaded."""
        batch = self.test_set.take(index)
        sums = self.task.measure(self._outputs(batch, x), batch)
        return {name: (_plain(total), _plain(weight)) for name, (total, weight) in sums.items()}


def _plain(value: Any) -> Any:
    """Return a tensor as a number or a NumPy array, which can be sent and added up anywhere."""
    if not isinstance(value, Tensor):
        return value
    return value.cpu().numpy() if value.dim() else value.item()
