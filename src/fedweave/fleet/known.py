"""What a strategy knows of its clients: their seats, links, steps and weights, as far as they have told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedweave.core.records import Array, Population, ServerState, State
from fedweave.core.settings import BadInput
from fedweave.fleet.checkpoint import Saved
from fedweave.fleet.metrics import EXAMPLES
from fedweave.fleet.options import StrategyOptions
from fedweave.fleet.server.places import Places
from fedweave.fleet.server.roster import Roster
from fedweave.fleet.server.seats import capped
from fedweave.fleet.wire.tensors import Tensors
from fedweave.method import Method
from fedweave.round.growth import extended, grown
from fedweave.system.worlds import steps_of


class Known:
    """The clients by number; what a save has of them counts from the beginning."""

    def __init__(self, places: Places | Roster, tensors: Tensors, options: StrategyOptions, saved: Saved | None):
        self.places, self._tensors, self._options = places, tensors, options
        n = len(saved.arrays["steps"]) if saved else places.size
        self.seen: State = saved.part("seen") if saved else options.system.fresh(n)
        known = saved.arrays if saved else {"steps": np.zeros(n, np.int64), "weights": np.zeros(n)}
        self.steps, self.weights = known["steps"].copy(), known["weights"].copy()  # as reported; 0: never

    def saved(self) -> Mapping[str, Array]:
        """Return it as arrays."""
        parts = {"seen": self.seen, "fleet": self.places.fleet()}
        arrays = {f"{part}.{name}": values for part, columns in parts.items() for name, values in columns.items()}
        return arrays | {"steps": self.steps, "weights": self.weights}

    def gathered(self, method: Method, state: ServerState | None) -> tuple[Array, ServerState | None]:
        """Return who is there, and the state with room for those who came; a method without room does not ask them."""
        places = self.places
        there, before = places.gather(), self.steps.size
        if places.size == before:
            return there, state
        known, more = (self.seen, self.steps, self.weights), places.size - before
        self.seen = extended(self.seen, self._options.system.fresh(places.size))
        self.steps, self.weights = (np.append(a, np.zeros(more, a.dtype)) for a in known[1:])
        try:
            if state is not None:
                state = grown(method, state, self.population(there), before, self._tensors.layout.parameters)
        except BadInput as e:
            assert isinstance(places, Places)
            places.close(before, str(e))
            self.seen, self.steps, self.weights = known
        return there[: places.size], state

    def population(self, there: Array) -> Population:
        """Return what is known of the clients; those never heard from are taken for average."""
        places, options = self.places, self._options
        samples, n = places.believed(), places.size
        batch = np.minimum(options.batch_size, samples)
        steps = np.where(self.steps > 0, self.steps, steps_of(np.full(n, options.epochs), samples, batch))
        weight = samples
        if options.weighted_by_key != EXAMPLES:
            counted = capped(self.weights, options.terms.max_samples_ratio)
            weight = np.where(counted > 0, counted, counted[counted > 0].mean() if counted.any() else 1.0)
        base = Population(weight / weight.sum(), samples, steps, batch, np.zeros(n), np.ones(n), there)
        covered = places.covered if isinstance(places, Roster) else None
        growing = isinstance(places, Places) and places.growing
        size = np.full(n, self._tensors.layout.dim * self._tensors.dtype.itemsize)
        return options.system.known(replace(base, covered=covered, model_bytes=size, growing=growing), self.seen)
