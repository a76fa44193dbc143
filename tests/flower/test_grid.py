"""The engine on Flower's grid: the simulator's bits, deadlines, failures by client, memories, resume."""

from itertools import islice

import numpy as np
import pytest
from flwr.app import Error, Message, MetricRecord
from flwr.common.constant import ErrorCode

import fedweave as fw
import fedweave.store.run_folder
from fedweave import flower
from fedweave.engine.pool.processes import Workers
from fedweave.fleet.client import KEPT, LEARNED
from fedweave.fleet.server.app import _recall, prepare
from fedweave.fleet.server.engine import FlowerEngine
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.fleet.wire.seal import sealed
from fedweave.fleet.wire.tensors import packed
from fedweave.pacing import ask_more
from fedweave.runs.loop import iterate
from fedweave.runs.method_names import method_names, parse
from fedweave.runs.session import prepare as simulated_session
from fedweave.sample import Everyone, FirstEveryone, Uniform
from fedweave.store.run_folder import RunFolder
from flower.rehearsal import (
    BAD,
    CLIENTS,
    LinkGrid,
    SlowGrid,
    Tampered,
    app,
    asked_in,
    digits,
    experiment,
    fate_of,
    interrupted,
    reasons,
    run,
)

ORACLES = {"feddelta": "Delta", "fedis": "IS"}  # the methods of the zoo that only a simulator can run
SYNCHRONOUS = [name for name in method_names() if not parse(name, 3).pacing.overlaps]  # others: test_overlapping.py


@pytest.mark.parametrize("name", sorted(set(SYNCHRONOUS) - set(ORACLES)))
def test_every_method_gives_the_simulators_bits_over_lossy_links(name):
    same = experiment(getattr(fw.methods, name)(3), system=fw.system.Dynamic(), rounds=4, steps=None)
    fleet = flower.LocalGrid(app(), CLIENTS, fate=fate_of(same), bytes=True)
    over_flower, simulated = run(same, fleet, Terms(min_answers=0)), fw.run(same)
    assert over_flower.summary["digest"] == simulated.summary["digest"]
    for column in ("client", "count", "expected", "received", "steps", "loss", "seconds"):
        assert np.array_equal(over_flower.clients[column], simulated.clients[column], equal_nan=True), column


@pytest.mark.parametrize("name", ORACLES)
def test_an_oracle_is_refused_by_its_name_before_anyone_is_asked(name):
    asked = []
    fleet = flower.LocalGrid(app(), CLIENTS, fate=lambda client, m: asked.append(m) or "")
    says = f"^{ORACLES[name]} must know what every client would answer .* this sampler is for the simulator"
    with pytest.raises(fw.BadInput, match=says):
        run(experiment(getattr(fw.methods, name)(3)), fleet)
    with pytest.raises(fw.BadInput, match=says):
        flower.Strategy(getattr(fw.methods, name)(3))
    assert not asked


def test_power_of_choice_passes_over_those_who_do_not_tell_their_loss():
    """Client 1 is gone when it is asked how it does, client 4 tells something else."""
    fleet = flower.LocalGrid(
        app(), CLIENTS, fate=lambda c, m: "dead" if c == 1 and "loss" in m.metadata.group_id else ""
    )
    answered, chosen = fleet._answered, fw.Method(fw.sample.PowerOfChoice(2, CLIENTS))

    def odd(message, node):
        reply = answered(message, node)
        if node == fleet.nodes[4] and message.metadata.group_id == "loss":
            reply.content["loss"] = MetricRecord({"luck": 1e9})
        return reply

    fleet._answered = odd
    session = prepare(experiment(chosen), fleet, Terms(), VirtualClock())
    told = session.engine.losses(session.start.x, np.arange(CLIENTS))
    assert np.isneginf(told).tolist() == [False, True, False, False, True, False]
    result = run(experiment(chosen, rounds=1), fleet)
    assert set(result.clients["client"]) == set(np.sort(np.argsort(-told)[:2]))


