"""Arrays as they are handed to parts: to be read, not to be written."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array, State


def read_only(array: Array) -> Array:
    """Return the same values as an array that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def read_only_state(state: State) -> State:
    """Return a part's state with arrays that cannot be written to: a round that is abandoned must leave it as it is."""
    if not state:  # most parts have none
        return {}  # a part may write into it
    return {name: read_only(value) if isinstance(value, np.ndarray) else value for name, value in state.items()}


def freeze(*arrays: Array | None) -> None:
    """Make arrays read-only where they are, those of parts of them included that are made from now on."""
    for array in arrays:
        if array is not None:
            array.flags.writeable = False
