"""Rounds end: by their deadline, when enough have answered, or abandoned; failing and untrusted clients are named."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import fedweave as fw
import worlds
from fedweave.cli.options import experiments_of
from fedweave.core.records import Failure, Failures
from fedweave.engine.simulator import Simulator
from fedweave.pacing import Synchronous, answers_needed, ask_more
from fedweave.round.rules import NO_RULES, Rules, earlier_lengths, lengths_after, refusals_after, why_abandoned
from fedweave.runs.loop import resume, run
from fedweave.store.run_folder import RunFolder

N = 6


def cohort(k=N):
    return worlds.cohort(np.arange(k) * 10)


def replies(seconds, lost=()):
    k = len(seconds)
    received = ~np.isin(np.arange(k), lost)
    found = worlds.replies(np.arange(1.0, k + 1)[:, None] * np.ones(3), received, seconds=np.array(seconds, float))
    return found._replace(memory_change=found.updates.copy())


def test_without_rules_everyone_is_waited_for():
    before = replies([3, 1, 2], lost=[1])
    assert Synchronous().close(before, cohort(3)) is before


@pytest.mark.parametrize(
    ("pacing", "lost", "heard", "end"),
    [
        (Synchronous(deadline=3), [], [0, 1, 2], 3),
        (Synchronous(deadline=100), [], [0, 1, 2, 3, 4, 5], 6),
        (Synchronous(deadline=100), [5], [0, 1, 2, 3, 4], 100),  # nobody knows that it will never come
        (Synchronous(deadline=0.5), [], [], 0.5),
        (Synchronous(answers=2), [], [0, 1], 2),
        (Synchronous(answers=2), [0, 1], [2, 3], 4),
        (Synchronous(answers=2, deadline=3), [0, 1], [2], 3),
        (Synchronous(over_selection=2), [], [0, 1, 2], 3),
        (Synchronous(over_selection=2, answers=1), [], [0], 1),
        (Synchronous(answers=4), [0, 1, 2], [3, 4, 5], 6),  # too few come: the last one ends it
    ],
)
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [3, 5, 1, 0, 4, 2]])
def test_a_round_closes(pacing, lost, heard, end, order):
    """Client n answers after n + 1 seconds, wherever it stands in the cohort."""
    rank = np.array(order)
    before = replies(rank + 1.0, lost=np.flatnonzero(np.isin(rank, lost)))
    after = pacing.close(before, cohort())
    assert set(rank[after.received]) == set(heard)
    assert after.seconds.max() == end
    assert np.array_equal(after.seconds[after.received], before.seconds[after.received])
    for name in ("updates", "memory_change"):
        assert np.array_equal(getattr(after, name)[after.received], getattr(before, name)[after.received])
        assert not getattr(after, name)[~after.received].any()
    late = set(range(N)) - set(lost) - set(heard)
    assert {m.client for m in after.failures.failed} == {10 * int(np.flatnonzero(rank == n)[0]) for n in late}


def test_who_answers_in_the_same_moment_is_heard():
    """Else the first numbers would always win where all are alike."""
    after = Synchronous(answers=2).close(replies([1, 1, 1, 1, 2, 2]), cohort())
    assert after.received.tolist() == [True] * 4 + [False] * 2
    assert [m.why for m in after.failures.failed] == ["was not waited for, enough had answered"] * 2


def test_nobody_asked_nobody_late():
    nobody = replies([])
    assert Synchronous(deadline=1, answers=3).close(nobody, cohort(0)) is nobody


@pytest.mark.parametrize(
    ("asked", "answers", "factor", "needed"), [(13, None, 1.3, 10), (13, 4, 1.3, 4), (3, 4, 1.0, 3), (0, None, 2.0, 0)]
)
def test_answers_needed(asked, answers, factor, needed):
    assert answers_needed(asked, answers, factor) == needed


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2.0, 3.3, 10.0])
def test_over_selection_wants_as_many_answers_as_the_method_says(factor):
    for k in range(1, 200):
        asked = ask_more(fw.methods.fedavg(k).sampler, factor).per_round
        assert asked >= k * factor - 1e-9
        assert answers_needed(asked, None, factor) == k


def test_a_round_is_abandoned_when_too_few_answers_are_usable():
    some, none = replies([1, 1, 1], lost=[2]), replies([1, 1], lost=[0, 1])
    assert why_abandoned(some, [], Rules(min_answers=2)) == ""
    assert why_abandoned(some, [], Rules(min_answers=3)) == "2 of 3 clients answered, 3 must"
    assert why_abandoned(some, [], Rules(min_answers=9)) == "2 of 3 clients answered, 3 must"
    assert why_abandoned(none, [], NO_RULES) == ""  # links that lose everything are part of the world
    assert why_abandoned(none, [Failure(0, "bad")], NO_RULES) == "all 1 answers were refused"
    assert why_abandoned(some, [Failure(0, "bad")], NO_RULES) == ""
    late = none._replace(failures=Failures(failed=(Failure(1, "late"),)))
    assert why_abandoned(late, [], NO_RULES) == ""
    assert why_abandoned(late._replace(failures=Failures(abandoned="by the engine")), [], NO_RULES) == "by the engine"


def test_refusals_are_counted_only_where_they_matter():
    bad = [Failure(2, "x"), Failure(2, "y"), Failure(0, "z")]
    assert refusals_after({}, bad, 4, NO_RULES) == {}
    once = refusals_after({}, bad, 4, Rules(quarantine=3))
    assert once["refused"].tolist() == [1, 0, 2, 0]
    assert refusals_after(once, bad[:1], 4, Rules(quarantine=3))["refused"].tolist() == [1, 0, 3, 0]
    assert once["refused"].tolist() == [1, 0, 2, 0]


def test_lengths_of_others_are_remembered_where_the_rules_say_so():
    rules = Rules(max_length_ratio=10, remember_lengths=True)
    ids, heard = np.array([0, 2]), np.array([True, False])
    after = lengths_after({"refused": np.arange(3)}, ids, np.array([4.0, 9.0]), heard, 3, rules)
    assert after["length"].tolist() == [4, 0, 0]
    assert after["refused"].tolist() == [0, 1, 2]
    assert earlier_lengths(after, np.array([1, 2]), rules) == [4]
    assert earlier_lengths(after, np.array([0]), rules) == []
    assert earlier_lengths({}, ids, rules) == []
    assert earlier_lengths(after, ids, NO_RULES) is None
    assert lengths_after({}, ids, np.ones(2), heard, 3, NO_RULES) == {}
    both = refusals_after(after, [Failure(1, "bad")], 3, rules._replace(quarantine=3))
    assert both["length"].tolist() == [4, 0, 0]


def test_a_straggler_is_late_and_not_dead(tiny, tmp_path):
    """One client a hundred times as slow: never heard, always asked, and no round longer than the deadline."""
    rows = "".join(f"{client},1,{100 if client == 2 else 1}\n" for client in range(6))
    (tmp_path / "trace.csv").write_text("client,available,seconds\n" + rows)
    given = tiny(fw.Method(fw.sample.Everyone()), system=fw.system.Trace(path=tmp_path / "trace.csv"))
    waited = fw.run(given)
    hurried = fw.run(replace(given, deadline=2.0), tmp_path / "run")
    assert (waited.rounds["seconds"] == 100).all()
    assert (hurried.rounds["seconds"] == 2).all()
    assert (hurried.rounds["asked"] == 6).all()
    assert (hurried.rounds["received"] == 5).all()
    with_it = hurried.clients["received"][hurried.clients["client"] == 2]
    assert with_it.size == given.rounds
    assert not with_it.any()
    store = RunFolder.open(tmp_path / "run", write=False)
    assert set(store.failures()) == {
        (r + 1, "failed", Failure(2, "did not answer within 2 s")) for r in range(given.rounds)
    }
    store.close()


def test_over_selection_asks_more_and_takes_the_first(tiny):
    given = tiny(fw.methods.fedavg(2), system=fw.system.Latency(), over_selection=2.0)
    result = fw.run(given)
    assert (result.rounds["asked"] == 4).all()
    assert (result.rounds["received"] == 2).all()
    assert result.experiment["method"]["sampler"]["per_round"] == 2  # as it was given
    for r in range(1, given.rounds + 1):
        here = result.clients["round"] == r
        heard = result.clients["received"][here].astype(bool)
        seconds = result.clients["seconds"][here]
        assert seconds[heard].max() == seconds.max() == pytest.approx(result.rounds["seconds"][r - 1])
    with pytest.raises(fw.BadInput, match="over_selection=2 needs a sampler with a fixed cohort size"):
        fw.run(replace(given, method=fw.Method(fw.sample.Everyone())))


def test_over_selection_of_a_sampler_that_goes_by_seconds_is_refused():
    with pytest.raises(fw.BadInput, match="needs a sampler with a fixed cohort size"):
        ask_more(fw.sample.Deadline(seconds=3.0), 2)


def test_too_few_answers_leave_the_model(tiny):
    result = fw.run(tiny(fw.methods.fedavgm(3), system=fw.system.Latency(), deadline=1e-6, min_answers=1))
    assert result.rounds["abandoned"].all()
    assert result.summary["abandoned"] == result.rounds["round"].size
    assert np.ptp(result.rounds["loss"]) == 0


class Fragile(nn.Module):
    """A network that some samples break; those of one client, whose pixels are marked."""

    how = "raise"

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        if self.training and (x > 50).any():
            if self.how == "exit":
                raise SystemExit(3)
            raise ArithmeticError("a marked sample")
        return self.fc(x)


class Leaves(Fragile):
    """The same, but it tries to end the program."""

    how = "exit"


def marked(model, **given):
    rng, who = np.random.default_rng(0), np.arange(60) % N
    x, y = rng.standard_normal((60, 4)).astype(np.float32), rng.integers(0, 2, 60)
    x[who == 2] = 99
    data = fw.data.from_arrays(x, y, x[who == 0], y[who == 0], group=who, test_group=who[who == 0])
    settings = {"method": fw.methods.fedavg(4), "data": data, "partition": fw.partition.Natural(), "rounds": 5}
    return fw.Experiment(**(settings | given), model=model)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_client_stops_the_run_and_is_named(workers, tmp_path):
    with pytest.raises(ArithmeticError, match="a marked sample") as told:
        run(marked(Fragile, workers=workers), tmp_path / "run")
    assert any("While clients 2 trained in round" in note for note in told.value.__notes__)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("model", "why"), [(Fragile, "ArithmeticError: a marked sample"), (Leaves, "SystemExit: 3")])
def test_a_failing_client_can_be_skipped(model, why, workers, tmp_path):
    """The model is that of a run in which client 2 is never heard; where it failed is kept."""
    skipped = run(marked(model, workers=workers, failures="skip"), tmp_path / "run")
    asked = skipped.clients["client"] == 2
    assert asked.any()
    assert not skipped.clients["received"][asked].any()
    assert skipped.clients["received"][~asked].all()
    store = RunFolder.open(tmp_path / "run", write=False)
    found = store.failures()
    store.close()
    assert len(found) == asked.sum()
    for _, kind, failure in found:
        assert (kind, failure.client, failure.why) == ("failed", 2, f"its training failed: {why}")
        assert "in forward" in failure.traceback
    assert skipped.summary["digest"] == unheard(tmp_path).summary["digest"]


def unheard(folder):
    """The same run with a link that loses all but one in 10⁹ answers of client 2."""
    rows = "".join(f"{client},{0.999999999 if client == 2 else 0}\n" for client in range(N))
    (folder / "lost.csv").write_text("client,loss_rate\n" + rows)
    return run(marked(Fragile, system=fw.system.Trace(path=folder / "lost.csv")))


def test_when_all_fail_the_round_is_abandoned(tmp_path):
    experiment = marked(Fragile, failures="skip", method=fw.methods.fedavg(1))
    result = run(experiment, tmp_path / "run")
    alone = np.isin(result.rounds["round"], result.clients["round"][result.clients["client"] == 2])
    assert alone.any()
    assert result.rounds["abandoned"].tolist() == alone.astype(int).tolist()


def test_stacked_clients_do_not_fall_with_one_of_them(tiny, monkeypatch):
    """Small networks train in lockstep: when one breaks the piece, each is tried alone."""
    from fedweave.local.torch.trainer import TorchTrainer

    whole = TorchTrainer.train

    def train(self, x, jobs):
        if 1 in jobs.client:
            raise ArithmeticError("client 1 has no memory left")
        return whole(self, x, jobs)

    monkeypatch.setattr(TorchTrainer, "train", train)
    for method in (fw.methods.fedavg(6), fw.methods.scaffold(6)):
        result = fw.run(tiny(method, system=fw.system.Uniform(), workers=1, failures="skip"))
        one = result.clients["client"] == 1
        assert not result.clients["received"][one].any()
        assert result.clients["received"][~one].all()


def spoilt(bad, when=lambda round: True):
    honest = Simulator.train

    def train(self, assignment):
        got = honest(self, assignment)
        rows = np.isin(assignment.cohort.ids, bad) & got.received & when(assignment.round)
        updates = got.updates.copy()
        updates[rows, 0] = np.nan
        return got._replace(updates=updates)

    return train


def watched(method, **given):
    """An experiment on quadratics in which clients 1 and 4 can be spoilt."""
    world = {"data": "quadratics", "partition": "iid", "clients": 8, "per_round": 4, "lr": 0.1}
    (experiment,), _ = experiments_of([method], world | given)
    return experiment


def test_who_is_refused_too_often_is_not_asked_any_more(monkeypatch, tmp_path):
    monkeypatch.setattr(Simulator, "train", spoilt([1, 4]))
    experiment = watched("fedacs", rounds=60, quarantine=3)
    result = run(experiment, tmp_path / "run")
    for client in range(8):
        asked = result.clients["client"] == client
        assert asked.sum() == 3 if client in (1, 4) else asked.sum() > 10
    assert result.rounds["refused"].sum() == 6


def test_quarantine_outlives_an_interruption(monkeypatch, tmp_path):
    monkeypatch.setattr(Simulator, "train", spoilt([1, 4]))
    experiment = watched("fedavg", rounds=40, quarantine=2)
    whole = run(experiment)

    def watch(row):
        if row["round"] == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "run", watch)
    again = resume(tmp_path / "run")
    assert again.summary["digest"] == whole.summary["digest"]
    assert np.array_equal(again.clients["client"], whole.clients["client"])
