"""An evaluation by the nodes of a strategy: who is asked, and which answers count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from logging import INFO, WARNING

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from fedweave.core.randomness import Stream, rng_for
from fedweave.fleet.options import StrategyOptions
from fedweave.fleet.server.questions import why_failed
from fedweave.fleet.server.seats import Seats
from fedweave.fleet.wire.answer import check_evaluation
from fedweave.fleet.wire.tensors import Unfit


def questions(
    options: StrategyOptions, places: Seats | None, grid: Grid, content: RecordDict, number: int
) -> list[Message]:
    """Return messages to a share of those who are there, drawn at the round's own address; none if they are too few."""
    seats = places.node.values() if places else grid.get_node_ids()
    nodes = sorted(set(grid.get_node_ids()) & set(seats))
    least = min(options.min_evaluate_nodes, places.size if places else options.min_evaluate_nodes)
    if len(nodes) < least:
        log(WARNING, "fedweave: %s nodes are there to evaluate, min_evaluate_nodes=%s: skipped", len(nodes), least)
        return []
    k = max(int(options.fraction_evaluate * len(nodes)), least)
    where = rng_for(options.seed, number, Stream.SAMPLER, client=1).choice(len(nodes), k, replace=False)
    chosen = [nodes[i] for i in sorted(where.tolist())]
    return [Message(content, n, MessageType.EVALUATE, group_id=str(number)) for n in chosen]


def good_answers(
    options: StrategyOptions, places: Seats | None, asked: Sequence[Message], replies: Iterable[Message], number: int
) -> dict[str, RecordDict]:
    """Return what the clients measured, by their names; bad answers are left out, and the log says why."""
    good = dict[str, RecordDict]()
    node_of = {message.metadata.message_id: message.metadata.dst_node_id for message in asked}
    client_at = {node: client for client, node in (places.node.items() if places else ())}
    once = {reply.metadata.reply_to_message_id: reply for reply in replies}  # it may come twice
    for reply in once.values():
        node = node_of.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
        who = places.called(client_at[node]) if places and node in client_at else f"node {node}"
        try:
            if reply.has_error():
                raise Unfit(why_failed(reply))
            check_evaluation(reply.content, options.terms.most_samples, options.weighted_by_key)
            good[who] = reply.content
        except Unfit as e:
            log(INFO, "\t> round %s, evaluation of %s: %s", number, who, e)
    return good
