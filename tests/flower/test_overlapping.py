"""Rounds that overlap on a fleet: the simulator's bits for the same arrivals, time-outs, repeats, a killed server."""

import shutil
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

import fedweave as fw
from fedweave import flower
from fedweave.core.flights import ARRIVES, TOO_STALE, flights_of
from fedweave.engine.links import draw_arrivals
from fedweave.fleet.server import mail, shelf
from fedweave.fleet.server.app import prepare
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.pacing import Buffered, Synchronous
from fedweave.runs.loop import iterate
from fedweave.runs.session import nominal_population
from fedweave.store.run_folder import RunFolder
from fedweave.tables import spool
from flower.rehearsal import BAD, CLIENTS, SlowGrid, app, asked_in, experiment, interrupted, reasons, run, share

# Whole seconds, redrawn for each dispatch, so that looks at whole seconds see every answer when it comes.
WORLD = fw.system.Dynamic(slow_work=(5, 9), slow_loss=(0.3, 0.5), fast_work=(1, 4), fast_loss=(0, 0.3), step_seconds=1)
LOOKS = Terms(poll_seconds=1, min_answers=0)


class Timed(SlowGrid):
    """A fleet whose answers come, and are lost, when they do in the simulated world, by dispatch.

    A dispatch that is sent again is answered when it would have been: the node had it already.
    """

    def __init__(self, clock, experiment, ways=("raises", "dead"), **kwargs):
        samples = np.array([len(share(c).x) for c in range(CLIENTS)])
        base = replace(nominal_population(experiment, samples), model_bytes=samples)  # nothing here goes by sizes
        self._world = lambda number: experiment.system.population(base, number, experiment.seed)
        self._seed, self._ways, self.first, self.asked = experiment.seed, ways, {}, []
        super().__init__(clock, lambda client: 0, app(), CLIENTS, fate=self._lost, **kwargs)

    def _lost(self, client, message):
        number = asked_in(message)
        if not number or draw_arrivals(self._seed, number, np.array([client]), self._world(number))[0]:
            return ""
        return self._ways[(client + number) % len(self._ways)]

    def push_messages(self, messages):
        messages = list(messages)
        names = super().push_messages(messages)
        for name, message in zip(names, messages, strict=True):
            client, number = self.nodes.index(message.metadata.dst_node_id), asked_in(message)
            if number:
                self.asked.append((client, number))
                due = self._clock.now() + self._world(number).latency[client]
                self._due[name] = self.first.setdefault((client, number), due)
        return names


def paced(method, pacing):
    return replace(method, pacing=pacing)


METHODS = {
    "fedbuff": fw.methods.fedbuff(4),
    "fedasync": fw.methods.fedasync(3),
    "ca2fl": fw.methods.ca2fl(4, 3),
    "with replacement": paced(fw.methods.fedavg_is(3), Buffered(5, 2)),
    "control variates": paced(fw.methods.scaffold(3), Buffered(4, 2)),
    "regularisers": paced(fw.methods.feddyn(3), Buffered(4, 1)),
    "kept values": paced(fw.methods.feddd_acs(3), Buffered(4, 2)),
    "given up": paced(fw.methods.fedavg(3), Buffered(4, 1, most_staleness=1)),
    "late after a deadline": paced(fw.methods.fedavg(4), Synchronous(deadline=4, late="discount")),
    "late after enough": paced(fw.methods.fedavg(2), Synchronous(answers=2, over_selection=2, late="discount")),
    "nobody left to ask": paced(fw.methods.scaffold(6), Synchronous(deadline=1, late="discount")),
}


COLUMNS = ("round", "client", "count", "expected", "received", "steps", "loss", "seconds")


def lossy(method, **changes):
    return experiment(method, **({"system": WORLD, "steps": None, "rounds": 8} | changes))


def assert_same_run(found, simulated, columns=COLUMNS):
    assert found.summary["digest"] == simulated.summary["digest"]
    for column in columns:
        assert np.array_equal(found.clients[column], simulated.clients[column], equal_nan=True), column
    for column in ("clock", "seconds", "asked", "abandoned"):
        assert np.array_equal(found.rounds[column], simulated.rounds[column]), column


