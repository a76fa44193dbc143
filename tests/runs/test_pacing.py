"""Asynchronous runs as users start them: the same bits however they are computed, and refused where they cannot be."""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave import aggregate, sample
from fedweave.core.flights import flights_of
from fedweave.pacing import Buffered, Synchronous, parse
from fedweave.store.states import Tables, pack, unpack

LOSSY = fw.system.Dynamic(slow_work=(1, 3), fast_work=(2, 6))
METHOD = replace(fw.methods.scaffold(3), aggregator=aggregate.Stale(aggregate.Scaffold()), name="stale_scaffold")


def same(one, other):
    """Assert that two runs have the same model and the same rows."""
    assert one.summary["digest"] == other.summary["digest"]
    for table in ("rounds", "clients"):
        mine, theirs = getattr(one, table), getattr(other, table)
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - {"wall_seconds"}:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def test_the_number_of_workers_changes_no_bit(tiny):
    """They train clients of several versions in one call, and evaluate the model before beside them."""
    e = tiny(METHOD, pacing=Buffered(5, 2, timeout=0.5), system=LOSSY, rounds=5, model="logistic")
    whole = fw.run(e)
    assert whole.rounds["max_staleness"].max() >= 1
    for workers in (2, 4):
        same(fw.run(replace(e, workers=workers)), whole)


@pytest.mark.parametrize("tables", ["ram", "disk"])
@pytest.mark.parametrize("pacing", [Buffered(5, 2, timeout=0.5), Synchronous(0.25, late="discount")])
def test_a_run_goes_on_with_who_was_under_way(pacing, tables, tiny, tmp_path):
    e = tiny(METHOD, pacing=pacing, system=LOSSY, rounds=8, model="logistic")
    whole = fw.run(e)
    assert whole.rounds["max_staleness"].max() >= 1

    def stopped(row):
        if row["round"] in (2, 3, 6):
            raise KeyboardInterrupt

    with pytest.raises(fw.Interrupted):
        fw.run(replace(e, tables=tables), tmp_path / "run", callbacks=stopped)
    for _ in range(2):
        with pytest.raises(fw.Interrupted):
            fw.resume(tmp_path / "run", replace(e, tables=tables), callbacks=stopped)
    same(fw.resume(tmp_path / "run", replace(e, tables=tables)), whole)


def test_rows_say_how_stale_answers_were_only_where_rounds_overlap(tiny):
    columns = {"staleness", "max_staleness"}
    assert not columns & fw.run(tiny()).rounds.keys()
    rows = fw.run(tiny("fedbuff", pacing="buffered:5:2", system=LOSSY)).rounds
    assert columns <= rows.keys()
    seen = np.isfinite(rows["staleness"])
    assert (rows["staleness"][seen] <= rows["max_staleness"][seen]).all()
    assert (np.diff(rows["clock"]) >= 0).all()


def test_the_pacing_is_kept_with_the_run_and_wins_over_the_methods(tiny, tmp_path):
    result = fw.run(tiny(fw.methods.fedbuff(4), pacing="sync", rounds=2), tmp_path / "run")
    assert result.experiment["pacing"] == {
        "type": "Synchronous", "deadline": None, "answers": None, "over_selection": 1.0, "late": "drop",
    }  # fmt: skip
    assert result.experiment["method"]["pacing"]["type"] == "Buffered"
    assert "staleness" not in result.rounds
    same(result, fw.run(tiny(replace(fw.methods.fedbuff(4), pacing=Synchronous()), rounds=2)))


def test_texts():
    assert parse("sync") == Synchronous()
    assert parse("buffered:20:5") == Buffered(20, 5)
    assert parse(" buffered:20:5:1.5 ") == Buffered(20, 5, 1.5)


@pytest.mark.parametrize(
    ("sampler", "pacing", "words"),
    [
        (sample.Everyone(), Buffered(2, 1), "fixed cohort size .* Everyone.* has none: use one such as Uniform"),
        (sample.FirstEveryone(sample.Uniform(2)), Buffered(2, 1), "fixed cohort size"),
        (sample.Oort(keep=0.5), Buffered(2, 1), "fixed cohort size"),
        (sample.Optimal(2, form="poisson"), Buffered(2, 1), "fixed cohort size"),
        (sample.LatencyOptimal(2, cohort="planned"), Buffered(2, 1), "fixed cohort size"),
        (sample.IS(2), Buffered(2, 1), "older model: use the pacing Synchronous"),
        (sample.Delta(2), Synchronous(late="discount"), "older model: use the pacing Synchronous"),
    ],
)
def test_samplers_that_cannot_overlap_are_refused(sampler, pacing, words, tiny):
    with pytest.raises(fw.BadInput, match=words):
        fw.Method(sampler, pacing=pacing)
    method = fw.Method(sampler)
    with pytest.raises(fw.BadInput, match=words):
        tiny(method, pacing=pacing)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pacing": Buffered(2, 1), "calibrate": True}, "cannot be calibrated.*leave 'calibrate' out"),
        ({"pacing": Buffered(2, 1), "over_selection": 1.5}, "short for a 'pacing': give one of the two"),
        ({"method": "fedbuff", "deadline": 3.0}, "pacing of its own.*give 'pacing' instead"),
        ({"pacing": "buffered:2"}, "There is no pacing 'buffered:2'. Valid: sync, buffered:CONCURRENCY:BUFFER or"),
        ({"pacing": "buffered:1:2"}, "at most the concurrency, 1: more would never land. Got 2"),
    ],
)
def test_experiments_that_cannot_overlap_are_refused(settings, words, tiny):
    with pytest.raises(fw.BadInput, match=words):
        tiny(**settings)


