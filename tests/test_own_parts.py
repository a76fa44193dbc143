"""Parts that users write: odd ones are caught or contained, and comparisons with them go on."""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
from fedweave.core.records import Population
from fedweave.core.roles import Aggregator, Sampler, ServerOptimizer, Solver, System
from fedweave.core.settings import settings
from interrupt import StopAfter


@settings
class Doubles(Aggregator):
    """Computes in float64, as NumPy does by itself."""

    def combine(self, state, view, cohort, replies):
        return np.full(cohort.ids.size, 1 / cohort.ids.size) @ replies.updates.astype(np.float64), state


def test_the_model_stays_float32_whatever_a_part_computes_in(tiny):
    result = fw.run(tiny(fw.Method(fw.sample.Uniform(3), aggregator=Doubles())))
    assert result.x.dtype == np.float32


@settings
class Explodes(ServerOptimizer):
    """Divides by zero from the third round on."""

    def init(self, dim):
        return {"round": np.zeros(1)}

    def step(self, state, x, direction):
        r = state["round"] + 1
        return (x + direction if r < 3 else x + direction * np.float32(np.inf)), {"round": r}


def test_a_server_step_that_is_not_finite_is_abandoned_and_told(tiny):
    result = fw.run(tiny(fw.Method(fw.sample.Uniform(3), server=Explodes())))
    assert np.isfinite(result.x).all()
    assert result.rounds["abandoned"][2:].all()
    assert not result.rounds["abandoned"][:2].any()


def test_a_solver_with_torch_operations_trains(tiny):
    result = fw.run(tiny(fw.Method(fw.sample.Uniform(3), solver=Clips())))
    assert result.summary["accuracy"] > 0.2


@settings
class Clips(Solver):
    """Clips the gradient: only torch knows norm()."""

    def begin(self, y):
        return ()

    def direction(self, state, g, y, x, lr, t):
        return g / g.norm(dim=-1, keepdim=True).clamp(min=1.0), state


def test_a_part_without_settings_is_refused_when_the_method_is_built():
    class Plain(Sampler):
        def draw(self, state, view, rng):
            return None

    with pytest.raises(fw.BadInput, match=r"@fedweave\.settings"):
        fw.Method(Plain())


def test_a_comparison_goes_on_when_called_again(tiny, tmp_path):
    base, zoo = tiny(), [fw.methods.fedavg(3), fw.Method(fw.sample.Uniform(3), server=Explodes(), name="own")]

    with pytest.raises(fw.Interrupted):
        fw.compare(zoo, base, out=tmp_path / "c", callbacks=StopAfter(2, "own"))
    again = fw.compare(zoo, base, out=tmp_path / "c")
    whole = fw.compare(zoo, base)
    assert [r.summary["digest"] for r in again.results] == [r.summary["digest"] for r in whole.results]
    with pytest.raises(fw.BadInput, match="differs in lr"):
        fw.compare(zoo, replace(base, lr=0.9), out=tmp_path / "c")


def test_an_aggregator_of_unknown_step_length_cannot_be_calibrated(tiny, tmp_path):
    odd = fw.Method(fw.sample.Uniform(3), aggregator=Doubles(), name="odd")
    with pytest.raises(fw.BadInput, match="Uniform with Doubles"):
        fw.run(tiny(odd, calibrate=True), out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("name", ["fedavg", "fednova", "fedacs", "fedacs_measured", "fedvarp", "fedau", "fedos"])
def test_named_methods_can_be_calibrated(name, tiny):
    """Calibration changes the learning rate, and so the model, unless the estimate is unbiased; nothing is refused."""
    method = getattr(fw.methods, name)(3)
    calibrated, plain = fw.run(tiny(method, calibrate=True)), fw.run(tiny(method))
    assert (calibrated.summary["digest"] == plain.summary["digest"]) == (name in ("fedau", "fedos"))
    assert not calibrated.rounds["refused"].any()


@settings
class Watches(Sampler):
    """Remembers the learning rate it is told of."""

    def law(self, state, view):
        return np.full(view.population.size, 1.0)

    def draw(self, state, view, rng):
        return fw.sample.Everyone().draw(state, view, rng)

    def learn(self, state, view, cohort, replies):
        return {"lr": np.array([view.lr])}


def test_parts_see_the_calibrated_learning_rate(tiny):
    """Measured effort divides by the step that clients really took, not by the nominal one."""
    from fedweave.engine.pool.processes import Workers
    from fedweave.round import first_state, run_round
    from fedweave.runs.session import prepare

    method = fw.Method(Watches(), aggregator=fw.aggregate.LinkAware())
    session = prepare(tiny(method, weights="equal"), Workers(1))
    population = fw.system.Dynamic().population(session.base, 1, 0)
    state = first_state(method, session.start.x, population, session.engine.layout.parameters)
    after, happened = run_round(method, state, population, session.engine, 0.05, 0, calibrate=True)
    heard = 1 - population.loss_rate
    expected = 0.05 * (heard @ population.steps) / population.steps.sum()  # c-a-FedAvg: η₃ of FedACS I.2
    assert happened.lr == pytest.approx(expected)
    assert after.sampler["lr"][0] == happened.lr


@settings
class Scribbles(Aggregator, Sampler, ServerOptimizer, System):
    """Writes into what it is handed, at the place of this name."""

    place: str

    def _write(self, **handed):
        name, _, field = self.place.partition(" ")
        if name in handed:
            (getattr(handed[name], field) if field else handed[name])[...] = 1

    def init(self, *about):
        if isinstance(about[0], Population):  # a server optimiser gets the model's size
            self._write(first=about[0])
        return {}

    def draw(self, state, view, rng):
        self._write(seen=view.population)
        return fw.sample.Everyone().draw(state, view, rng)

    def combine(self, state, view, cohort, replies):
        self._write(view=view, population=view.population, cohort=cohort, replies=replies)
        return replies.updates.mean(axis=0), state

    def step(self, state, x, direction):
        self._write(x=x, direction=direction)
        return x + direction, state

    def population(self, base, round, seed):
        self._write(base=base)
        return base


@pytest.mark.parametrize(
    "place",
    [
        *("base steps", "first weight", "seen available", "view x", "population weight"),
        *("cohort count", "replies updates", "x", "direction"),
    ],
)
def test_what_parts_are_handed_cannot_be_written(place, tiny):
    """The next round reads the same arrays, and a resumed one would not find there what was written."""
    part = Scribbles(place)
    method = fw.Method(part, aggregator=part, server=part)
    with pytest.raises(ValueError, match="read-only"):
        fw.run(tiny(method, system=part))