def test_bytes_are_those_that_were_sent_and_a_change_of_memory_is_none_of_them():
    for method in (fw.methods.fedavg(3), fw.methods.scaffold(3)):
        result = run(experiment(method, rounds=1))
        values = result.x.nbytes
        assert (result.clients["bytes_up"] > values).all()
        assert (result.clients["bytes_up"] < values + 1000).all()


@pytest.mark.parametrize("poll", [0.2, 3.0, 7.0])
@pytest.mark.parametrize(("seconds", "in_time"), [(9.9, True), (10.1, False)])
def test_an_answer_that_came_in_time_is_never_lost(poll, seconds, in_time):
    clock = VirtualClock()
    fleet = SlowGrid(clock, lambda client: seconds if client == 2 else 1.0, app(), CLIENTS)
    once = experiment(fw.methods.fedavg(CLIENTS), rounds=1, system=fw.system.Measured())
    result = run(once, fleet, Terms(answer_seconds=10, poll_seconds=poll), clock)
    assert result.clients["received"].tolist() == [1, 1, in_time, 1, 1, 1]
    assert result.clients["seconds"][2] == pytest.approx(10)
    assert result.rounds["seconds"][0] == pytest.approx(10), "a round ends at its deadline at the latest"


def test_each_failure_is_booked_to_its_client_with_its_reason(tmp_path):
    kinds = {1: "raises", 3: "dead", 4: "silent"}
    fleet = flower.LocalGrid(app(), CLIENTS, fate=lambda client, m: kinds.get(client, "") if asked_in(m) else "")
    everyone = experiment(fw.methods.fedavg(CLIENTS), rounds=2, system=fw.system.Measured())
    result = run(everyone, fleet, Terms(answer_seconds=10), out=tmp_path / "run")
    assert result.clients["received"].tolist() == [1, 0, 1, 0, 0, 1] * 2
    assert {why for r, why in reasons(tmp_path / "run") if r == 1} == {
        "client 1: its app failed: RuntimeError: no power",
        "client 3: its node is gone",
        "client 4: did not answer within 10 s",
    }
    assert result.clients["seconds"][4] == 10


def own_data(others):
    """Return an app whose clients, all but the first ``others``, have digits; those have five classes of 20 numbers."""
    x, y = np.ones((30, 20), np.float32), np.arange(30) % 5
    return flower.client("auto", lambda who, of: (x, y) if who < others else flower.dealt(digits())(who, of))


@pytest.mark.parametrize("method", [fw.methods.fedavg(3), fw.methods.fedbuff(3)], ids=["rounds", "overlapping"])
def test_data_of_another_kind_on_all_clients_ends_the_run_with_one_error_that_names_both_sides(method):
    told = (
        r"No client could train: the server's model has fc1\.weight of shape \(10, 64\), that of client \d's data "
        r"\(5, 20\): the server's data and the clients' must have the same features and classes\."
    )
    with pytest.raises(fw.BadInput, match=told):
        run(experiment(method, rounds=9), flower.LocalGrid(own_data(CLIENTS), CLIENTS))


def test_data_of_another_kind_on_some_clients_is_their_failure_alone(tmp_path):
    fleet = flower.LocalGrid(own_data(2), CLIENTS)
    result = run(experiment(fw.methods.fedavg(CLIENTS), rounds=2), fleet, out=tmp_path / "run")
    assert result.clients["received"].tolist() == [0, 0, 1, 1, 1, 1] * 2
    assert all("the server's model has fc1.weight of shape (10, 64)" in why for _, why in reasons(tmp_path / "run"))


