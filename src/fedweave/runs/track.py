"""Trackers: write the rounds of runs to TensorBoard, MLflow or Weights & Biases while they train."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import numpy as np

from fedweave.core.records import ServerState
from fedweave.core.settings import BadInput, choice
from fedweave.round.measures import TAKEN
from fedweave.runs.callbacks import Callback, Row, Running
from fedweave.store.export import Columns
from fedweave.tables.files import storing
from fedweave.tasks.task import RESERVED

if TYPE_CHECKING:
    from fedweave.runs.results import Result

FLUSH_SECONDS = 5.0  # TensorBoard sees rounds at most this late
BATCH = 100  # parameters that MLflow takes at once
MARK = "fedweave.txt"  # says which run the files beside it are of
TAGS = {  # of the columns of a row; what is no column of every run is a metric of the task
    **dict.fromkeys({*RESERVED, *TAKEN} - {"accuracy", "loss"}, "measures"),
    **dict.fromkeys(("train_loss", "objective"), "train"),
    **dict.fromkeys(("asked", "received", "refused", "abandoned"), "clients"),
    **dict.fromkeys(("client_mean", "client_std", "client_worst", "client_worst_decile"), "clients"),
    **dict.fromkeys(("clock", "seconds", "device_seconds", "wall_seconds", "bytes_up", "bytes_down"), "cost"),
}


class Log(ABC):
    """What a tracker keeps of one run."""

    last: int = 0  # round that it has

    @abstractmethod
    def add(self, round: int, scalars: Mapping[str, float]) -> None:
        """Add the numbers of a round, by tag."""

    @abstractmethod
    def close(self, error: BaseException | None) -> None:
        """End it; ``error`` is what ended the run early."""


class Tracker(Callback, ABC):
    """Adds the scalars of every round once, also where a run is interrupted, killed and continued."""

    library: ClassVar[str]  # the package that it needs
    comes_with: ClassVar[str]  # what pip installs for it

    def __init__(self):
        self.check()
        self._logs = dict[Running, Log]()

    @classmethod
    def check(cls) -> None:
        """Refuse a tracker whose package is not installed."""
        if not _is_installed(cls.library):
            way = f"Install it with: pip install {cls.comes_with}"
            raise BadInput(f"The tracker {cls.__name__} needs the package {cls.library}. {way}")

    @abstractmethod
    def open(self, run: Running) -> Log:
        """Return the log of a run; of one that is continued, the log that it began."""

    def begin(self, run: Running) -> None:
        """Open the log of a run, and add what it lacks of the rounds that are done."""
        self._logs[run] = self.open(run)
        self._complete(run, run.past)

    def round(self, run: Running, row: Row, state: ServerState) -> None:
        """Add a round, unless the log had it before the run was killed."""
        self._add(run, row)

    def end(self, run: Running, result: Result, error: BaseException | None) -> None:
        """Add a last round that another callback kept from this one by an exception, and close the log."""
        if run in self._logs:  # else it could not be opened
            self._complete(run, result.rounds)
            self._logs.pop(run).close(error)

    def _complete(self, run: Running, rounds: Columns) -> None:
        for i in range(len(rounds["round"]) if rounds else 0):
            self._add(run, {name: column[i] for name, column in rounds.items()})

    def _add(self, run: Running, row: Row) -> None:
        log, number = self._logs[run], int(row["round"])
        if number > log.last:
            log.add(number, scalars(row, judged_on(run)))
            log.last = number


def judged_on(run: Running) -> str:
    """Return on which samples a run's models are evaluated, in a word."""
    return "validation" if run.experiment.validation else "test"


def scalars(row: Row, judged: str = "test") -> dict[str, float]:
    """Return the numbers of a row by their tags, such as test/accuracy and cost/clock; without those not known."""
    known = {name: float(value) for name, value in row.items() if name != "round" and np.ndim(value) == 0}
    return {f"{TAGS.get(name, judged)}/{name}": value for name, value in known.items() if np.isfinite(value)}


