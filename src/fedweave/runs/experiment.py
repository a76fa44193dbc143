"""An experiment is a method, data dealt to clients, a model, a world, and how long and with which seed to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, InstanceOf, NonNegativeInt, PositiveFloat, PositiveInt

from fedweave import models
from fedweave.core.roles import System
from fedweave.core.settings import BadInput, choice, nearest, settings
from fedweave.core.spec import build, describe
from fedweave.data import Dataset, load
from fedweave.data.partition import IID, Partition
from fedweave.method import Method, mask_aware
from fedweave.round.closing import Rules
from fedweave.system.worlds import Uniform
from fedweave.tables.rows import Where

if TYPE_CHECKING:
    from torch import nn

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(gt=0, lt=2**31)]  # what is counted per client must fit an array
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _listed(given: Any) -> Any:
    """Return sub-models as typed, such as 1,0.5 or feddd_a1,feddd_a2, one by one, shares as numbers."""
    if given is None or isinstance(given, str):
        given = [part.strip() for part in (given or "").split(",") if part.strip()]
    return [_as_number(part) for part in given] if isinstance(given, list | tuple) else given


def _as_number(given: Any) -> Any:
    try:
        return float(given)
    except (TypeError, ValueError):
        return given


Submodels = Annotated[tuple[float | str, ...], BeforeValidator(_listed)]


@settings
class Experiment:
    """Everything that decides a result, and ``engine``, ``workers``, ``device`` and ``tables``, which do not."""

    method: Method
    data: InstanceOf[Dataset] | str  # a loaded data set, or what fedweave.data.load takes
    partition: Partition = Field(default_factory=lambda: IID(clients=20))
    model: str | Callable[[], Any] = "auto"  # a name, a factory of torch modules, or the default for the data
    system: System = Field(default_factory=Uniform)
    rounds: PositiveInt = 30
    lr: PositiveFloat = 0.05  # of the clients' solver
    epochs: PositiveFloat | None = None  # local passes per round, 1 if neither is given; fractions are fine
    steps: Count | None = None  # local steps per round, instead
    batch_size: Count = 20
    calibrate: bool = False  # scale lr each round so that every method's step is as long as FedAvg's (FedACS I.2)
    weights: Literal["data", "equal"] = "data"  # the objective: ω ∝ samples, or 1/N
    target: Share | None = None  # test accuracy whose first reaching is reported
    evaluate_every: PositiveInt = 1
    seed: Seed = 0
    engine: Literal["local", "ray"] = "local"  # where training runs: processes of this machine, or a Ray cluster
    workers: PositiveInt | Literal["auto"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tables: Where = "ram"  # where what is remembered of every client is kept
    true_gradients: bool = False  # at each evaluation also every client's gradient on all its data: diversity, ‖∇f‖
    submodels: Submodels = ()  # what clients train in turn instead: models by name, or shares of the model's widths
    longest: PositiveFloat | None = 1000.0  # an update this many times as long as its round's median one is refused
    deadline: PositiveFloat | None = None  # seconds of the simulated clock after which a round waits for nobody
    over_selection: Annotated[float, Field(ge=1, le=10)] = 1.0  # times as many are asked as the method says
    answers: PositiveInt | None = None  # how many end a round; None: as many as the method says, if it asks more
    fewest: NonNegativeInt = 0  # with fewer usable answers a round is abandoned: the model stays as it is
    failures: Literal["stop", "skip"] = "stop"  # when a client's training raises: end the run, or do without its answer
    quarantine: PositiveInt | None = None  # a client with so many refused answers is not asked any more
    audit: bool = False  # whether the run folder keeps a chained log with a line for every answer

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("Give either 'epochs' or 'steps' of local work to an Experiment, not both.")
        if self.engine == "ray" and self.device == "cuda":
            raise ValueError("engine='ray' trains on CPUs: use device='cpu' with it, or engine='local'.")
        if isinstance(self.model, str) and self.model != "auto" and self.model not in models.names():
            raise ValueError(choice("model", self.model, ["auto", *models.names()]))
        for given in self.submodels:
            if given not in models.names() and not (isinstance(given, float) and 0 < given <= 1):
                raise ValueError(
                    f"The 'submodels' of an Experiment must be shares in (0, 1] or models. Got {given!r}."
                    f"{nearest(str(given), models.names())}"
                )
        if self.submodels and not self.method.aggregator.masks:
            raise ValueError(
                f"Clients with sub-models send parts of the model, which {type(self.method.aggregator).__name__} would "
                f"take for whole ones. Use {mask_aware()} as aggregator."
            )

    @property
    def rules(self) -> Rules:
        """When its rounds end, and what they let in."""
        return Rules(self.longest, self.deadline, self.answers, self.over_selection, self.fewest, self.quarantine)


def load_data(experiment: Experiment) -> Dataset:
    """Return the experiment's data set, read now if it was named."""
    return load(experiment.data) if isinstance(experiment.data, str) else experiment.data


def model_factory(experiment: Experiment, data: Dataset) -> tuple[str, Callable[[], nn.Module]]:
    """Return the model's name and a function that makes it for this data; a misfit is an error now."""
    if callable(experiment.model):
        return getattr(experiment.model, "__name__", "custom"), experiment.model
    fitting = "quadratic" if data.name == "quadratics" else models.default_for(data.shape, data.classes)
    name = fitting if experiment.model == "auto" else experiment.model
    models.check(name, data.shape, data.classes)
    return name, _Named(name, data.shape, data.classes)


def submodel_factories(
    experiment: Experiment, model: Callable[[], nn.Module], data: Dataset
) -> list[Callable[[], nn.Module]]:
    """Return functions that make the sub-models; a misfit is an error now."""
    factories: list[Callable[[], nn.Module]] = []
    for given in experiment.submodels:
        if isinstance(given, str):
            models.check(given, data.shape, data.classes)
            factories.append(_Named(given, data.shape, data.classes))
        else:
            factories.append(_Narrow(model, data.shape, given))
    return factories


class _Narrow:
    """A model made narrower, as a factory that can be sent to a worker."""

    def __init__(self, model: Callable[[], nn.Module], shape: tuple[int, ...], share: float):
        self.arguments = (model, shape, share)

    def __call__(self) -> nn.Module:
        from fedweave.local.submodels import shrunk

        return shrunk(*self.arguments)


class _Named:
    """A model by name, as a factory that can be sent to a worker."""

    def __init__(self, name: str, shape: tuple[int, ...], classes: int):
        self.arguments = (name, shape, classes)

    def __call__(self) -> nn.Module:
        return models.build(*self.arguments)


def to_plain(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment as JSON-able data; data given as arrays is named by its digest."""
    return describe(experiment)


def from_plain(spec: Mapping[str, Any]) -> Experiment:
    """Return the experiment that ``to_plain`` described; one with arrays or own modules needs Python."""
    if not isinstance(spec, Mapping) or not {"data", "model"} <= spec.keys():
        raise BadInput(f"An experiment is a table with 'data', 'model' and more. Got {str(spec)[:60]!r} instead.")
    data, model = spec["data"], spec["model"]
    if not isinstance(data, str) or not isinstance(model, str):
        what = "arrays" if not isinstance(data, str) else "a model"
        raise BadInput(
            f"This run used {what} given in Python: resume it there, with fedweave.resume(folder, experiment)."
        )
    return build(Experiment, spec, "experiment")
