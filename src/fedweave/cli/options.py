"""What users type, checked all at once: the options of ``run`` and ``compare``, from a command line or a TOML file."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedweave import data, methods, models, system
from fedweave.core.roles import System
from fedweave.core.settings import BadInput, choice, nearest, sentences
from fedweave.core.spec import build, change
from fedweave.data import partition
from fedweave.method import Method
from fedweave.runs.experiment import Count, Experiment, Seed, to_plain
from fedweave.tables.rows import Where

SYSTEMS: dict[str, tuple[Callable[[], System], str]] = {
    "uniform": (system.Uniform, "the nominal work, no losses, one second for everyone"),
    "static": (system.Static, "work and loss rates spread evenly over the clients (FedACS I.3.1)"),
    "dynamic": (
        system.Dynamic,
        "redrawn every round, half slow and lossy, half fast and reliable (FedACS I.3.1)",
    ),
    "latency": (system.Latency, "each client has its own seconds per participation, uniform on (0, 1]"),
    "lognormal": (system.Latency.heavy_tailed, "as latency, with a heavy tail: log-normal seconds of mean 0.5"),
    "hybrid": (
        system.Uniform,
        "uneven data makes uneven work: as uniform, give the work in epochs (FedAWARE)",
    ),
    "wireless": (
        system.Wireless,
        "seconds from bytes, link rates and processors, one draw per client (FedDD table 4)",
    ),
    "shannon": (system.Shannon, "as wireless, rates from bandwidth, power, gain and noise (FedDD eqs 8 and 10)"),
    "hybrid+": (system.HybridPlus, "random epochs and batch sizes per client and round (FedAWARE)"),
}


@dataclass(frozen=True, config=ConfigDict(allow_inf_nan=False))
class Options:
    """The options by their names; text as typed is fine everywhere."""

    data: str = "mnist5k"
    partition: str = "dirichlet:0.5"
    clients: PositiveInt | None = None
    per_round: PositiveInt | None = None
    model: str = "auto"
    submodels: str | None = None
    system: str = "uniform"
    rounds: PositiveInt = 30
    epochs: float | None = Field(default=None, gt=0)
    steps: Count | None = None
    batch_size: Count = 20
    lr: float = Field(default=0.05, gt=0)
    calibrate: bool = False
    weights: Literal["data", "equal"] = "data"
    target: float | None = Field(default=None, ge=0, le=1)
    evaluate_every: PositiveInt = 1
    true_gradients: bool = False
    seed: Seed = 0
    seeds: PositiveInt = 1
    engine: Literal["local", "ray"] = "local"
    workers: PositiveInt | Literal["auto"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tables: Where = "ram"
    longest: float | None = Field(default=1000.0, gt=0)
    deadline: float | None = Field(default=None, gt=0)
    over_selection: float = Field(default=1.0, ge=1, le=10)
    answers: PositiveInt | None = None
    fewest: NonNegativeInt = 0
    failures: Literal["stop", "skip"] = "stop"
    quarantine: PositiveInt | None = None
    audit: bool = False


def method_names() -> dict[str, str]:
    """Return the named methods and what they are."""
    zoo = inspect.getmembers(methods, lambda f: inspect.isfunction(f) and f.__module__ == methods.__name__)
    return {name: (f.__doc__ or "").strip().split("\n")[0] for name, f in zoo}


def as_option(name: str) -> str:
    """Return a name as it is typed."""
    return f"--{name.replace('_', '-')}"


def read_options(given: Mapping[str, Any], where: Callable[[str], str] = as_option) -> Options:
    """Check all options and report every problem; ``where`` says how the user wrote a name."""
    fields = [f.name for f in dataclasses.fields(Options)]
    problems = [f"There is no option {where(k)!r}.{nearest(k, fields)}" for k in given if k not in fields]
    given = {k: v for k, v in given.items() if k in fields}
    try:
        options = TypeAdapter(Options).validate_python(given)
    except ValidationError as e:
        problems += [
            re.sub(r"The '(\w+)\S*' parameter of options", lambda m: where(m[1]), s)
            for s in sentences(e, "options", fields)
        ]
        wrong = {str(error["loc"][0]) for error in e.errors()}  # judge the others too, so that all is said at once
        options = TypeAdapter(Options).validate_python({k: v for k, v in given.items() if k not in wrong})
    problems += _misfits(options, where)
    if problems:
        raise BadInput(*problems)
    return options


def _misfits(options: Options, where: Callable[[str], str]) -> list[str]:
    """Return what single options cannot see: names that do not exist, and pairs that contradict each other."""
    problems: list[str] = []
    checks = {"data": _data, "model": _model, "submodels": _submodels, "partition": _partition, "system": _system}
    for name, check in checks.items():
        with _gather(problems, f"{where(name)}: "):
            check(options)
    if options.epochs is not None and options.steps is not None:
        problems.append(
            f"{where('epochs')} and {where('steps')} exclude each other: give the local work in one of them."
        )
    if options.engine == "ray" and options.device == "cuda":
        problems.append(f"{where('engine')} ray trains on CPUs: leave out {where('device')} cuda, or the engine.")
    if options.per_round and options.per_round > (options.clients or 20) and options.partition != "natural":
        problems.append(
            f"{where('per_round')} must not exceed {where('clients')} ({options.clients or 20}). "
            f"Got {options.per_round} instead."
        )
    return problems


def _data(options: Options) -> None:
    if options.data not in data.names() and not Path(options.data).expanduser().is_dir():
        raise BadInput(f"{choice('data set', options.data, data.names())} Or give the path of a folder of images.")


def _model(options: Options) -> None:
    if options.model not in ("auto", *models.names()):
        raise BadInput(f"{choice('model', options.model, ['auto', *models.names()])}")


def _submodels(options: Options) -> None:
    for given in (options.submodels or "").split(",") if options.submodels else ():
        if given.strip() not in models.names() and not _is_share(given):
            hint = nearest(given, models.names())
            raise BadInput(f"each must be a share in (0, 1] or a model, with commas between. Got {given!r}.{hint}")


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


def _partition(options: Options) -> partition.Partition:
    natural = options.partition.strip() == "natural"
    return partition.parse(options.partition, options.clients or (None if natural else 20))


def _system(options: Options) -> System:
    if options.system in SYSTEMS:
        return SYSTEMS[options.system][0]()
    if options.system.endswith(".csv"):
        return system.Trace(Path(options.system))
    raise BadInput(f"{choice('system', options.system, SYSTEMS)} Or give a trace file, TRACE.csv.")


def experiments_of(
    wanted: Sequence[str], typed: Mapping[str, Any], assignments: Sequence[str] = ()
) -> tuple[list[Experiment], Options]:
    """Return an experiment for each wanted method, a name or a TOML file, after everything typed was checked."""
    problems: list[str] = []
    given, places = dict(typed), dict[str, Callable[[str], str]]()
    methods_: list[Method | str] = []
    for name in wanted:
        with _gather(problems):
            method, path = name, Path(name)
            if name.endswith(".toml"):
                content, line = read_file(path), line_of(path)
                method = content.pop("method", "fedavg")
                problems += [
                    f"{line(k)} = {v!r} contradicts {places[k](k)} = {given[k]!r}: a comparison has one for all."
                    for k, v in content.items()
                    if k in places and given[k] != v
                ]
                places |= {k: line for k in content if k not in given}  # what was typed counts more than what was read
                given = {**content, **given}
            at = line_of(path)("method").removesuffix("method") if name.endswith(".toml") else ""
            with _gather(problems, at):
                methods_.append(_method(method, path.stem))
    problems += [
        f"--set takes PATH=VALUE, such as method.sampler.per_round=3. Got {a!r} instead."
        for a in assignments
        if "=" not in a
    ]
    options = Options()
    with _gather(problems):
        options = read_options(given, lambda k: places.get(k, as_option)(k))
    if problems:
        raise BadInput(*problems)
    zoo = [getattr(methods, m)(options.per_round or 5) if isinstance(m, str) else m for m in methods_]
    return [_experiment(method, options, dict(a.split("=", 1) for a in assignments)) for method in zoo], options


@contextmanager
def _gather(problems: list[str], prefix: str = "") -> Generator[None]:
    """Keep the problems of a step, so that the user hears of the next ones too."""
    try:
        yield
    except BadInput as e:
        problems += [prefix + problem for problem in e.problems]


def _method(given: Any, name: str) -> Method | str:
    """Return the name of a method that exists, or the composed method of a table."""
    if isinstance(given, Mapping):
        return build(Method, {"type": "Method", "name": name, **given}, "method")
    if not isinstance(given, str) or given not in method_names():
        raise BadInput(f"{choice('method', given, method_names())} Or give a TOML experiment file.")
    return given


def _experiment(method: Method, options: Options, assignments: Mapping[str, str]) -> Experiment:
    shared = {f.name: getattr(options, f.name) for f in dataclasses.fields(Experiment) if hasattr(options, f.name)}
    world = {"partition": _partition(options), "system": _system(options)}
    experiment = Experiment(method=method, **{**shared, **world})
    if not assignments:
        return experiment
    spec = change(to_plain(experiment), assignments)
    try:
        return build(Experiment, spec, "experiment")
    except BadInput as e:
        raise BadInput(*(f"--set: {problem}" for problem in e.problems)) from None


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a TOML experiment file; keys may be written with dashes."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise BadInput(f"The experiment file {str(path)!r} cannot be read: {e.strerror}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise BadInput(f"{path}: {e}") from None
    return {k.replace("-", "_"): v for k, v in content.items()}


def line_of(path: Path) -> Callable[[str], str]:
    """Return how to name a key of this TOML file in an error: file:line: key."""
    lines = path.read_text(encoding="utf-8").splitlines()

    def where(name: str) -> str:
        pattern = re.compile(rf"\s*\[?{re.escape(name).replace('_', '[-_]')}\s*[].=]")
        return next(
            (f"{path}:{i}: {name}" for i, line in enumerate(lines, 1) if pattern.match(line)),
            f"{path}: {name}",
        )

    return where