@pytest.mark.parametrize("name", METHODS)
def test_the_same_arrivals_give_the_simulators_bits(name):
    """Model, rows and clock, with lost answers, for what clients keep too."""
    same, clock = lossy(METHODS[name]), VirtualClock()
    found, simulated = run(same, Timed(clock, same, bytes=True), LOOKS, clock), fw.run(same)
    assert_same_run(found, simulated)
    assert 0 < found.rounds["received"].sum() < found.rounds["asked"].sum(), "some were lost"
    assert clock.now() == found.rounds["clock"][-1]


def test_silent_and_slow_clients_are_given_up_at_the_time_out(tmp_path):
    """At the same moment as in the simulator; an answer that comes exactly then counts."""
    same, clock = lossy(paced(fw.methods.fedavg(3), Buffered(4, 2, timeout=4)), rounds=10), VirtualClock()
    fleet = Timed(clock, same, ways=("silent",))
    found = run(same, fleet, LOOKS, clock, out=tmp_path / "run")
    assert_same_run(found, fw.run(same))
    late = found.clients["received"] == 0
    assert found.clients["seconds"].max() == 4
    assert (found.clients["seconds"][~late] == 4).any()
    assert {why.partition(": ")[2] for _, why in reasons(tmp_path / "run")} == {"did not answer within 4 s"}
    assert len(reasons(tmp_path / "run")) == late.sum() > 3


@pytest.mark.parametrize(
    "pacing", [Buffered(4, 2), Synchronous(late="discount"), Synchronous(deadline=9, late="discount")]
)
def test_without_a_time_out_of_its_own_an_answer_may_take_as_long_as_the_terms_say(pacing, tmp_path):
    """Nobody waits for ever: two clients never answer, and one is always late."""
    clock = VirtualClock()
    fate = {0: "silent", 1: "silent"}
    fleet = SlowGrid(
        clock,
        lambda c: 70.0 if c == 2 else 3.0,
        app(),
        CLIENTS,
        fate=lambda c, m: fate.get(c, "") if asked_in(m) else "",
    )
    terms = Terms(answer_seconds=60, poll_seconds=1, min_answers=0)
    found = run(experiment(paced(fw.methods.fedavg(4), pacing), rounds=6), fleet, terms, clock, out=tmp_path / "run")
    heard = found.clients["received"] == 1
    assert set(found.clients["client"][heard]) == {3, 4, 5}
    assert (found.clients["seconds"][~heard] == 60).all()
    assert clock.now() <= 6 * 60
    assert {why.partition(": ")[2] for _, why in reasons(tmp_path / "run")} <= {"did not answer within 60 s"}


def test_a_fleet_that_is_gone_ends_the_run_and_moves_nothing():
    """All nodes die in mid-flight: every round that is left waits no longer than the time-out, and is abandoned."""
    clock = VirtualClock()
    fleet = SlowGrid(clock, lambda c: 3.0, app(), CLIENTS, fate=lambda c, m: "silent" if asked_in(m) > 2 else "")
    same = experiment(paced(fw.methods.fedavg(4), Buffered(4, 2, timeout=30)), rounds=6)
    found = run(same, fleet, Terms(poll_seconds=1), clock)
    assert found.rounds["abandoned"].tolist() == [0, 0, 1, 1, 1, 1]
    assert clock.now() <= 6 + 4 * 2 * 30
    assert (
        found.summary["digest"]
        == run(replace(same, rounds=2), SlowGrid(VirtualClock(), lambda c: 0.0, app(), CLIENTS)).summary["digest"]
    )


