"""What every training process does, wherever it runs: hold a trainer, do calls on it, and answer whatever happens."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import torch

from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.local.client_data import ClientData
from fedweave.local.trainer import Trainer

Answer = tuple[bool, Any]  # whether it went well, and the result or else the exception


class Serving:
    """The trainer of a training process, with one thread: another number of threads would give other bits."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._trainer: Trainer | None = None

    def load(self, build: bytes, data: ClientData) -> None:
        """Make the trainer ``build(data)``; what was pickled comes from the run that this process belongs to."""
        self._trainer = unpacked(build)(data)

    def call(self, x: Array, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return ``work(trainer, x, *arguments)``."""
        return work(self._trainer, x, *arguments)


class Unsendable(BadInput):
    """A model or a part of a method that cannot be sent to other processes."""

    @classmethod
    def because(cls, why: Exception) -> Unsendable:
        """Return the sentence for this reason."""
        return cls(
            f"The model or a part of the method cannot be sent to worker processes: {why}. Define it in a module that "
            "can be imported, or use the pool 'local' with workers=1."
        )


def packed(value: Any, **options: Any) -> bytes:
    """Pickle something for a training process, with the classes and functions of the main module."""
    main = sys.modules.get("__mp_main__")
    if main is not None and main.__name__ == "__mp_main__":  # the main module, as children of multiprocessing call it
        cloudpickle.register_pickle_by_value(main)
    try:
        return cloudpickle.dumps(value, **options)
    except Exception as e:
        raise Unsendable.because(e) from None


def unpacked(message: bytes, buffers: Sequence[memoryview] = ()) -> Any:
    """Return what was packed by the run that this process belongs to."""
    try:
        return pickle.loads(message, buffers=buffers)
    except Exception as e:
        raise Unsendable.because(e) from None


def answered(work: Callable[..., Any], *arguments: Any) -> Answer:
    """Do the work; an exception is an answer too, with its traceback as a note."""
    try:
        return True, work(*arguments)
    except Exception as error:
        return False, _portable(error)


def result_of(answer: Answer) -> Any:
    """Return what an answer brings, or raise it."""
    ok, value = answer
    if not ok:
        raise value
    return value


def _portable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note("In a training process:\n" + traceback.format_exc())
    return error
