"""Answers that are still being sent hold up nobody, and none is lost or handed out twice."""

import threading

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedweave.fleet.local.grid import LocalGrid
from fedweave.fleet.server import pulls
from fedweave.fleet.server.pulls import WholeAnswers, whole_answers


class Sending(LocalGrid):
    """As Flower's: hands out an answer whose bytes are still under way, and waits for them."""

    def __init__(self, clients, slow=()):
        app = ClientApp()

        @app.query()
        def echo(message, context):
            return Message(
                RecordDict({"who": ConfigRecord({"id": context.node_config["partition-id"]})}), reply_to=message
            )

        super().__init__(app, clients)
        self.sent = {self.nodes[i]: threading.Event() for i in range(clients)}
        for i in set(range(clients)) - set(slow):
            self.sent[self.nodes[i]].set()
        self.pulls = []

    def pull_messages(self, message_ids):
        self.pulls.append(list(message_ids))
        came = list(super().pull_messages(message_ids))
        for message in came:
            assert self.sent[message.metadata.src_node_id].wait(60)
        return came


def ask(grid, local):
    return list(grid.push_messages([Message(RecordDict(), n, MessageType.QUERY, group_id="") for n in local.nodes]))


def who(messages):
    return [int(m.content["who"]["id"]) for m in messages]


def all_of(grid, names, most=1000):
    """Look until so many have come; every look returns."""
    found = []
    while len(found) < most:
        found += who(grid.pull_messages(names))
    return sorted(found)


@pytest.mark.parametrize("clients", [1, 5, 100])
def test_a_slow_upload_holds_up_nobody_else(clients):
    local = Sending(clients + 1, slow=[0])
    grid = WholeAnswers(local)
    slow, *names = ask(grid, local)
    alone = who(grid.pull_messages([slow]))
    assert alone == []
    assert all_of(grid, [slow, *names], clients) == list(range(1, clients + 1))
    assert who(grid.pull_messages([slow])) == []
    local.sent[local.nodes[0]].set()
    assert all_of(grid, [slow], 1) == [0]
    assert who(grid.pull_messages([slow, *names])) == [], "each answer is handed out once"


def test_as_many_slow_ones_as_there_are_threads_end_at_last():
    local = Sending(pulls.THREADS + 3, slow=range(pulls.THREADS))
    grid = WholeAnswers(local)
    names = ask(grid, local)
    assert who(grid.pull_messages(names[: pulls.THREADS])) == []
    assert who(grid.pull_messages(names[pulls.THREADS :])) == [], "nobody is free"
    local.sent[local.nodes[0]].set()
    assert all_of(grid, names[:1], 1) == [0]
    assert all_of(grid, names[pulls.THREADS :], 3) == [pulls.THREADS + i for i in range(3)]
    for sent in local.sent.values():
        sent.set()
    assert all_of(grid, names[1 : pulls.THREADS], pulls.THREADS - 1) == list(range(1, pulls.THREADS))


def test_an_answer_that_comes_while_others_are_asked_for_is_kept():
    local = Sending(3, slow=[0])
    grid = WholeAnswers(local)
    slow, first, second = ask(grid, local)
    assert who(grid.pull_messages([slow])) == []
    local.sent[local.nodes[0]].set()
    assert all_of(grid, [first, second], 2) == [1, 2]
    assert all_of(grid, [slow], 1) == [0]


def test_late_answers_do_not_pile_up():
    late = pulls.KEPT + 5
    local = Sending(late + 1, slow=range(late))
    grid = WholeAnswers(local)
    names = ask(grid, local)
    for name in names[:late]:
        grid.pull_messages([name])
        local.sent[local.nodes[names.index(name)]].set()
    assert all_of(grid, names[late:], 1) == [late]
    while grid._threads:
        grid.pull_messages(["nobody"])
    assert len(grid._found) <= pulls.KEPT


def test_an_error_of_the_grid_is_raised_where_one_looks():
    class Broken(Sending):
        def pull_messages(self, message_ids):
            raise ConnectionError("the SuperLink is gone")

    local = Broken(2)
    grid = WholeAnswers(local)
    with pytest.raises(ConnectionError, match="is gone"):
        grid.pull_messages(ask(grid, local))


def test_only_flowers_grids_wait():
    from flwr.superlink.grid.http_grid import HttpGrid

    local = Sending(1)
    assert whole_answers(local) is local
    assert isinstance(whole_answers(HttpGrid.__new__(HttpGrid)), WholeAnswers)
