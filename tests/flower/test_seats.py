"""Seats belong to nodes: who claims another's gets nothing, whoever is first, also from a server that goes on."""

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

import fedweave as fw
from fedweave import flower
from fedweave.fleet.local.keys import node_key
from fedweave.fleet.server.places import Places
from fedweave.fleet.server.roster import Roster
from fedweave.fleet.server.terms import Terms, VirtualClock
from flower.plain_app import plain
from flower.rehearsal import CLIENTS, app, experiment, run, share


def greeter():
    """An app that says who it is, with 10 samples, and does nothing else."""
    app = ClientApp()

    @app.query()
    def hello(message, context):
        config = context.node_config
        about = {"client": config["partition-id"], "clients": config["num-partitions"], "num-examples": 10}
        return Message(RecordDict({"hello": MetricRecord(about)}), reply_to=message)

    return app


class Fleet(flower.LocalGrid):
    """Nodes that claim these (partition-id, num-partitions), and have these keys if any."""

    def __init__(self, *claims, keys=(), app=None):
        super().__init__(
            app or greeter(),
            len(claims),
            node_config=lambda i: dict(zip(("partition-id", "num-partitions"), claims[i], strict=True)),
        )
        self.keys = dict(zip(self.nodes, keys, strict=False))
        self.online = set()

    def bring(self, *which):
        self.online |= {self.nodes[i] for i in which}

    def lose(self, *which):
        self.online -= {self.nodes[i] for i in which}

    def get_nodes(self):
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.get_node_ids()]


def test_a_seat_is_not_taken_from_a_node_that_is_there():
    fleet, clock = Fleet((0, 2), (1, 2), (0, 2)), VirtualClock()
    fleet.bring(0, 1)
    roster = Roster(fleet, Terms(), clock)
    assert roster.gather().all()
    fleet.bring(2)
    for _ in range(3):
        assert roster.gather().all()
    assert roster.node == {0: fleet.nodes[0], 1: fleet.nodes[1]}
    (said,) = roster.news
    assert said == (
        f"node {fleet.nodes[2]} says that it is client 0 (partition-id=0) and is not asked: the seat is that of node "
        f"{fleet.nodes[0]}, which is there."
    )


def test_a_node_that_was_started_again_gets_its_seat_once_flower_has_noticed():
    """Without a key of its own it has another id, and Flower lists the dead one for a minute."""
    fleet = Fleet((0, 2), (1, 2), (0, 2))
    fleet.bring(0, 1)
    roster = Roster(fleet, Terms(), VirtualClock())
    roster.gather()
    fleet.bring(2)
    roster.gather()
    fleet.lose(0)
    assert roster.gather().tolist() == [True, True]
    assert roster.node[0] == fleet.nodes[2]


def keys(tmp_path, n):
    """Make keys as `fedweave flower keys` does, and return the public ones as SuperNodes send them."""
    for i in range(n):
        node_key(tmp_path, f"node{i}")
    public = [load_ssh_public_key((tmp_path / f"node{i}.pub").read_bytes()) for i in range(n)]
    return [key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in public]


@pytest.mark.parametrize("first", [True, False])
def test_with_keys_a_seat_is_its_keys_alone(first, tmp_path):
    """Also if another one is there first, and while its node is away."""
    mine = keys(tmp_path, 2)
    fleet = Fleet((0, 2), (1, 2), (0, 2), keys=[*mine, b"another"])
    terms = Terms(connected=1, keys=str(tmp_path))
    fleet.bring(1, *([2] if first else [0]))
    roster = Roster(fleet, terms, VirtualClock())
    assert roster.gather().tolist() == [not first, True]
    fleet.bring(0, 2)
    assert roster.gather().tolist() == [True, True]
    fleet.lose(0)
    assert roster.gather().tolist() == [False, True]
    assert "its key is not node0.pub" in " ".join(roster.news)
    fleet.bring(0)
    assert roster.gather().all()
    assert roster.node[0] == fleet.nodes[0]