def test_a_round_in_which_nobody_lands_is_abandoned():
    """Momentum would move the model by itself; late answers count when they land."""
    clock = VirtualClock()
    fleet = SlowGrid(clock, lambda c: 5.0, app(), CLIENTS)
    method = paced(fw.methods.fedavgm(3), Synchronous(deadline=2, late="discount"))
    found = run(experiment(method, rounds=4), fleet, Terms(poll_seconds=1), clock)
    assert found.rounds["received"].tolist() == [0, 0, 3, 3], "all six are under way in rounds 2 and 3"
    assert found.rounds["clock"].tolist() == [2, 4, 5, 7]
    assert found.rounds["abandoned"].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("seed", range(6))
def test_every_run_ends_whatever_a_fleet_does(seed):
    """Answers lost in every way, on time and too late, nodes that come and go: each wait has an end."""
    rng, clock, limit = np.random.default_rng(seed), VirtualClock(), 10.0
    pacing = [
        Buffered(5, 3, timeout=limit),
        Buffered(3, 1, timeout=limit, most_staleness=0),
        Synchronous(deadline=4, late="discount"),
    ][seed % 3]

    def fate(client, message):
        if not asked_in(message):
            return ""
        node = fleet.nodes[int(rng.integers(CLIENTS))]
        fleet.online = fleet.online ^ {node} if len(fleet.online) > 2 else set(fleet.nodes)
        return ("", "", "raises", "dead", "silent")[rng.integers(5)]

    fleet = SlowGrid(clock, lambda c: float(rng.uniform(0, 1.5 * limit)), app(), CLIENTS, fate=fate)
    same = experiment(paced(fw.methods.fedavg(4), pacing), rounds=10)
    found = run(same, fleet, Terms(answer_seconds=limit, poll_seconds=1), clock)
    assert found.rounds["round"].tolist() == list(range(1, 11))
    assert found.rounds["seconds"].max() <= CLIENTS * limit, "a round waits for each client at most once"
    pairs = list(zip(found.clients["round"], found.clients["client"], strict=True))
    assert len(set(pairs)) == len(pairs), "nobody lands twice in a round"