def test_failures_become_links_and_seconds_become_latencies():
    """Two visits of each client: the discounted record (0.99 + 1 visits), drawn to everyone's by one visit."""
    clock, lost = VirtualClock(), {1: (1, 2), 4: (2,)}
    fleet = SlowGrid(
        clock,
        lambda client: float(client),
        app(),
        CLIENTS,
        fate=lambda client, m: "raises" if asked_in(m) in lost.get(client, ()) else "",
    )
    session = prepare(
        experiment(fw.methods.fedavg(CLIENTS), system=fw.system.Measured()), fleet, Terms(poll_seconds=1), clock
    )
    for _ in islice(iterate(session), 2):
        pass
    seen = session.world(3)
    asked, heard = np.full(CLIENTS, 1.99), np.array([1.99, 0, 1.99, 1.99, 0.99, 1.99])
    common = (heard.sum() + 1) / (asked.sum() + 1)
    assert seen.loss_rate == pytest.approx(1 - np.maximum((heard + common) / (asked + 1), 0.05))
    assert seen.latency == pytest.approx(np.arange(CLIENTS)), "the seconds that each one took"


@pytest.mark.parametrize("method", [fw.methods.fedacs, fw.methods.fedacs_estimated, fw.methods.latency_optimal])
def test_methods_learn_real_links_and_latencies_with_nothing_configured(method):
    clock = VirtualClock()
    fleet = SlowGrid(
        clock,
        lambda client: 1.0 + 20 * (client == 5),
        app(),
        CLIENTS,
        fate=lambda client, m: "silent" if client == 0 and asked_in(m) % 4 else "",
    )
    rounds = experiment(method(4), rounds=16, system=fw.system.Measured(), weights="equal")
    result = run(rounds, fleet, Terms(answer_seconds=30, poll_seconds=1), clock)
    late = result.clients["round"] > 8
    law = {c: result.clients["expected"][late & (result.clients["client"] == c)] for c in range(CLIENTS)}
    others = np.concatenate([law[c] for c in (1, 2, 3, 4)]).mean()
    if method is fw.methods.latency_optimal:  # the slow one is asked less
        assert not law[5].size or law[5].mean() < 0.9 * others
    else:  # the one that is seldom heard is asked more
        assert law[0].mean() > 1.2 * others


def test_feddd_on_a_fleet_has_slow_links_send_less(tmp_path):
    """Client 2 has a tenth of the others' rate, which nobody told: its dropout rises, and rounds become shorter."""
    clock, terms = VirtualClock(), Terms(answer_seconds=1000, poll_seconds=0.1)
    fleet = LinkGrid(clock, lambda client: 1e3 if client == 2 else 1e4, app(), CLIENTS)
    whole = experiment(fw.methods.feddd(CLIENTS), rounds=6, system=fw.system.Measured())
    result = run(whole, fleet, terms, clock, out=tmp_path / "run")
    late, slow = result.clients["round"] == 6, result.clients["client"] == 2
    sent = result.clients["bytes_up"]
    assert sent[late & slow][0] < 0.4 * sent[late & ~slow].max()
    assert result.rounds["seconds"][-1] < 0.5 * result.rounds["seconds"][0]
    clock = VirtualClock()
    fleet = LinkGrid(clock, lambda client: 1e3 if client == 2 else 1e4, app(), CLIENTS)
    session = prepare(whole, fleet, terms, clock)
    for _ in iterate(session):
        pass
    rates = session.world(7).up_rate
    assert rates[2] == pytest.approx(1e3, rel=0.05)
    assert (np.delete(rates, 2) > 4e3).all()  # they send about the same in every round, which cannot tell
    again = prepare(whole, fleet, terms, clock)
    _recall(again, RunFolder.open(tmp_path / "run", write=False))
    assert again.world(7).up_rate == pytest.approx(rates)  # a server that goes on knows them from the rows


def test_a_server_that_goes_on_knows_the_links_that_it_knew_also_of_a_client_that_was_refused(tmp_path):
    """An update that is refused for its length counts against the link, before and after."""

    def longer(message, context):
        reply = app()(message, context)
        if asked_in(message):
            record = reply.content["update"]
            for name in record:
                record[name] = packed(10_000 * record[name].numpy())
            sealed(reply.content, asked_in(message), BAD)
        return reply

    whole = experiment(fw.methods.fedacs(5), rounds=3, system=fw.system.Measured())
    assert run(whole, Tampered(longer), out=tmp_path / "run").rounds["refused"].sum() > 0
    session, again = (prepare(whole, Tampered(longer), Terms(), VirtualClock()) for _ in range(2))
    for _ in iterate(session):
        pass
    _recall(again, RunFolder.open(tmp_path / "run", write=False))
    assert session.engine.seen["heard"][BAD] == again.engine.seen["heard"][BAD] == 0
    assert all(np.array_equal(kept, again.engine.seen[name]) for name, kept in session.engine.seen.items())