def identity_of(run: Running) -> str:
    """Return a text that identifies a run, the same when it is continued."""
    return f"{run.folder.resolve()} of {run.manifest['started']}" if run.folder else f"in memory, {uuid4()}"


def settings_of(run: Running) -> dict[str, Any]:
    """Return the settings of a run by their paths; a part is named by its class."""
    return dict(_flat(run.manifest["experiment"], ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, path if name == "type" else f"{path}.{name}" if path else name)
    elif path and value is not None:
        yield path, value if isinstance(value, str | int | float) else str(value)


class TensorBoard(Tracker):
    """Writes TensorBoard's files, those of each run into a folder of its own: ``tensorboard --logdir FOLDER``.

    A run that is continued writes its file again, with the rounds that were done.
    """

    library, comes_with = "tensorboardX", "'fedweave[track]'"

    def __init__(self, folder: str | Path):
        super().__init__()
        self.folder = Path(folder)

    def open(self, run: Running) -> Log:
        """Begin the file of a run."""
        with storing(self.folder):
            return EventFile(self._place(run), run)

    def _place(self, run: Running) -> Path:
        """Return the folder that a run began, or a new one: another run may have had the same name."""
        name, mark = run.label, identity_of(run)
        for place in (self.folder / n for n in chain([name], (f"{name}-{i}" for i in count(2)))):
            try:
                place.mkdir(parents=True)
            except FileExistsError:
                if not (place / MARK).is_file() or (place / MARK).read_text() != mark:
                    continue
            else:
                (place / MARK).write_text(mark)
            return place
        raise AssertionError


class EventFile(Log):
    """A file of events, written by the thread of the run: what cannot be written ends the run, and nothing waits."""

    def __init__(self, folder: Path, run: Running):
        from tensorboardX import RecordWriter, summary

        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._messages: Any = import_module("tensorboardX.proto.event_pb2")
        self._values: Any = import_module("tensorboardX.proto.summary_pb2").Summary
        self._flushed = 0.0
        self._path = (folder / f"events.out.tfevents.{int(time.time())}.fedweave").resolve()
        self._file = RecordWriter(str(self._path))
        past = run.past.get("wall_seconds", np.zeros(0))
        self._begun = time.time() - (float(past[-1]) if past.size else 0.0)
        primary, settings = (run.manifest.get("task") or {}).get("primary", "loss"), settings_of(run)
        session, start, self._end = summary.hparams(settings, {f"{TAGS.get(primary, judged_on(run))}/{primary}": 0})
        self._write(file_version="brain.Event:2")
        self._write(step=1, session_log=self._messages.SessionLog(status=1))  # a start: drop what was shown before
        for content in (session, start, summary.text("experiment", _as_markdown(run, settings))):
            self._write(summary=content)

    def add(self, round: int, scalars: Mapping[str, float]) -> None:
        """Add the numbers of a round, at the time that it ended."""
        values = [self._values.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        when = self._begun + scalars.get("cost/wall_seconds", 0.0)
        self._write(when, step=round, summary=self._values(value=values))

    def close(self, error: BaseException | None) -> None:
        """Say that the run is complete, if it is."""
        if error is None:
            self._write(summary=self._end)
        with storing(self._path):
            self._file.flush()
            self._file.close()

    def _write(self, when: float | None = None, **content: Any) -> None:
        with storing(self._path):
            event = self._messages.Event(wall_time=when or time.time(), **content)
            self._file.write(event.SerializeToString())
            if time.monotonic() - self._flushed > FLUSH_SECONDS:
                self._file.flush()
                self._flushed = time.monotonic()


def _as_markdown(run: Running, settings: Mapping[str, Any]) -> str:
    about = {"run": run.folder, **{name: run.manifest.get(name) for name in ("command", "started")}}
    rows = [f"| {name} | {value} |" for name, value in (about | dict(settings)).items() if value is not None]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


class MLflow(Tracker):
    """Adds each run to an experiment of MLflow, at the place that ``MLFLOW_TRACKING_URI`` names."""

    library = comes_with = "mlflow"

    def __init__(self, experiment: str = "fedweave"):
        super().__init__()
        self._mlflow: Any = import_module("mlflow")
        self._client = self._mlflow.MlflowClient()
        found = self._client.get_experiment_by_name(experiment)
        self._experiment = found.experiment_id if found else self._client.create_experiment(experiment)

    def open(self, run: Running) -> Log:
        """Begin a run of MLflow, or find the one that was begun."""
        client, mark = self._client, hashlib.sha256(identity_of(run).encode()).hexdigest()
        found = client.search_runs([self._experiment], f"tags.fedweave = '{mark}'")
        if found:
            client.update_run(found[0].info.run_id, "RUNNING")
            return MLflowRun(self._mlflow, client, found[0].info.run_id)
        begun = client.create_run(self._experiment, tags={"fedweave": mark}, run_name=run.label)
        parameters = [self._mlflow.entities.Param(name, str(value)) for name, value in settings_of(run).items()]
        for i in range(0, len(parameters), BATCH):
            client.log_batch(begun.info.run_id, params=parameters[i : i + BATCH])
        return MLflowRun(self._mlflow, client, begun.info.run_id)


class MLflowRun(Log):
    """A run of MLflow, named at every call: several may train at the same time."""

    def __init__(self, mlflow: Any, client: Any, key: str):
        self._mlflow, self._client, self._key = mlflow, client, key
        self.last = max((metric.step for metric in client.get_metric_history(key, "cost/clock")), default=0)

    def add(self, round: int, scalars: Mapping[str, float]) -> None:
        """Add the numbers of a round."""
        now = int(1000 * time.time())
        metrics = [self._mlflow.entities.Metric(tag, value, now, round) for tag, value in scalars.items()]
        self._client.log_batch(self._key, metrics=metrics)

    def close(self, error: BaseException | None) -> None:
        """Say how the run ended."""
        early = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        self._client.set_terminated(self._key, early if error else "FINISHED")


class WandB(Tracker):
    """Adds each run to a project of Weights & Biases."""

    library = comes_with = "wandb"

    def __init__(self, project: str = "fedweave"):
        super().__init__()
        self._project = project
        self._wandb: Any = import_module("wandb")

    def open(self, run: Running) -> Log:
        """Begin a run of W&B, or continue the one that was begun."""
        key = hashlib.sha256(identity_of(run).encode()).hexdigest()[:16]
        found = self._wandb.init(
            project=self._project,
            name=run.label,
            group=run.name,
            config=settings_of(run),
            id=key,
            resume="allow",
            reinit="create_new",  # several may train at the same time
        )
        return WandBRun(found)


class WandBRun(Log):
    """A run of Weights & Biases."""

    def __init__(self, run: Any):
        self._run, self.last = run, run.step - 1  # of a new one it is 0, and rounds begin with 1

    def add(self, round: int, scalars: Mapping[str, float]) -> None:
        """Add the numbers of a round."""
        self._run.log(dict(scalars), step=round)

    def close(self, error: BaseException | None) -> None:
        """Say how the run ended."""
        self._run.finish(exit_code=int(error is not None))


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # a module that was made by hand and is loaded
        return True


KINDS = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def check_trackers(texts: Sequence[str]) -> None:
    """Refuse what ``--track`` cannot do, all of it at once; nothing is begun yet."""
    problems: list[str] = []
    for name, _, place in (text.partition(":") for text in texts):
        if name not in KINDS:
            problems.append(f"--track: {choice('tracker', name, KINDS)}")
            continue
        if name == "tensorboard" and not place:
            problems.append("--track tensorboard needs a folder, such as --track tensorboard:logs.")
        try:
            KINDS[name].check()
        except BadInput as e:
            problems += [f"--track: {problem}" for problem in e.problems]
    if problems:
        raise BadInput(*problems)


def trackers_of(texts: Sequence[str]) -> list[Tracker]:
    """Return the trackers of ``--track``: tensorboard:DIR, mlflow[:EXPERIMENT] or wandb[:PROJECT]."""
    check_trackers(texts)
    return [KINDS[name](*filter(None, [place])) for name, _, place in (text.partition(":") for text in texts)]
