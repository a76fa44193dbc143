"""Rounds trust the library's own parts: behind the guard that other parts get they do the same, bit for bit.

So they never write into what they are given, and always return what the guard wants.
"""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave import aggregate, sample, upload
from fedweave.core.records import MOST_STEPS
from fedweave.core.roles import Aggregator, Pacing, Sampler, ServerOptimizer, System, Upload
from fedweave.core.spec import kinds
from fedweave.method import Method
from fedweave.pacing import Synchronous
from fedweave.papers.beyond.participation import Absent
from fedweave.papers.fedacs.quadratics import Even
from fedweave.papers.feddd.testbed import Shaped
from fedweave.round.guard import Guarded, guarded
from fedweave.round.read_only import read_only_record
from fedweave.runs.method_names import method_names, parse
from fedweave.runs.own_parts import check_population

CLIENTS = 6
METHODS = {name: parse(name, 3) for name in method_names()} | {
    "fixed": fw.Method(sample.Fixed((1 / CLIENTS,) * CLIENTS, 3)),
    "models": fw.Method(sample.Uniform(3), aggregator=aggregate.Models()),
    "refreshed": fw.Method(sample.Uniform(3), aggregator=aggregate.VarpRefreshed()),
    "top_k": fw.Method(sample.Uniform(3), upload=upload.ErrorFeedback(upload.TopK(0.05, upload.Quantized(3)))),
    "random_k": fw.Method(sample.Uniform(3), upload=upload.RandomK(0.2)),
    "deadline": fw.Method(sample.Uniform(3), pacing=Synchronous(deadline=0.3, over_selection=1.5)),
}


def ours(role):
    return {cls for cls in kinds(role).values() if cls.__module__.startswith("fedweave.")}


def parts_of(value):
    """Yield the classes of a part and of those that it contains."""
    yield type(value)
    for inner in (getattr(value, field.name) for field in fields(value)):
        if is_dataclass(inner):
            yield from parts_of(inner)


@pytest.mark.parametrize("role", [Sampler, Aggregator, ServerOptimizer, Upload, Pacing])
def test_all_parts_of_the_library_are_here(role):
    assert ours(role) <= {cls for method in METHODS.values() for cls in parts_of(method)}


@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_the_library_needs_no_guard(name, calibrate, monkeypatch):
    method = METHODS[name]
    assert guarded(method) is method
    plain = outcome(method, calibrate)
    assert isinstance(plain, list) or (calibrate and "cannot be calibrated" in plain)
    with monkeypatch.context() as patch:
        patch.setattr(Method, "foreign", property(lambda self: True))
        assert isinstance(guarded(method), Guarded)
        assert outcome(method, calibrate) == plain


def outcome(method, calibrate):
    """Return all that three rounds leave, as bytes, or why there are none."""
    found, everyone = [], np.arange(CLIENTS)
    try:
        for state, happened in fw.rounds(worlds.experiment(method, rounds=3, calibrate=calibrate)):
            found += [state.x.tobytes(), state.clock, happened.direction.tobytes(), happened.cohort.ids.tobytes()]
            for part in (state.sampler, state.aggregator, state.server, state.upload, state.clients):
                rows = {name: v if isinstance(v, np.ndarray) else v[everyone] for name, v in part.items()}
                found += [(name, rows[name].tobytes()) for name in sorted(rows)]
    except fw.BadInput as error:
        return str(error)
    return found


@fw.settings
class Own(Aggregator):
    """The sum of the updates."""

    def combine(self, state, view, cohort, replies):
        return replies.updates.sum(axis=0), state


@pytest.mark.parametrize("aggregator", [Own(), aggregate.Robust(Own(), trim=0.1)])
def test_a_part_that_is_not_the_librarys_is_guarded_wherever_it_is(aggregator):
    assert isinstance(guarded(fw.Method(sample.Uniform(3), aggregator=aggregator)), Guarded)


WORLDS = [
    *(fw.system.Uniform(), fw.system.Static(), fw.system.Dynamic(), fw.system.HybridPlus(), fw.system.Latency()),
    *(fw.system.Latency.heavy_tailed(), fw.system.Wireless(fading=True), fw.system.Shannon(fading=True)),
    fw.system.Dynamic(slow_work=(1, MOST_STEPS), fast_work=(MOST_STEPS, MOST_STEPS), step_seconds=1e9),
    fw.system.Measured(),
    fw.system.Devices(up_mbit="pareto:1e-9:0.1", down_mbit="lognormal:1:10", loss_rate=(0.0, 0.999)),
    *(Absent(), Even(), Shaped((1e-3,) * CLIENTS, (1e9,) * CLIENTS, 0.0)),
]
WORLDS += [
    *(fw.system.Jittered(world, compute=3, link=3) for world in WORLDS),
    *(fw.system.DayNight(WORLDS[2], share=1e-9), fw.system.OnOff(up=1, down=1), fw.system.OnOff(up=1e9, down=1e9)),
]


def test_worlds_of_the_library_pass_the_check_in_every_round(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,round,available,steps,loss_rate,seconds\n0,1,0,1,0,1e15\n1,3,1,1000000,0.9,1e-300\n")
    links = tmp_path / "links.csv"
    links.write_text("client,on,off,compute_seconds,up_mbit,down_mbit\n0,2,5,1e14,1e-9,1e9\n3,4,,1e-300,1e9,1e-9\n")
    every = [*WORLDS, fw.system.Trace(path), *(fw.system.Trace(links, inner=world, repeat=7) for world in WORLDS)]
    assert ours(System) <= {type(world) for world in every}
    samples = np.array([1, 12, 40, 7, 300, 11])
    base = read_only_record(
        worlds.equal_clients(CLIENTS, samples=samples, batch_size=np.minimum(samples, 10), model_bytes=np.full(6, 400))
    )
    for world in every:
        for round in range(1, 30):
            check_population(world.population(base, round, 7), world, base)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fw.system.Dynamic(slow_work=(1, MOST_STEPS + 1)), r"'slow_work\.1' parameter of Dynamic.* 1000000"),
        (lambda: fw.system.HybridPlus(step_seconds=2e9), "'step_seconds' parameter of HybridPlus.* 1000000000"),
        (
            lambda: fw.run(worlds.experiment(system=fw.system.Wireless(up_rate=(1e-14, 1e-13)))),
            r"^A participation takes at most 1e\+15 s\. With these links one takes \S+ s\.$",
        ),
    ],
)
def test_worlds_beyond_what_a_round_can_hold_are_refused(make, words):
    with pytest.raises(fw.BadInput, match=words):
        make()