def test_over_selection_asks_more_and_closes_when_enough_have_answered(tmp_path):
    clock = VirtualClock()
    fleet = SlowGrid(clock, lambda client: 100.0 if client in (1, 4) else 1.0, app(), CLIENTS)
    terms = Terms(over_selection=1.5, answer_seconds=300)
    result = run(
        experiment(fw.methods.fedavg(4), rounds=1, system=fw.system.Measured()), fleet, terms, clock, out=tmp_path / "r"
    )
    assert result.clients["client"].tolist() == list(range(6))
    assert result.clients["received"].tolist() == [1, 0, 1, 1, 0, 1]
    assert result.rounds["seconds"][0] < 2, "nobody waits for the slow ones"
    assert [why for _, why in reasons(tmp_path / "r")] == [
        f"client {c}: was not waited for, enough had answered" for c in (1, 4)
    ]


@pytest.mark.parametrize(
    ("terms", "asked", "needed"),
    [({}, 7, 7), ({"over_selection": 1.3}, 13, 10), ({"over_selection": 2}, 6, 3), ({"answers": 3}, 10, 3)],
)
def test_answers_needed(terms, asked, needed):
    assert Terms(**terms).needed(asked) == needed


def test_over_selection_reaches_inner_samplers_and_refuses_those_that_choose_no_number():
    method = fw.Method(FirstEveryone(Uniform(5)))
    assert ask_more(method.sampler, 1.3) == FirstEveryone(Uniform(7))
    with pytest.raises(fw.BadInput, match="over_selection=2 needs a sampler with a fixed cohort size"):
        ask_more(Everyone(), 2)


def test_a_round_with_too_few_answers_is_abandoned(tmp_path):
    fleet = flower.LocalGrid(app(), CLIENTS, fate=lambda client, m: "dead" if asked_in(m) == 2 and client else "")
    method = fw.methods.fedavgm(CLIENTS)  # whose momentum would move the model by itself
    first = run(experiment(method, rounds=1))
    both = run(experiment(method, rounds=2), fleet, Terms(min_answers=2), out=tmp_path / "run")
    assert both.summary["digest"] == first.summary["digest"]
    assert (2, "server: 1 of 6 clients answered, 2 must") in reasons(tmp_path / "run")


def test_a_fleet_that_does_not_come_is_an_error_at_the_deadline():
    clock, fleet = VirtualClock(), flower.LocalGrid(app(), CLIENTS)
    fleet.online = set(fleet.nodes[:2])
    with pytest.raises(RuntimeError, match=r"^2 of 6 clients are there after 30 s, 6 must be: missing are 2, 3, 4, 5"):
        run(experiment(), fleet, Terms(start_seconds=30), clock)
    assert clock.now() == pytest.approx(30, abs=1)
    fleet.online = set()
    with pytest.raises(RuntimeError, match="No client has come within 30 s"):
        run(experiment(), fleet, Terms(start_seconds=30), clock)


def test_a_client_whose_app_fails_at_first_is_asked_again_who_it_is():
    tries = []

    def fate(client, message):
        if client == 1 and not asked_in(message):
            tries.append(message)
        return "raises" if client == 1 and len(tries) < 3 else ""

    result = run(experiment(fw.methods.fedavg(6), rounds=1), flower.LocalGrid(app(), CLIENTS, fate=fate))
    assert len(tries) == 3
    assert result.rounds["received"].tolist() == [6]


def test_a_fleet_may_take_longer_to_come_together_than_to_answer():
    """Flower starts a process at each client for the first question; the deadline for answers is not meant for it."""
    clock = VirtualClock()

    fleet = SlowGrid(clock, lambda client: 1.0, app(), CLIENTS, hello=20)
    result = run(experiment(rounds=1), fleet, Terms(answer_seconds=10), clock)
    assert result.rounds["received"].tolist() == [3]