def test_a_key_has_one_seat(tmp_path):
    fleet = Fleet((0, 3), (1, 3), (2, 3), keys=[b"same", b"other", b"same"])
    fleet.bring(0, 1)
    roster = Roster(fleet, Terms(connected=1), VirtualClock())
    roster.gather()
    fleet.lose(0)
    fleet.bring(2)
    assert roster.gather().tolist() == [False, True, False]
    assert "it has the seat of client 0" in roster.news[-1]
    with pytest.raises(fw.BadInput, match=r"no node0\.pub in that folder"):
        Roster(fleet, Terms(keys=str(tmp_path)), VirtualClock())
    (tmp_path / "node0.pub").write_text("ssh-rsa rubbish")
    with pytest.raises(fw.BadInput, match="not a public key"):
        Roster(fleet, Terms(keys=str(tmp_path)), VirtualClock())


def test_clients_of_an_app_that_does_not_say_are_numbered_by_their_keys(tmp_path):
    mine = keys(tmp_path, 3)
    fleet = Fleet(*[(i, 4) for i in range(4)], keys=[mine[2], b"another", mine[0], mine[1]])
    fleet.bring(0, 1, 2)
    places = Places(fleet, Terms(connected=2, keys=str(tmp_path)), VirtualClock())
    assert places.gather().tolist() == [True, False, True]
    assert places.node == {2: fleet.nodes[0], 0: fleet.nodes[2]}
    fleet.lose(0)
    fleet.bring(3)
    assert places.gather().tolist() == [True, True, False], "nobody takes the seat of a key"


