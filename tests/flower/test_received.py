"""Over Flower's own grid: an answer that cannot be opened, or would fill the memory, is refused alone."""

import time
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedweave as fw
from fedweave import flower
from fedweave.fleet.server import received
from fedweave.fleet.server.pulls import WholeAnswers, whole_answers
from fedweave.fleet.server.terms import Clock
from fedweave.fleet.wire.tensors import packed
from flower.fake_runtime import http_grid, kind_of, repeated, with_body
from flower.rehearsal import BAD, CLIENTS, app, experiment, network, reasons, run

TERMS = flower.Terms(answer_seconds=60, poll_seconds=0.01)


def garbage(kind):
    """Change the bodies of all objects of one kind to bytes that are nothing; the SuperLink sees only their heads."""

    def tamper(contents):
        for name, content in contents.items():
            if kind_of(content) == kind:
                contents[name] = with_body(content, b"\xff" * 5)

    return tamper


def other_kind(contents):
    """Send a message whose content is an array."""
    (message,) = (name for name, content in contents.items() if kind_of(content) == "Message")
    array = next(name for name, content in contents.items() if kind_of(content) == "Array")
    _, body = contents[message].split(b"\0", 1)
    contents[message] = f"Message {array} {len(body)}".encode() + b"\0" + body


def headless(contents):
    for name in contents:
        contents[name] = b"\xff\xff"


def bomb(contents):
    for name, content in contents.items():
        if kind_of(content) == "Array":
            contents[name] = repeated(content, 100_000)


def nested(contents):
    """An array whose chunk is another array, and so on: each is a hundred times as large."""
    arrays = [name for name, content in contents.items() if kind_of(content) == "Array"]
    for outer, inner in pairwise(arrays):
        _, body = repeated(contents[outer], 100).split(b"\0", 1)
        contents[outer] = f"Array {inner} {len(body)}".encode() + b"\0" + body


def large(contents):
    for name, content in contents.items():
        if kind_of(content) == "ArrayChunk":
            contents[name] = with_body(content, bytes(received.MORE))


def wordy(contents):
    for name, content in contents.items():
        if kind_of(content) == "MetricRecord":
            contents[name] = MetricRecord({"loss": [1] * received.MORE}).deflate()


ATTACKS = {
    "numbers": garbage("MetricRecord"),
    "settings": garbage("ConfigRecord"),
    "arrays": garbage("Array"),
    "names": garbage("RecordDict"),
    "message": garbage("Message"),
    "other kind": other_kind,
    "headless": headless,
    "bomb": bomb,
    "nested": nested,
    "large": large,
    "wordy": wordy,
}


def hostile(attack, kind=MessageType.TRAIN):
    def tamper(client, answer, contents):
        if client == BAD and answer.metadata.message_type == kind:
            attack(contents)

    return http_grid(flower.LocalGrid(app(), CLIENTS), tamper)


@pytest.mark.parametrize("name", ATTACKS)
def test_one_client_cannot_end_a_run(name, tmp_path):
    chosen = experiment(fw.methods.fedavg(CLIENTS), rounds=1)
    result = run(chosen, WholeAnswers(hostile(ATTACKS[name])), TERMS, clock=Clock(), out=tmp_path / "run")
    assert result.rounds["received"].tolist() == [CLIENTS - 1]
    assert result.rounds["refused"].tolist() == [1], "which counts for quarantine"
    ((_, why),) = reasons(tmp_path / "run")
    assert f"client {BAD}: " in why
    assert "cannot be opened" in why or "more than" in why


def test_neither_an_evaluation_nor_a_hello_ends_a_strategy():
    for kind in (MessageType.EVALUATE, MessageType.QUERY):
        strategy = flower.Strategy(fw.methods.fedprox(CLIENTS - 1), terms=TERMS, clients=CLIENTS, min_available_nodes=2)
        strategy.start(hostile(ATTACKS["numbers"], kind), network(), num_rounds=1)
        assert strategy.arrays is not None


def test_answers_come_over_flowers_grid_as_they_were_sent():
    chosen = experiment(fw.methods.fedavg(CLIENTS), rounds=2)
    grid = http_grid(flower.LocalGrid(app(), CLIENTS))
    result = run(chosen, whole_answers(grid), TERMS, clock=Clock())
    assert result.summary["digest"] == run(chosen).summary["digest"]
    assert grid._client.confirmed == 3 * CLIENTS, "a hello and two answers"


def sender(values):
    """A client that answers any question with these values."""
    echo = ClientApp()

    @echo.query()
    def answer(message, context):
        return Message(RecordDict({"arrays": ArrayRecord({"w": packed(values)})}), reply_to=message)

    return flower.LocalGrid(echo, 1)


def pulled(local, tamper=lambda client, answer, contents: None, sent=None):
    grid = WholeAnswers(http_grid(local, tamper))
    content = RecordDict() if sent is None else RecordDict({"arrays": ArrayRecord({"w": packed(sent)})})
    names = grid.push_messages([Message(content, local.nodes[0], MessageType.QUERY, group_id="")])
    end = time.monotonic() + 60
    while not (came := list(grid.pull_messages(names))):
        assert time.monotonic() < end, "the answer is lost"
        time.sleep(0.01)
    return came[0]


def test_repeated_chunks_take_no_memory_before_they_are_refused():
    """A megabyte that says it is three hundred: all of an array's zeros are one chunk, so to repeat one is no fault."""

    def tamper(client, answer, contents):
        bomb(contents)

    local = sender(np.zeros(250_000, np.float32))
    tracemalloc.start()
    reply = pulled(local, tamper)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "more than" in reply.error.reason
    assert peak < 20e6


def test_an_answer_may_repeat_chunks_and_be_somewhat_larger_than_its_question():
    zeros = np.zeros(4_000_000, np.float64)  # 32 MB, in equal chunks
    reply = pulled(sender(zeros), sent=np.zeros(4_000_000, np.float16))
    assert np.array_equal(reply.content["arrays"]["w"].numpy(), zeros)


def test_an_answer_cannot_pass_for_that_to_another_question():
    """The SuperLink knows which question a node answers; what the answer itself says is the node's word."""

    def tamper(client, answer, contents):
        answer.metadata.__dict__["_reply_to_message_id"] = "0" * 64
        answer.metadata.__dict__["_src_node_id"] = 77
        contents[next(n for n, c in contents.items() if kind_of(c) == "Message")] = answer.deflate()

    local = sender(np.zeros(3, np.float32))
    reply = pulled(local, tamper)
    assert reply.metadata.reply_to_message_id != "0" * 64
    assert reply.metadata.src_node_id != 77
    assert reply.has_content()