class Expiring(SlowGrid):
    """As Flower does: whoever fetches the answer to a question that has lost its life is told so in its place."""

    def push_messages(self, messages):
        names = super().push_messages(messages)
        self.ends = getattr(self, "ends", {})
        now = self._clock.now()
        self.ends |= {name: (now + m.metadata.ttl, m) for name, m in zip(names, messages, strict=True)}
        return names

    def pull_messages(self, message_ids):
        came, why = list(super().pull_messages(message_ids)), Error(ErrorCode.MESSAGE_UNAVAILABLE, "it has expired")
        open = set(message_ids) - {reply.metadata.reply_to_message_id for reply in came}
        over = [message for name in open for end, message in [self.ends[name]] if end <= self._clock.now()]
        return came + [Message(why, reply_to=message) for message in over]


@pytest.mark.parametrize("kind", [SlowGrid, Expiring])
def test_a_node_that_does_not_say_who_it_is_is_waited_for_once_and_asked_again(kind):
    """Flower takes a dead node for present for a while: rounds go on without it."""
    clock, asked = VirtualClock(), []

    def fate(client, message):
        if client == 5 and not asked_in(message):
            asked.append(clock.now())
            return "silent"
        return ""

    fleet = kind(clock, lambda client: 15.0, app(), CLIENTS, fate=fate)
    result = run(experiment(rounds=19), fleet, Terms(connected=5), clock)
    assert result.rounds["received"].tolist() == [3] * 19
    assert clock.now() == pytest.approx(60 + 19 * 15, abs=5)
    when = [0, 90, 150, 210, 270, 330]  # when nobody can answer the last question any more
    assert asked == pytest.approx(when, abs=16)


def test_who_says_late_who_it_is_takes_part_from_then_on():
    clock = VirtualClock()

    class Late(SlowGrid):
        def push_messages(self, messages):
            names = super().push_messages(messages)
            for name, message in zip(names, messages, strict=True):
                late = not asked_in(message) and message.metadata.dst_node_id == self.nodes[5]
                self._due[name] += 70 if late else 0
            return names

    fleet = Late(clock, lambda client: 15.0, app(), CLIENTS)
    result = run(experiment(fw.methods.fedavg(6), rounds=3), fleet, Terms(connected=5), clock)
    assert result.rounds["received"].tolist() == [5, 6, 6]


def test_whoever_is_there_is_enough_if_the_terms_say_so():
    fleet = flower.LocalGrid(app(), CLIENTS)
    fleet.online = set(fleet.nodes[:3])
    result = run(experiment(fw.methods.fedavg(6), rounds=1), fleet, Terms(connected=3))
    assert result.clients["client"].tolist() == [0, 1, 2], "who is away is not asked"


@pytest.mark.parametrize("method", [fw.methods.fedacs, fw.methods.scaffold, fw.methods.feddyn])
def test_a_server_that_was_stopped_goes_on_as_if_nothing_had_happened(method, tmp_path):
    """Also the links it had learned, and the memories of clients that Flower has emptied for the new run."""
    whole = experiment(method(3), rounds=5, system=fw.system.Measured())

    def fleet():
        return flower.LocalGrid(
            app(), CLIENTS, fate=lambda client, m: "raises" if asked_in(m) and (asked_in(m) + client) % 3 == 1 else ""
        )

    expected = run(whole, fleet())
    interrupted(whole, fleet(), tmp_path / "run", after=2)
    assert fw.load_result(tmp_path / "run").summary["rounds"] == 2
    resumed = run(whole, fleet(), out=tmp_path / "run")
    assert resumed.summary["digest"] == expected.summary["digest"]
    for column in ("round", "client", "expected", "received"):
        assert np.array_equal(resumed.clients[column], expected.clients[column])


