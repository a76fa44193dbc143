"""An experiment is a method, data dealt to clients, a model, a world, and how long and with which seed to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, InstanceOf, NonNegativeInt, PositiveFloat, PositiveInt

from fedweave import models, tasks
from fedweave.core import plugins
from fedweave.core.options import FLAG, Option, options_of, renamed_options
from fedweave.core.records import MOST_STEPS
from fedweave.core.roles import Pacing, System, Upload
from fedweave.core.settings import BadInput, settings, shown, undeclared
from fedweave.data import Dataset, load
from fedweave.data.partition import Partition
from fedweave.data.partition import parse as parse_partition
from fedweave.local import adversaries
from fedweave.local.adversaries import Adversary
from fedweave.method import Method, mask_aware
from fedweave.pacing import Synchronous
from fedweave.pacing import parse as parse_pacing
from fedweave.round.rules import Rules
from fedweave.runs import method_names
from fedweave.runs.checks import (
    BATCH_SIZE,
    check_data,
    check_model,
    check_submodels,
    default_text,
    or_text,
    parse_sets,
    split_submodels,
    without_effect,
)
from fedweave.runs.start import Start, check_start
from fedweave.schedule import Rate, Schedule, rate_at
from fedweave.system import names as systems
from fedweave.system.layers import layers_of
from fedweave.tables.rows import Where
from fedweave.tasks import Task
from fedweave.upload import names as uploads

Share = Annotated[float, Field(ge=0, le=1)]
Steps = Annotated[int, Field(gt=0, le=MOST_STEPS)]
Count = Annotated[int, Field(gt=0, lt=2**31)]  # what is counted per client must fit an array
Seed = Annotated[int, Field(ge=0, lt=2**63)]
RULES = "When a round ends, and which updates it accepts"


@renamed_options
@settings
class Experiment:
    """Everything that decides a result; ``pool``, ``workers`` and ``tables`` do not, ``device`` only its last bits.

    Most fields are also options of ``fedweave run`` and keys of an experiment file, with the same defaults, and take
    what these take: ``method="fedacs"``, ``partition="dirichlet:0.1"``.
    """

    method: Annotated[Method, or_text(Method, method_names.parse, "fedacs")]
    data: Annotated[
        InstanceOf[Dataset] | str,
        BeforeValidator(check_data),
        Option(
            "digits, mnist5k, mnist, fashion_mnist, cifar10, ..., a folder of images, or module:name.",
            "NAME",
            "digits",
        ),
    ] = "mnist5k"
    partition: Annotated[
        Partition,
        or_text(Partition, parse_partition, "dirichlet:0.1"),
        Option(
            "iid, dirichlet:0.1, shards:2, classes:3, classes:2-10, classes:3:random, one-class, split:0.1:0.9, "
            "natural; auto: natural where the data has clients of its own, else dirichlet:0.5, or iid where it has no "
            "classes; or module:name.",
            "FORM",
            "dirichlet:0.1",
        ),
    ] = default_text("auto")
    model: Annotated[
        str | Callable[..., Any],  # in Python also a function that makes a torch module
        AfterValidator(check_model),
        Option(
            "A name of `fedweave list models`, or module:name, a function that makes one.",
            "NAME",
            "cnn_small",
            default="fits the data",
        ),
    ] = "auto"
    system: Annotated[
        System,
        or_text(System, systems.parse, "dynamic"),
        Option(
            "uniform, static, dynamic, latency, lognormal, wireless, shannon, hybrid, hybrid+, devices, TRACE.csv, or "
            "module:name; behind commas what is laid around it: jitter:0.2, day-night:24:0.5, on-off:20:5, TRACE.csv.",
            "NAME",
            "dynamic",
        ),
    ] = default_text("uniform")
    rounds: Annotated[PositiveInt, Option("Number of rounds.", "R", "60")] = 30
    lr: Annotated[
        Rate,
        Option(
            "Learning rate of the clients: a number; '0.1, 0.01@200': 0.1, and 0.01 from round 200 on; cosine:0.1 or "
            "cosine:0.1:0.001: from 0.1 down to 0 or to 0.001 over the run; 'warmup:5, 0.1': up to 0.1 in 5 rounds. "
            "After a semicolon, the rate of one method: '0.1; fedprox=0.02'.",
            "ETA",
            "0.1",
        ),
    ] = 0.05
    epochs: Annotated[
        Annotated[float, Field(gt=0, le=MOST_STEPS)] | None,
        Option("Local passes over the data per round; fractions are fine.", "E", "0.5", default="1"),
    ] = None
    steps: Annotated[Steps | None, Option("Local steps per round, instead of epochs.", "T", "10")] = None
    batch_size: Annotated[Count, Option("Samples per local step.", "B", "32")] = BATCH_SIZE
    calibrate: Annotated[
        bool, Option("Scale lr each round so that every method's step is as long as FedAvg's.", FLAG, "true")
    ] = False
    weights: Annotated[
        Literal["data", "equal"], Option("The objective: data (clients count by samples) or equal.", "KIND", "equal")
    ] = "data"
    target: Annotated[
        float | None,
        Option(
            "Test accuracy, 0 to 1, or the task's own metric: report rounds, time and bytes until it is reached.",
            "VALUE",
            "0.9",
        ),
    ] = None
    evaluate_every: Annotated[PositiveInt, Option("Evaluate every so many rounds.", "R", "5")] = 1
    seed: Annotated[Seed, Option("Same seed, same bits.", "S", "7")] = 0
    pool: Annotated[
        Literal["local", "ray"],
        Option(
            "Where to train: local processes, or ray, a Ray cluster; the results are the same.",
            "NAME",
            "ray",
            aliases=("engine",),
        ),
    ] = "local"
    workers: Annotated[
        PositiveInt | Literal["auto"],
        Option("Training processes or actors: auto or a number; the results do not depend on it.", "N", "2"),
    ] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Option("auto, cpu or cuda.", "NAME", "cpu")] = "auto"
    tables: Annotated[
        Where, Option("Where vectors remembered of every client are kept: ram, or disk when too many.", "PLACE", "disk")
    ] = "ram"
    true_gradients: Annotated[
        bool,
        Option(
            "At each evaluation also take every client's gradient on all its data: diversity, length.", FLAG, "true"
        ),
    ] = False
    submodels: Annotated[
        tuple[float | str, ...],
        BeforeValidator(split_submodels),
        AfterValidator(check_submodels),
        Option("What clients train in turn: shares of the model's widths, or models by name.", "LIST", "1,0.5"),
    ] = ()
    max_length_ratio: Annotated[
        PositiveFloat | None,
        Option(
            "Refuse an update this many times as long as its round's median one.",
            "TIMES",
            "50",
            group=RULES,
            aliases=("longest",),
        ),
    ] = 1000.0
    pacing: Annotated[
        Pacing | None,
        or_text(Pacing, parse_pacing, "buffered:20:5", optional=True),
        Option(
            "When the server absorbs answers: sync, or buffered:CONCURRENCY:BUFFER[:TIMEOUT], asynchronous rounds.",
            "FORM",
            "buffered:20:5",
            default="the method's own",
            group=RULES,
        ),
    ] = None
    upload: Annotated[
        Upload | None,
        or_text(Upload, uploads.parse, "topk:0.01", optional=True),
        Option(
            "Compress updates, with any method that sends whole ones: topk:0.01, randomk:0.1, quantized:4 (bits), "
            "topk:0.01:4 (values of 4 bits), ef:topk:0.01 (with error feedback), or module:name.",
            "FORM",
            "ef:topk:0.01",
            default="whole updates",
        ),
    ] = None
    deadline: Annotated[
        PositiveFloat | None,
        Option("Simulated seconds after which a round ends.", "SECONDS", "5", default="waits for all", group=RULES),
    ] = None
    over_selection: Annotated[
        float,
        Field(ge=1, le=10),
        Option(
            "Ask this many times as many clients as the method says; enough answers end the round.",
            "TIMES",
            "1.3",
            group=RULES,
        ),
    ] = 1.0
    answers: Annotated[
        PositiveInt | None,
        Option(
            "How many answers end a round.",
            "N",
            "8",
            default="all that were asked, without the over-selection",
            group=RULES,
        ),
    ] = None
    min_answers: Annotated[
        NonNegativeInt,
        Option(
            "With fewer usable answers a round is abandoned: the model stays as it is.",
            "N",
            "3",
            group=RULES,
            aliases=("fewest",),
        ),
    ] = 0
    failures: Annotated[
        Literal["stop", "skip"],
        Option(
            "When a client's training raises an exception: stop, or skip its answer.", "POLICY", "skip", group=RULES
        ),
    ] = "stop"
    quarantine: Annotated[
        PositiveInt | None,
        Option("No longer ask a client after so many refused answers.", "N", "3", default="never", group=RULES),
    ] = None
    audit: Annotated[
        bool,
        Option("Keep a chained log with a line for every answer; see `fedweave verify`.", FLAG, "true", group=RULES),
    ] = False
    task: Annotated[
        InstanceOf[Task] | None,
        or_text(Task, tasks.parse, "next_token", optional=True),
        Option(
            "classification, regression, next_token, or module:name.", "NAME", "next_token", default="fits the labels"
        ),
    ] = None
    evaluate: Annotated[
        tuple[Literal["train", "test"], ...],
        BeforeValidator(parse_sets),
        Option(
            "What each evaluation looks at: test, the common test set; train, the training loss over all clients and "
            "nothing else; or both.",
            "SETS",
            "train,test",
            default="test",
        ),
    ] = ("test",)
    client_eval: Annotated[
        PositiveInt | None,
        Option(
            "Every so many rounds, and after the last, evaluate the global model on each client's own test samples: "
            "mean, spread and the worst clients.",
            "R",
            "10",
            default="never",
        ),
    ] = None
    start: Annotated[
        InstanceOf[Start] | None,  # given as a state dict or a file
        BeforeValidator(check_start),
        Option(
            "A state dict to begin with: a .safetensors, .pt or .pth file.",
            "FILE",
            "model.safetensors",
            default="as the model draws its values",
        ),
    ] = None

    adversary: Annotated[
        Adversary | None,
        or_text(Adversary, adversaries.parse, "sign-flip:0.2", optional=True),
        Option(
            "A share of the clients attacks: sign-flip:0.2, scaling:0.2:10, label-flip:0.2, backdoor:0.2:7.",
            "FORM",
            "sign-flip:0.2",
            default="none",
        ),
    ] = None

    roll: Annotated[
        NonNegativeInt,
        Option(
            "With sub-models: so many channels further on they begin each round; 1 is FedRolex, 0 HeteroFL.",
            "CHANNELS",
            "1",
        ),
    ] = 0

    stop_at_target: Annotated[
        bool, Option("End the run after the first evaluated round that reaches the target.", FLAG, "true")
    ] = False
    patience: Annotated[
        PositiveInt | None,
        Option(
            "End the run when the task's metric on the test set has not improved for this many rounds; only evaluated "
            "rounds count.",
            "R",
            "20",
            default="never",
        ),
    ] = None
    stop_after: Annotated[
        PositiveFloat | None,
        Option(
            "End the run with the first evaluated round at whose end so many simulated seconds have passed: the same "
            "time for every method, however long their rounds are.",
            "SECONDS",
            "300",
            default="never",
        ),
    ] = None
    validation: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | None,
        Option(
            "Hold out this share of the training samples and evaluate on them instead of the test set, to tune without "
            "looking at it.",
            "SHARE",
            "0.1",
            default="none; 0.1 for sweep",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse fields that contradict each other, all at once; the command line replaces their quoted names."""
        problems: list[str] = []
        if self.epochs is not None and self.steps is not None:
            problems.append("'epochs' and 'steps' exclude each other: give the local work in one of them.")
        if self.pool == "ray" and self.device == "cuda":
            problems.append("'pool' ray trains on CPUs: use 'device' cpu with it, or 'pool' local.")
        if self.submodels and not self.method.aggregator.masks:
            problems.append(
                f"Clients with sub-models send parts of the model, which {type(self.method.aggregator).__name__} would "
                f"take for whole ones. Use {mask_aware()} as aggregator."
            )
        if self.roll and not self.submodels:
            problems.append("'roll' moves sub-models: give 'submodels' with it.")
        if self.pacing is not None and self._shorthand != Synchronous():
            problems.append("'deadline', 'answers' and 'over_selection' are short for a 'pacing': give one of the two.")
        if self.method.pacing != Synchronous() and self._shorthand != Synchronous():
            problems.append(
                "The method has a pacing of its own, which 'deadline', 'answers' and 'over_selection' would replace: "
                "give 'pacing' instead."
            )
        problems += self._method_problems()
        if self.target is not None and "test" not in self.evaluate:
            problems.append("'target' is measured on the test set, so 'evaluate' must include test.")
        if self.stop_at_target and self.target is None:
            problems.append("'stop_at_target' needs a 'target'.")
        if self.patience is not None and "test" not in self.evaluate:
            problems.append("'patience' uses the metric on the test set, so 'evaluate' must include test.")
        problems += without_effect(self)
        problems += [
            why
            for part in (self.partition, *layers_of(self.system), self.upload, self.pacing, self.adversary)
            if part and (why := undeclared(part))
        ]
        if problems:
            raise BadInput(*problems)

    @property
    def _shorthand(self) -> Pacing:
        return Synchronous(deadline=self.deadline, answers=self.answers, over_selection=self.over_selection)

    def _method_problems(self) -> Sequence[str]:
        """Return why the method cannot take the upload or the pacing of this experiment, if so."""
        if self.upload is not None and not self.method.upload.identity:
            own = type(self.method.upload).__name__
            return [f"{self.method.name} has an upload of its own, {own}, which 'upload' would replace: leave it out."]
        if any(part and undeclared(part) for part in (self.upload, self.pacing)):
            return ()
        try:
            overlaps = self.paced_method.pacing.overlaps
        except BadInput as misfit:
            return misfit.problems
        if self.roll and self.paced_method.upload.keeps and not self.paced_method.upload.masks:
            return ["'roll' moves sub-models away from what error feedback keeps of them: leave one of the two out."]
        if overlaps and self.min_answers > (enough := self.paced_method.pacing.enough()):
            return [f"'min_answers' {self.min_answers} is more than the {enough:g} answers after which a round ends."]
        if overlaps and self.calibrate:
            why = "Rounds that overlap cannot be calibrated, because their answers begin with different models"
            return [f"{why}: leave 'calibrate' out, or use the pacing Synchronous()."]
        return ()

    @property
    def paced_method(self) -> Method:
        """The method with the pacing and the upload of this experiment, if it gives any."""
        pacing = self.pacing or (self._shorthand if self._shorthand != Synchronous() else None)
        given = {name: part for name, part in (("pacing", pacing), ("upload", self.upload)) if part is not None}
        return replace(self.method, **given) if given else self.method

    @property
    def rate(self) -> float | Schedule:
        """The learning rate of the clients: the method's own, or this experiment's."""
        return self.lr if self.method.lr is None else self.method.lr

    def lr_at(self, round: int) -> float:
        """Return the learning rate of the clients in a round, from 1."""
        return rate_at(self.rate, round, self.rounds)

    @property
    def rules(self) -> Rules:
        """Which answers its rounds accept, and how many they need."""
        return Rules(max_length_ratio=self.max_length_ratio, min_answers=self.min_answers, quarantine=self.quarantine)


OPTIONS = options_of(Experiment)


def check_experiment(given: Any) -> None:
    """Refuse what is no Experiment."""
    if not isinstance(given, Experiment):
        raise BadInput(f"What is run must be an Experiment. Got {shown(given)}.")


def load_data(experiment: Experiment) -> Dataset:
    """Return the experiment's data set, read now if it was named; with the validation split in place of the test set.

    Whole numbers among the inputs are tokens, but plain numbers for the models of the library that take features.
    """
    data = load(experiment.data) if isinstance(experiment.data, str) else experiment.data
    data = data.split(experiment.validation) if experiment.validation else data
    if not isinstance(experiment.model, str) or plugins.is_plugin(experiment.model):
        return data
    return data if models.takes_tokens(experiment.model, *data.sample) else data.as_features()