class Repeating(Timed):
    """A fleet whose answers come twice at once, again with whatever comes later, and in any order."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._rng, self._past, self.repeated = np.random.default_rng(0), [], 0

    def pull_messages(self, message_ids):
        came = list(super().pull_messages(message_ids))
        mail = [*came, *came, *self._past]
        self.repeated += len(came) + len(self._past)
        self._past = [*self._past[-20:], *came]
        return [mail[i] for i in self._rng.permutation(len(mail))] if came else []


@pytest.mark.parametrize("name", ["fedbuff", "control variates"])
def test_repeated_and_reordered_answers_change_nothing(name, tmp_path):
    same, clock = lossy(METHODS[name]), VirtualClock()
    fleet = Repeating(clock, same)
    found = run(same, fleet, LOOKS, clock, out=tmp_path / "run")
    assert_same_run(found, fw.run(same))
    assert fleet.repeated > 40
    assert not [why for _, why in reasons(tmp_path / "run") if "app failed" not in why and "gone" not in why]


def test_answers_that_wait_in_a_file_change_nothing(monkeypatch):
    """No array of an answer stays in memory until its round ends, and answers are pulled one at a time."""
    same, clock, stored = lossy(METHODS["control variates"], system=fw.system.Latency((1, 9))), VirtualClock(), []
    clean = run(same, Timed(clock, same), Terms(poll_seconds=0.01), clock)
    monkeypatch.setattr(spool, "LARGE", 0)
    monkeypatch.setattr(mail, "PULLED", 1)
    monkeypatch.setattr(shelf, "HELD", 0)
    store = shelf.Shelf._store
    monkeypatch.setattr(shelf.Shelf, "_store", lambda self, array: stored.append(len(array.data)) or store(self, array))
    clock = VirtualClock()
    assert_same_run(run(same, Timed(clock, same), Terms(poll_seconds=0.01), clock), clean)
    assert sum(stored) > clean.x.nbytes * clean.rounds["received"].sum()


def test_an_answer_to_another_dispatch_is_refused_and_its_seat_filled(tmp_path):
    """Client 2 sends the answer to its first question to all others too."""
    clock, first, number = VirtualClock(), [], []
    fleet = SlowGrid(clock, lambda c: 1.0 + c, app(), CLIENTS)
    answered = fleet._answered

    def replay(message, node):
        reply = answered(message, node)
        if asked_in(message) and node == fleet.nodes[BAD]:
            first.append(reply.content)
            number.append(asked_in(message))
            reply.content = first[0]
        return reply

    fleet._answered = replay
    same = experiment(paced(fw.methods.fedavg(4), Buffered(5, 2)), rounds=8)
    found = run(same, fleet, Terms(poll_seconds=1), clock, out=tmp_path / "run")
    assert len(first) > 2
    theirs = found.clients["received"][found.clients["client"] == BAD]
    assert theirs.tolist() == [1] + [0] * (theirs.size - 1)
    said = [why for _, why in reasons(tmp_path / "run")]
    assert len(said) == theirs.size - 1 == found.rounds["refused"].sum()
    assert all(f"client 2: replayed: its answer is for dispatch {number[0]}, this is " in why for why in said)
    assert [int(why.rpartition(" ")[2]) for why in said] == number[1 : theirs.size]


def stop_at(fleet, clock, time, folder, left):
    """Stop the server when it looks for answers at that time; ``left`` is what its folder is then, as after a kill."""
    pull = fleet.pull_messages

    def killed(names):
        if clock.now() >= time:
            shutil.copytree(folder, left)
            raise KeyboardInterrupt
        return pull(names)

    fleet.pull_messages = killed


def state_of(folder):
    store = RunFolder.open(folder, write=False)
    found = store.load_state("ram")
    store.close()
    return found


@pytest.mark.parametrize("name", ["fedbuff", "fedasync", "control variates", "kept values", "late after a deadline"])
@pytest.mark.parametrize("moment", [0, -1])
def test_a_server_killed_in_mid_flight_goes_on_to_the_same_model(name, moment, tmp_path):
    """It asks those under way again, with the numbers of their dispatches, and they give the same answers.

    The nodes have emptied the clients' memories; what uploads keep exists nowhere else, so it stays.
    """
    same, folder, clock = lossy(METHODS[name]), tmp_path / "run", VirtualClock()
    clocks, air = zip(*((state.clock, flights_of(state.flights)) for state, _ in fw.rounds(same)), strict=True)
    after = [now for now, f in zip(clocks, air, strict=True) if f.due[f.fate == ARRIVES].min(initial=99) <= clocks[-1]]
    fleet = Timed(clock, same)
    stop_at(fleet, clock, after[moment] + 0.5, tmp_path / "first", folder)  # in the middle of the next round
    with pytest.raises(fw.Interrupted):
        run(same, fleet, LOOKS, clock, out=tmp_path / "first")
    state = state_of(folder)
    flights, again = flights_of(state.flights), VirtualClock()
    again.time = state.clock  # as the answers arrived
    assert 0 < state.round < 8
    assert flights.client.size
    restarted = Timed(again, same)
    restarted.first.update({k: due for k, due in fleet.first.items() if k[1] <= state.flights["dispatches"]})
    if name == "kept values":
        restarted._contexts = fleet._contexts
    found = run(same, restarted, LOOKS, again, out=folder)
    assert sorted(restarted.asked[: flights.client.size]) == sorted(
        zip(*map(np.ndarray.tolist, (flights.client, flights.dispatch)), strict=True)
    )
    assert_same_run(found, fw.run(same), COLUMNS[:-1])  # seconds count from the last question
    asked = len(restarted.asked)
    assert run(same, restarted, LOOKS, again, out=folder).summary == found.summary
    assert len(restarted.asked) == asked, "a finished run asks nobody"


def test_a_client_that_was_under_way_and_is_not_back_is_given_up(tmp_path):
    same, folder, clock = (
        experiment(paced(fw.methods.fedavg(4), Buffered(4, 2)), rounds=6),
        tmp_path / "run",
        VirtualClock(),
    )
    interrupted(
        same,
        SlowGrid(clock, lambda c: 1.0 + c, app(), CLIENTS),
        folder,
        after=2,
        terms=Terms(poll_seconds=1),
        clock=clock,
    )
    gone = int(flights_of(state_of(folder).flights).client[0])
    fleet = SlowGrid(clock, lambda c: 1.0 + c, app(), CLIENTS)
    fleet.online -= {fleet.nodes[gone]}
    found = run(same, fleet, Terms(poll_seconds=1, answer_seconds=100), clock, out=folder)
    later = found.clients["round"] > 2
    assert found.clients["received"][later & (found.clients["client"] == gone)].tolist() == [0]
    assert (3, f"client {gone}: could not be asked, its node is gone") in reasons(folder)
    assert found.rounds["received"].tolist()[2:] == [2, 2, 2, 2]
    assert clock.now() < 100, "nobody waited for it"


def test_who_is_too_stale_is_told(tmp_path):
    clock = VirtualClock()
    fleet = SlowGrid(clock, lambda c: 50.0 if c == 0 else 1.0, app(), CLIENTS)
    same = experiment(
        paced(fw.methods.fedavg(6), Buffered(6, 1, most_staleness=2)), rounds=8, system=fw.system.Measured()
    )
    found = run(same, fleet, Terms(poll_seconds=1), clock, out=tmp_path / "run")
    assert {why for _, why in reasons(tmp_path / "run")} == {f"client 0: {TOO_STALE}"}
    ours = found.clients["client"] == 0
    assert found.clients["seconds"][ours].tolist() == [3, 3], "waited for three versions of a second each"


def test_the_visits_of_an_overlapping_fleet_are_measured():
    """Two lossless clients and one whose app fails: latencies are the seconds that each one took."""
    clock = VirtualClock()
    fleet = SlowGrid(
        clock, lambda c: 1.0 + c, app(), CLIENTS, fate=lambda c, m: "raises" if asked_in(m) and c == 5 else ""
    )
    same = experiment(paced(fw.methods.fedavg(6), Buffered(6, 2)), rounds=6, system=fw.system.Measured())
    session = prepare(same, fleet, Terms(poll_seconds=1), clock)
    *_, (state, _) = islice(iterate(session), 6)
    seen = session.world(int(state.flights["dispatches"]) + 1)
    assert seen.latency == pytest.approx(1.0 + np.arange(CLIENTS))
    assert seen.loss_rate[5] > 0.3 > seen.loss_rate[:5].max()


@pytest.mark.parametrize(
    ("pacing", "terms", "says"),
    [
        (
            Buffered(4, 2),
            {"answers": 2},
            "leave 'answers' and 'over_selection' out of Terms, and give Buffered what it needs",
        ),
        (Buffered(4, 2), {"over_selection": 1.5}, "leave 'answers' and 'over_selection' out of Terms"),
        (Buffered(4, 2), {"min_answers": 3}, "is more than the 2 answers after which Buffered ends a round"),
        (Synchronous(late="discount"), {"answers": 2}, "give Synchronous what it needs"),
        (Synchronous(deadline=600, late="discount"), {}, "make answer_seconds longer than the deadline"),
        (Synchronous(deadline=5), {}, "said by Terms, not by the Experiment"),
    ],
)
def test_terms_that_contradict_the_pacing_are_refused_before_anyone_is_asked(pacing, terms, says):
    asked = []
    fleet = flower.LocalGrid(app(), CLIENTS, fate=lambda client, m: asked.append(m) or "")
    with pytest.raises(fw.BadInput, match=says):
        run(experiment(fw.methods.fedavg(4), pacing=pacing), fleet, Terms(**terms))
    assert not asked


@pytest.mark.parametrize("method", [fw.methods.fedbuff(4), METHODS["late after a deadline"]])
def test_flowers_own_loop_cannot_and_names_the_server_that_can(method):
    with pytest.raises(fw.BadInput, match=r"a round ends before the next begins.*fedweave\.flower\.server"):
        flower.Strategy(method)