def test_a_run_goes_on_with_those_who_are_back(tmp_path):
    """The others' samples are known from before, and so are their weights."""
    longer = experiment(fw.methods.fedavg(CLIENTS), rounds=2)
    interrupted(longer, flower.LocalGrid(app(), CLIENTS), tmp_path / "run", after=1)
    fleet = flower.LocalGrid(app(), CLIENTS)
    fleet.online = set(fleet.nodes[1:3])
    result = run(longer, fleet, out=tmp_path / "run")
    assert result.clients["client"].tolist() == [*range(CLIENTS), 1, 2]


def test_only_the_same_experiment_is_continued_and_not_in_the_simulator(tmp_path):
    run(experiment(rounds=1), out=tmp_path / "run")
    with pytest.raises(fw.BadInput, match="differs from the one this run began with in lr"):
        run(experiment(rounds=1, lr=0.3), out=tmp_path / "run")
    with pytest.raises(fw.BadInput, match="run of a real fleet"):
        fw.resume(tmp_path / "run")


def test_a_client_commits_what_it_learned_only_when_it_was_heard():
    """Its answer of round 2 is lost on the way: the simulator's client has then learned nothing either."""
    lost = {(c, 2) for c in range(CLIENTS)}
    fleet = flower.LocalGrid(app(), CLIENTS)
    trained, pull = [], fleet.pull_messages

    def lossy(ids):
        found = list(pull(ids))
        for reply in [
            r for r in found if asked_in(r) and (fleet.nodes.index(r.metadata.src_node_id), asked_in(r)) in lost
        ]:
            trained.append(reply)
            found.remove(reply)
        return found

    fleet.pull_messages = lossy
    everyone = fw.methods.scaffold(CLIENTS)
    on_the_way = run(experiment(everyone, rounds=3), fleet)
    assert len(trained) == CLIENTS, "they did train and did answer"
    never = flower.LocalGrid(app(), CLIENTS, fate=lambda c, m: "raises" if (c, asked_in(m)) in lost else "")
    assert on_the_way.summary["digest"] == run(experiment(everyone, rounds=3), never).summary["digest"]


def test_a_client_that_lost_its_memory_says_so_once_and_gets_it_back(tmp_path):
    fleet = flower.LocalGrid(app(), CLIENTS)
    fleet._fate = lambda client, m: fleet.forget() or "" if asked_in(m) == 3 and client == 0 else ""
    everyone = fw.methods.feddyn(CLIENTS)
    forgetful = run(experiment(everyone, rounds=5), fleet, out=tmp_path / "run")
    lost = [r for r, why in reasons(tmp_path / "run") if "has lost what it remembered; the server will send it" in why]
    assert lost == [3] * CLIENTS
    absent = flower.LocalGrid(app(), CLIENTS, fate=lambda c, m: "raises" if asked_in(m) == 3 else "")
    assert forgetful.summary["digest"] == run(experiment(everyone, rounds=5), absent).summary["digest"]


def test_memories_travel_only_to_clients_that_do_not_have_them():
    sent = []
    fleet = flower.LocalGrid(app(), CLIENTS, fate=lambda client, m: sent.append("memory" in m.content) or "")
    run(experiment(fw.methods.feddyn(CLIENTS), rounds=3), fleet)
    assert not any(sent)
    for context in fleet._contexts.values():
        assert set(context.state) == {KEPT, LEARNED}


def test_a_node_that_comes_back_takes_its_place():
    fleet = flower.LocalGrid(app(), CLIENTS)
    old, new = fleet.nodes[2], 17

    def fate(client, message):
        if asked_in(message) == 2 and old in fleet.nodes:  # between two rounds: started again under another id
            fleet._contexts[new] = fleet._contexts.pop(old)
            fleet.online = fleet.online - {old} | {new}
            fleet.nodes[2] = new
        return ""

    fleet._fate = fate
    result = run(experiment(fw.methods.fedavg(CLIENTS), rounds=4), fleet)
    received = result.clients["received"][result.clients["client"] == 2]
    assert received.tolist() == [1, 0, 1, 1], "its old node did not answer round 2"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "partition-id=0 num-partitions=10"),
        ({"partition-id": 6, "num-partitions": 6}, "partition-id from 0"),
        ({"partition-id": True, "num-partitions": 6}, "Every node says which client it is"),
    ],
)
def test_a_node_that_does_not_know_who_it_is_is_no_client(config, says):
    fleet = flower.LocalGrid(app(), 1, node_config=lambda i: config)
    with pytest.raises(RuntimeError, match=says):
        run(experiment(), fleet, Terms(start_seconds=5))


