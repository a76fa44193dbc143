"""What parts return is checked where it comes in: one sentence with the part's name, before anything is changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedweave.core.records import Array
from fedweave.core.settings import BadInput, brief


def kind_of(value: Any) -> str:
    """Return what somebody returned in a few words: type and shape of an array, else the value."""
    return f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else brief(value)


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