def test_more_at_a_time_than_there_are_clients_is_refused(tiny):
    with pytest.raises(fw.BadInput, match=r"Uniform\(per_round=7\) asks for more clients than there are: 6"):
        fw.run(tiny(pacing=Buffered(7, 2)))


def test_a_strategy_is_synchronous():
    from fedweave import flower

    for pacing in (Buffered(4, 2), Synchronous(late="discount")):
        with pytest.raises(fw.BadInput, match=r"leave pacing=.* out"):
            flower.Strategy(replace(fw.methods.fedavg(4), pacing=pacing))


def test_an_engine_that_waits_for_all_says_so(tiny):
    from fedweave.engine.simulator import Simulator
    from fedweave.round import run_round
    from fedweave.runs.loop import workers_of
    from fedweave.runs.session import prepare

    class Plain:
        """An engine of somebody else's."""

        layout = None

        def train(self, assignment):
            raise AssertionError

    e = tiny(pacing=Buffered(3, 1))
    session = prepare(e, workers_of(e))
    assert isinstance(session.engine, Simulator)
    with pytest.raises(fw.BadInput, match="Plain waits for all of a round before the next: use the pacing Synchronous"):
        run_round(session.method, session.start, session.world, Plain(), 0.1, 0)


# What a state file says of flights is checked, since it may come from somebody else


@pytest.fixture(scope="module")
def state():
    """Return a state with clients under way, and its tables on disk, as a run folder packs it."""
    *_, (last, _) = fw.rounds(worlds.experiment(fw.methods.fedbuff(5, 2), system=LOSSY, rounds=3))
    assert flights_of(last.flights).client.size
    Tables(None).keep(last)
    return last


def test_flights_survive_packing_bit_for_bit(state):
    back = unpack(pack(state))
    for name, column in flights_of(state.flights)._asdict().items():
        assert getattr(flights_of(back.flights), name).tobytes() == column.tobytes()
    assert back.flights["dispatches"] == state.flights["dispatches"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": lambda c: np.full_like(c, 1)}, "only one"),
        ({"client": lambda c: -1 - c}, "'client' of its flights is out of range"),
        ({"client": lambda c: c.astype(float)}, "columns of flights"),
        ({"client": lambda c: c[1:]}, "a row for each client"),
        ({"version": lambda c: c + 10}, "'version' of its flights is out of range"),
        ({"version": lambda c: c * 0}, "lacks a model"),
        ({"steps": lambda c: c + 10**7}, "'steps' of its flights is out of range"),
        ({"drawn": lambda c: c * 0}, "'drawn' of its flights is out of range"),
        ({"dispatch": lambda c: c + 99}, "'dispatch' of its flights is out of range"),
        ({"fate": lambda c: c + 9}, "'fate' of its flights is out of range"),
        ({"lr": lambda c: np.full_like(c, np.nan)}, "'lr' of its flights is out of range"),
        ({"lr": lambda c: np.full_like(c, np.inf)}, "'lr' of its flights is out of range"),
        ({"due": lambda c: np.full_like(c, np.inf)}, "'due' of its flights is out of range"),
        ({"due": lambda c: c * 0, "sent": lambda c: c + 1}, "land after they were sent"),
        ({"drawn": lambda c: c + 2**39}, "at most as often as their draw event"),
        ({"dispatches": lambda c: np.array([1, 2])}, "columns of flights"),
        ({"x": lambda c: None}, "do not fit its model"),
    ],
)
def test_flights_that_cannot_be_are_refused(change, words, state):
    flights = dict(state.flights)
    for name, make in change.items():
        flights[name] = make(flights[name])
    forged = state._replace(flights={k: v for k, v in flights.items() if v is not None})
    with pytest.raises(fw.BadInput, match=words):
        unpack(pack(forged))


def test_a_round_cannot_need_more_answers_than_end_it(tiny):
    assert tiny("fedavg", pacing=Buffered(4, 2), min_answers=2).min_answers == 2
    with pytest.raises(fw.BadInput, match="'min_answers' 3 is more than the 2 answers after which a round ends"):
        tiny("fedavg", pacing=Buffered(4, 2), min_answers=3)