def test_what_no_fleet_can_do_is_refused():
    for sampler in (fw.sample.Optimal(3, norms="oracle"), fw.sample.ClusterIS(3, norms="oracle"), fw.sample.IS(3)):
        oracle = fw.Method(FirstEveryone(sampler), aggregator=fw.aggregate.InverseProbability())
        with pytest.raises(fw.BadInput, match=rf"^{type(sampler).__name__} must know .* for the simulator"):
            run(experiment(oracle, rounds=1))
    with pytest.raises(fw.BadInput, match="true-gradients is for the simulator"):
        run(experiment(rounds=1, true_gradients=True))
    with pytest.raises(fw.BadInput, match="--evaluate train is for the simulator"):
        run(experiment(rounds=1, evaluate="train,test"))
    with pytest.raises(fw.BadInput, match="--client-eval is for the simulator"):
        run(experiment(rounds=1, client_eval=1))
    with pytest.raises(fw.BadInput, match="--validation is for the simulator"):
        run(experiment(rounds=1, validation=0.1))
    for given in ({"deadline": 3.0}, {"answers": 2}, {"over_selection": 2.0}, {"min_answers": 1}):
        with pytest.raises(fw.BadInput, match="said by Terms, not by the Experiment"):
            run(experiment(rounds=1, **given))
    quadratics = experiment(data="quadratics", partition=fw.partition.parse("natural", None))
    with pytest.raises(fw.BadInput, match="closed form"):
        run(quadratics)


def test_own_modules_pairs_of_arrays_and_targets():
    torch = pytest.importorskip("torch")

    def load(client, clients):
        rng = np.random.default_rng(client)
        x = rng.standard_normal((20, 3)).astype(np.float32)
        return x, x @ np.array([1.0, -2.0, 0.5], np.float32)

    def model():
        return torch.nn.Linear(3, 1)

    x, y = load(9, 10)
    data = fw.data.Dataset("line", x, y, x, y, 0)
    line = fw.Experiment(method=fw.methods.fedavg(3), data=data, model=model, rounds=20, lr=0.1, steps=10, workers=1)
    result = run(line, flower.LocalGrid(flower.client(model, load), 3))
    assert result.summary["loss"] < 1e-3
    assert result.x[:3] == pytest.approx([1, -2, 0.5], abs=0.05)


def test_the_engine_is_an_engine():
    session = prepare(experiment(), flower.LocalGrid(app(), CLIENTS), Terms(), VirtualClock())
    assert isinstance(session.engine, FlowerEngine)
    simulated = simulated_session(experiment(), Workers(1))
    assert session.engine.evaluate(session.start.x)["loss"] == simulated.engine.evaluate(simulated.start.x)["loss"]
    assert digits().digest == session.manifest["data"]["digest"]


def test_a_fleet_begins_with_the_start_values_and_its_model_comes_out(tmp_path):
    """The server sends them as it sends every model; a resumed server refuses others, and takes out the best."""
    first, other = (fw.run(experiment(rounds=1, seed=seed)).state_dict() for seed in (1, 2))
    same = experiment(start=first)
    interrupted(same, None, tmp_path / "run", 2)
    with pytest.raises(fw.BadInput, match="start values are not those that this run began with"):
        run(experiment(start=other), out=tmp_path / "run")
    run(same, out=tmp_path / "run")
    found, simulated = fw.load_result(tmp_path / "run"), fw.run(same)
    assert found.summary["digest"] == simulated.summary["digest"] != fw.run(experiment()).summary["digest"]
    for which in ("last", "best"):
        ours, theirs = found.state_dict(which=which), simulated.state_dict(which=which)
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
