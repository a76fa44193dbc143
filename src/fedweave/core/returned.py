"""What parts return is checked where it comes in: one sentence with the part's name, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from fedweave.core.records import Array
from fedweave.core.settings import BadInput, brief


def kind_of(value: Any) -> str:
    """Return what somebody returned in a few words: type and shape of an array, else the value."""
    array = isinstance(value, np.ndarray) or type(value).__name__ == "Tensor"  # torch is not loaded for it
    return f"{value.dtype}{tuple(value.shape)}" if array else brief(value)


def check_pair(found: Any, part: Any, verb: str, what: str) -> tuple[Any, Any]:
    """Return the two things that a part returns."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise BadInput(f"{type(part).__name__}.{verb} must return two things, {what}. It returned {kind_of(found)}.")
    return found


def check_vector(found: Any, size: int, part: Any, verb: str) -> Array:
    """Return a vector of floating-point numbers; NumPy would stretch or cut another one silently."""
    if not isinstance(found, np.ndarray) or found.shape != (size,) or found.dtype.kind != "f":
        who = f"{type(part).__name__}.{verb}"
        raise BadInput(f"{who} must return an array of {size} floating-point numbers. It returned {kind_of(found)}.")
    return found


def check_like(found: Any, wanted: Any, part: Any, verb: str) -> Any:
    """Return floating-point numbers of the shape of ``wanted``, and of the same library, NumPy or torch."""
    numpy = isinstance(wanted, np.ndarray | np.floating)
    kind = isinstance(found, np.ndarray | np.floating if numpy else type(wanted))
    if not kind or found.shape != wanted.shape or not (found.dtype == wanted.dtype or "float" in str(found.dtype)):
        what = f"{'a NumPy array' if numpy else 'a torch tensor'} of shape {tuple(wanted.shape)}"
        raise BadInput(
            f"{type(part).__name__}.{verb} must return floating-point numbers as {what}. It returned {kind_of(found)}."
        )
    return found


SOLVER = {"begin": "", "begin_with_memory": "", "direction": "y", "memory_change": "u", "effort": "steps"}


def check_solver(cls: type) -> None:
    """Have what the verbs of a solver return be checked at every call: trainers call them, and so do other solvers."""
    for name, like in SOLVER.items():
        if name in vars(cls):
            setattr(cls, name, _checked(vars(cls)[name], name, like, 2 if name == "direction" else 0))


def _checked(verb: Callable[..., Any], name: str, like: str, place: int) -> Callable[..., Any]:
    @wraps(verb)
    def checked(self: Any, *args: Any, **more: Any) -> Any:
        found = verb(self, *args, **more)
        if not like:
            return _check_tuple(found, self, name)
        wanted = more[like] if like in more else args[place]
        if name != "direction":
            return check_like(found, wanted, self, name)
        d, state = check_pair(found, self, name, "the direction and the state")
        return check_like(d, wanted, self, name), _check_tuple(state, self, name)

    return checked


def _check_tuple(found: Any, solver: Any, verb: str) -> Any:
    if not isinstance(found, tuple | list):
        who = f"{type(solver).__name__}.{verb}"
        raise BadInput(f"{who} must return its state as a tuple of arrays. It returned {kind_of(found)}.")
    return found


def read_only_error(error: Exception, *parts: Any) -> BadInput | None:
    """Return the sentence for a part that wrote into an array it was given; other errors get a note on whose they are.

    The part is found in the traceback: its method is the last frame whose ``self`` is one of ``parts``.
    """
    frames, trace = list[tuple[str, str]](), error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if any(owner is part for part in parts):
            frames.append((type(owner).__name__, trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    if not frames:
        return None
    who = ".".join(frames[-1])
    if isinstance(error, ValueError) and "read-only" in str(error):
        return BadInput(f"{who} must not change the arrays it is given, which are read-only. Let it change a copy.")
    if not isinstance(error, BadInput):
        error.add_note(f"In {who}.")
    return None
