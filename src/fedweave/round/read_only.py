"""Arrays as they are handed to parts: to be read, not to be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from fedweave.core.records import Array, Cohort, Population, Replies, State

R = TypeVar("R", Population, Cohort)


def read_only(array: Array) -> Array:
    """Return the same values as an array that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def read_only_record(record: R) -> R:
    """Return a population or a cohort whose arrays cannot be written to: later stages and rounds read them."""
    arrays = _read_only_arrays({field.name: getattr(record, field.name) for field in fields(record)})
    return replace(record, **arrays) if arrays else record


def read_only_replies(replies: Replies) -> Replies:
    """Return replies whose arrays cannot be written to: memories and the audit log are taken from them."""
    return replies._replace(**_read_only_arrays(replies._asdict()))


def _read_only_arrays(values: Mapping[str, Any]) -> dict[str, Array]:
    writable = {name: v for name, v in values.items() if isinstance(v, np.ndarray) and v.flags.writeable}
    return {name: read_only(value) for name, value in writable.items()}


def read_only_state(state: State) -> State:
    """Return a part's state with arrays that cannot be written to: a round that is abandoned must leave it as it is."""
    if not state:  # most parts have none
        return {}  # a part may write into it
    return {name: read_only(value) if isinstance(value, np.ndarray) else value for name, value in state.items()}
