"""The options of a strategy: what Flower's FedAvg has, what clients do by themselves, and what a method contradicts."""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from fedweave.core.settings import BadInput, settings
from fedweave.fleet.server.terms import Terms
from fedweave.local.solvers import SGD, Adam
from fedweave.method import Method
from fedweave.pacing import with_draws
from fedweave.runs.experiment import Seed, Share
from fedweave.schedule import Rate
from fedweave.system.measured import Measured

WRAPPER = "Build the ClientApp with fedweave.flower.client(model, load_partition), which does it."


@settings
class StrategyOptions:
    """What the clients of an existing app do by themselves, as far as a method wants to know it, and the rest."""

    lr: Rate
    epochs: PositiveFloat  # for clients that do not report their "steps"
    batch_size: PositiveInt
    clients: PositiveInt | None
    fraction_train: Share | None  # None: the method says how many are asked
    fraction_evaluate: Share
    min_train_nodes: PositiveInt | None  # None: 2
    min_evaluate_nodes: NonNegativeInt
    min_available_nodes: PositiveInt | None  # None: 2, after the whole fleet was there if its size is stated
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    seed: Seed
    terms: Terms
    system: Measured
    max_length_ratio: PositiveFloat | None  # an update this many times as long as its round's median one is refused

    def check(self, method: Method) -> None:
        """Refuse what contradicts the method, or itself."""
        least, problems = self.min_train_nodes or 0, list[str]()
        per_round = getattr(method.sampler, "per_round", None)
        if self.fraction_train is not None and with_draws(method.sampler, 1) is method.sampler:
            problems.append(
                f"fraction_train={self.fraction_train:g} needs a sampler with a fixed cohort size (per_round). "
                f"{method.sampler} has none: leave fraction_train out."
            )
        if self.fraction_train is None and per_round and least > per_round:
            problems.append(
                f"{method.name} asks per_round={per_round} clients, fewer than min_train_nodes={least}: raise "
                "per_round, or give fraction_train, which then holds instead."
            )
        if self.fraction_train is not None and self.terms.over_selection != 1:
            problems.append("fraction_train says how many are asked: leave 'over_selection' out of Terms, or raise it.")
        both = self.terms.connected, self.min_available_nodes
        if None not in both and both[0] != both[1]:
            problems.append(
                f"Terms(connected={both[0]}) and min_available_nodes={both[1]} say the same thing: give one."
            )
        if (self.arrayrecord_key, self.configrecord_key) != ("arrays", "config") and (why := needs(method)):
            problems.append(f"{why} It reads 'arrays' and 'config': leave arrayrecord_key and configrecord_key out.")
        if problems:
            raise BadInput(*problems)

    @property
    def min_nodes(self) -> int:
        """How many nodes an app of strangers must have in every round."""
        least = self.min_train_nodes or 2
        return min(least, self.clients or least)

    def connected(self, strangers: bool) -> int | None:
        """Return how many nodes must be there before a round begins, in an app of ``strangers`` ``min_nodes`` at least.

        None: nothing is said, and the whole fleet must have been there once.
        """
        said = self.terms.connected or self.min_available_nodes
        return max(said, self.min_nodes) if said and strangers else said

    def cohort(self, there: int) -> int | None:
        """Return how many of the nodes that are there are asked to train; None: as many as the method says."""
        if self.fraction_train is None:
            return None
        return max(int(self.fraction_train * there), self.min_train_nodes or 2)


def needs(method: Method) -> str:
    """Return what a method has its clients do beyond plain training, as a sentence; nothing for most."""
    solver, name = method.solver, type(method.solver).__name__
    if not method.upload.identity:
        what = f"encode their updates with {type(method.upload).__name__}"
    elif isinstance(solver, SGD | Adam):
        return ""
    else:
        what = f"keep {solver.memory_kind} from round to round ({name})" if solver.memory_kind else f"train with {name}"
    return f"The clients of {method.name} {what}, which a ClientApp of your own does not. {WRAPPER}"
