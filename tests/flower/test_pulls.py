"""Answers that are still being sent hold up nobody, and none is lost or handed out twice."""

import threading

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedweave.fleet.local.grid import LocalGrid
from fedweave.fleet.server import pulls
from fedweave.fleet.server.mail import PromptGrid, collect
from fedweave.fleet.server.pulls import WholeAnswers, whole_answers
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.fleet.wire.answer import size
from fedweave.fleet.wire.tensors import packed


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


def settle(grid):
    """Look until nothing is being pulled."""
    while grid._threads:
        grid.pull_messages(["nobody"])


def large(local, most=pulls.FEWEST):
    """A grid whose answers are so large that only so many may be in memory."""
    grid = WholeAnswers(local)
    grid._largest = pulls.HELD // most
    return grid


def test_of_many_large_answers_few_are_in_memory_and_none_is_lost():
    """All come late, and each look asks for one of them: what is there by then waits until it is asked for."""
    clients = 40
    local = Sending(clients, slow=range(clients))
    grid = large(local)
    names, found, most = ask(grid, local), [], 0
    for name in names:
        assert who(grid.pull_messages([name])) == []
    assert len(grid._under_way) == pulls.FEWEST, "the others are not even begun"
    for sent in local.sent.values():
        sent.set()
    while len(found) < clients:
        for name in names:
            found += who(grid.pull_messages([name]))
            most = max(most, len(grid._under_way) + len(grid._found))
    assert sorted(found) == list(range(clients))
    assert most <= pulls.FEWEST


def test_room_goes_by_the_largest_question():
    local = Sending(1)
    grid = WholeAnswers(local)
    model = RecordDict({"arrays": ArrayRecord({"w": packed(np.zeros(2**20, np.float32))})})
    assert grid._room == pulls.HELD
    grid.push_messages([Message(model, local.nodes[0], MessageType.QUERY, group_id="")])
    assert grid._room == pulls.HELD // size(model) == 63, "of 4 MB each, with what is written around them"
    ask(grid, local)
    assert grid._room == 63


def test_answers_that_are_given_up_do_not_pile_up_and_hold_up_nobody():
    late = 2 * pulls.FEWEST
    local = Sending(late + pulls.FEWEST, slow=range(late))
    grid = large(local)
    names = ask(grid, local)
    for begin in range(0, late, pulls.FEWEST):  # two rounds whose clients all stop in the middle of their answers
        assert who(grid.pull_messages(names[begin : begin + pulls.FEWEST])) == []
        grid.give_up(names[begin : begin + pulls.FEWEST])
    assert all_of(grid, names[late:], pulls.FEWEST) == list(range(late, late + pulls.FEWEST))
    for sent in local.sent.values():
        sent.set()
    settle(grid)
    assert (grid._found, grid._under_way, grid._given_up) == ({}, set(), set())


def test_who_asks_again_after_giving_up_is_answered():
    local = Sending(1, slow=[0])
    grid = WholeAnswers(local)
    names = ask(grid, local)
    assert who(grid.pull_messages(names)) == []
    grid.give_up(names)
    assert who(grid.pull_messages(names)) == []
    local.sent[local.nodes[0]].set()
    assert all_of(grid, names, 1) == [0]


def test_a_round_that_ends_gives_up_those_it_does_not_wait_for():
    local = Sending(3, slow=[1])
    grid, clock = WholeAnswers(local), VirtualClock()
    messages = [Message(RecordDict(), n, MessageType.QUERY, group_id="") for n in local.nodes]
    came = list(collect(PromptGrid(grid, Terms(), clock), messages, 5.0, 3, Terms(), clock))
    assert sorted(row for row, _, _ in came) == [0, 2]
    assert len(grid._given_up) == 1
    local.sent[local.nodes[1]].set()
    settle(grid)
    assert grid._found == {}


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