@pytest.mark.parametrize("stated", [None, 3])
@pytest.mark.parametrize("huge", [10**5, 10**7, 10**15])
def test_one_node_that_claims_a_huge_fleet_locks_nobody_out(stated, huge):
    fleet, clock = Fleet((0, huge), (0, 3), (1, 3), (2, 3)), VirtualClock()
    fleet.bring(0)

    class Late(VirtualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if self.time > 20:
                fleet.bring(1, 2, 3)

    clock = Late()
    roster = Roster(fleet, Terms(clients=stated), clock)
    assert roster.gather().tolist() == [True] * 3
    assert roster.node == {i: fleet.nodes[i + 1] for i in range(3)}
    assert any(f"{fleet.nodes[0]}" in said for said in roster.news)
    fleet.bring(0)
    assert roster.gather().size == 3


class Later(VirtualClock):
    """A clock by which these come after five seconds, or so many."""

    def __init__(self, fleet, *which, after=5):
        super().__init__()
        self._come, self._after = lambda: fleet.online.update(fleet.nodes[i] for i in which), after

    def sleep(self, seconds):
        super().sleep(seconds)
        if self.time > self._after:
            self._come()


def test_one_node_that_comes_first_and_claims_a_small_fleet_locks_nobody_out():
    """It is not the whole fleet because it says so: two nodes must agree how many there are."""
    fleet = Fleet((0, 1), (0, 3), (1, 3), (2, 3))
    fleet.bring(0)
    roster = Roster(fleet, Terms(), Later(fleet, 1, 2, 3))
    assert roster.gather().tolist() == [True] * 3
    assert roster.node == {i: fleet.nodes[i + 1] for i in range(3)}
    assert f"node {fleet.nodes[0]} says that it is client 0" in roster.news[-1]


def test_a_node_that_stays_alone_begins_no_run_unless_the_size_was_stated():
    fleet = Fleet((0, 1))
    fleet.bring(0)
    with pytest.raises(RuntimeError, match=r"Only one node says that there are 1 clients.*Terms\(clients=…\)"):
        Roster(fleet, Terms(start_seconds=5), VirtualClock()).gather()
    assert Roster(fleet, Terms(clients=1), VirtualClock()).gather().tolist() == [True]


def test_a_node_that_answers_rubbish_does_not_end_a_run_of_others():
    """A method that needs our clients says so where nobody is one; one bad node is just left out."""
    good, bad = app(), plain()  # has no answer to the question who it is
    apps = {i: bad if i == 2 else good for i in range(CLIENTS)}
    fleet = flower.LocalGrid(apps, CLIENTS)
    roster = Roster(fleet, Terms(connected=CLIENTS - 1), VirtualClock(), needs="They must be ours.")
    assert roster.gather().sum() == CLIENTS - 1
    roster.gather()
    roster.gather()
    assert any(f"Node {fleet.nodes[2]} is no client" in said for said in roster.news)


def test_a_node_of_another_app_that_comes_first_ends_no_run_before_the_deadline():
    apps = {i: app() if i else plain() for i in range(CLIENTS)}
    fleet = flower.LocalGrid(apps, CLIENTS)
    fleet.online = {fleet.nodes[0]}
    roster = Roster(
        fleet, Terms(connected=CLIENTS - 1), Later(fleet, *range(CLIENTS)), needs="They must be ours.", clients=CLIENTS
    )
    assert roster.gather().tolist() == [False] + [True] * (CLIENTS - 1)
    assert f"Node {fleet.nodes[0]} is no client" in roster.news[0]


def test_where_two_nodes_of_another_app_come_first_others_have_half_a_minute():
    apps = {i: app() if i > 1 else plain() for i in range(CLIENTS)}
    fleet = flower.LocalGrid(apps, CLIENTS)
    fleet.online = set(fleet.nodes[:2])
    terms, clock = Terms(connected=CLIENTS - 2), Later(fleet, *range(CLIENTS))
    roster = Roster(fleet, terms, clock, needs="They must be ours.", clients=CLIENTS)
    assert roster.gather().sum() == CLIENTS - 2


def test_nodes_that_still_start_are_waited_for_though_two_of_another_app_have_answered():
    clock, online, ready = VirtualClock(), 2, 120.0

    class Starting(flower.LocalGrid):
        """Two nodes answer at once, and the others when Flower has started them: a question may have died by then."""

        def push_messages(self, messages):
            messages = list(messages)
            names = super().push_messages(messages)
            for name, message in zip(names, messages, strict=True):
                late = self.nodes.index(message.metadata.dst_node_id) >= online
                if late and clock.now() + message.metadata.ttl < ready:
                    del self._answers[name]
            return names

        def pull_messages(self, message_ids):
            there = [m for m in message_ids if m in self._answers and self._due(self._answers[m]) <= clock.now()]
            return super().pull_messages(there)

        def _due(self, answer):
            return ready if self.nodes.index(answer.metadata.src_node_id) >= online else 0.0

    fleet = Starting({i: app() if i >= online else plain() for i in range(CLIENTS)}, CLIENTS)
    roster = Roster(fleet, Terms(connected=2), clock, needs="They must be ours.", clients=CLIENTS)
    assert roster.gather().sum() == CLIENTS - online
    assert clock.now() == pytest.approx(ready, abs=1)


def test_strangers_end_no_run_whose_seats_are_those_of_keys(tmp_path):
    """None of the two could have had a seat, so they say nothing of the fleet."""
    mine = keys(tmp_path, 2)
    apps = {i: greeter() if i < 2 else plain() for i in range(4)}
    fleet = Fleet((0, 2), (1, 2), (0, 2), (1, 2), keys=[*mine, b"a stranger", b"another"], app=apps)
    fleet.bring(2, 3)
    clock = Later(fleet, 0, 1, after=60)
    roster = Roster(fleet, Terms(keys=str(tmp_path)), clock, needs="They must be ours.")
    assert roster.gather().all()
    assert roster.node == dict(enumerate(fleet.nodes[:2]))


@pytest.mark.parametrize(("terms", "earliest", "latest"), [({"start_seconds": 20}, 20, 22), ({}, 30, 33)])
def test_where_nobody_is_a_client_of_ours_the_error_says_what_is_needed(terms, earliest, latest):
    fleet, clock = flower.LocalGrid(plain(), 2), VirtualClock()
    with pytest.raises(
        fw.BadInput, match=r"They must be ours\. A node of this fleet is none: it did not say who it is"
    ):
        Roster(fleet, Terms(**terms), clock, needs="They must be ours.").gather()
    assert earliest <= clock.now() <= latest


def test_a_node_that_was_mended_and_started_again_is_asked_again_who_it_is():
    """With a key it has the id that it had when it was taken for no client, or for another one."""
    broken = {2}

    def load(client, clients):
        if client in broken:
            raise OSError("the disk is not mounted")
        return share(client)

    fleet = flower.LocalGrid(flower.client("auto", load), CLIENTS)
    roster = Roster(fleet, Terms(connected=5, clients=CLIENTS), VirtualClock())
    for _ in range(4):
        assert not roster.gather()[2]
    fleet.online.discard(fleet.nodes[2])
    roster.gather()
    broken.clear()
    assert not roster.gather()[2]
    fleet.online.add(fleet.nodes[2])
    assert not roster.gather()[2], "it is asked, and nobody waits for it"
    assert roster.gather().all()


def test_a_node_that_comes_back_as_another_client_has_that_seat_alone():
    fleet = Fleet((0, 3), (1, 3), (2, 3), keys=[b"a", b"b", b"c"])
    fleet.bring(0, 1)
    roster = Roster(fleet, Terms(clients=3, connected=1), VirtualClock())
    assert roster.gather().tolist() == [True, True, False]
    fleet.lose(1)
    roster.gather()
    fleet._contexts[fleet.nodes[1]].node_config["partition-id"] = 2
    fleet.bring(1)
    roster.gather()
    assert roster.gather().tolist() == [True, False, True]
    assert roster.node == {0: fleet.nodes[0], 2: fleet.nodes[1]}


def test_a_server_that_goes_on_remembers_whose_seats_they_are(tmp_path):
    """An impostor that is asked before the one it imitates gets nothing, and samples of late comers are known."""
    ids = Fleet(*[(0, 1)] * (CLIENTS + 1)).nodes
    impostor, *honest = sorted(range(CLIENTS + 1), key=lambda i: ids[i])  # in the order in which they are asked
    claims = {impostor: (0, CLIENTS)} | {i: (client, CLIENTS) for client, i in enumerate(honest)}
    fleet, whole = (Fleet(*[claims[i] for i in range(CLIENTS + 1)], app=app()) for _ in range(2))
    same, terms = experiment(fw.methods.fedavg(CLIENTS), rounds=4), Terms(connected=5)

    def late(grid, stop=None):
        def told(row):
            grid.bring(honest[5])
            if row["round"] == stop:
                raise KeyboardInterrupt

        grid.bring(*honest[:5])
        return told

    expected = run(same, whole, terms, callbacks=late(whole))
    with pytest.raises(fw.Interrupted):
        run(same, fleet, terms, out=tmp_path / "run", callbacks=late(fleet, stop=2))
    fleet.forget()
    fleet.bring(impostor)
    resumed = run(same, fleet, terms, out=tmp_path / "run", callbacks=late(fleet))
    assert resumed.summary["digest"] == expected.summary["digest"]
    assert resumed.clients["client"].tolist() == expected.clients["client"].tolist()


def test_places_of_a_server_that_goes_on():
    fleet = Fleet(*[(i, 3) for i in range(3)])
    fleet.bring(0, 1, 2)
    places = Places(fleet, Terms(), VirtualClock())
    places.gather()
    places.samples[:] = 5
    before, kept = dict(places.node), places.fleet()
    fleet.lose(min(range(3), key=lambda i: fleet.nodes[i]))
    again = Places(fleet, Terms(), VirtualClock())
    again.recall(kept)
    assert again._keys is None
    again.min_available = 2
    assert again.gather().sum() == 2
    assert all(again.node[client] == before[client] for client in again.node)
    assert again.samples.tolist() == [5] * 3
    with pytest.raises(fw.BadInput, match="There are 4 clients, but this run has 3"):
        Places(fleet, Terms(clients=4), VirtualClock()).recall(kept)


def test_an_impostor_does_not_reach_the_model(tmp_path):
    """The attack as it was: a second node with partition-id=0 took over client 0, its weight and its memory."""
    fleet = Fleet(*[(i, CLIENTS) for i in range(CLIENTS)], (0, CLIENTS), app=app())
    fleet.bring(*range(CLIENTS))
    asked = []
    fleet._fate = lambda client, message: asked.append(client) or ""
    same = experiment(fw.methods.fedavg(CLIENTS), rounds=2)
    result = run(same, fleet, callbacks=lambda row: fleet.bring(CLIENTS))
    assert asked.count(CLIENTS) == 1, "it was asked who it is, and nothing else"
    assert result.summary["digest"] == run(same).summary["digest"]


def test_strangers_do_not_count_as_connected(tmp_path):
    """Two keys, one of whose owners is there with two strangers: the fleet is not complete."""
    mine = keys(tmp_path, 2)
    fleet = Fleet((0, 2), (1, 2), (2, 2), keys=[mine[0], b"another", b"a third"])
    fleet.bring(0, 1, 2)
    places = Places(fleet, Terms(keys=str(tmp_path), start_seconds=1), VirtualClock())
    with pytest.raises(RuntimeError, match=r"1 clients are there after 1 s, 2 must be"):
        places.gather()
