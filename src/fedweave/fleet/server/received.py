"""Answers from Flower's SuperLink, opened one by one: what is wrong with one of them is no error of the others.

Flower's own grid opens all answers that it pulls together, and raises what their bytes raise. Here an answer that
cannot be opened is an error message in its place, and one that is larger than an answer can be is not even opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock

from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents, pull_objects
from flwr.superlink.grid.http_grid import HttpGrid

from fedweave.fleet.wire.tensors import Unfit

WIDER = 4  # times as large as the largest question: float64 where that has float16
MORE = 2**22  # bytes beyond that; and of all that is not the values of arrays
UNREADABLE = 1000  # our own code, beside Flower's


def received(grid: HttpGrid, names: Sequence[str], largest: int) -> Iterator[Message]:
    """Yield the answers to these questions that are there, of which the largest had so many bytes.

    An answer belongs to the question, and to the node, for which the SuperLink has taken it.
    """
    link, run = grid._runtime_client, grid.run.run_id  # pyright: ignore[reportPrivateUsage]
    pull = make_pull_object_fn_protobuf(link.PullObject, grid.node, run)
    found = link.PullMessages(PullAppMessagesRequest(message_ids=names))
    for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
        metadata = metadata_from_proto(head.metadata)
        if metadata.reply_to_message_id not in names:
            continue
        content, error = None, None
        try:
            objects = [part.object_id for part in iterate_object_tree(tree)]
            contents = pull_objects(objects, _Counted(pull, WIDER * largest + 2 * MORE))
            content, error = _opened(metadata.message_id, contents, WIDER * largest + MORE)
        except ObjectPullError as e:
            error = Error(ErrorCode.MESSAGE_UNAVAILABLE, f"Its answer did not come as a whole. {e}")
        except Unfit as e:
            error = Error(UNREADABLE, str(e))
        done = ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=metadata.message_id)
        link.ConfirmMessageReceived(done)  # good or bad, the SuperLink need not keep it
        yield make_message(metadata, content, error)


class _Counted:
    """Pulls the objects of one answer, until they are too large together."""

    def __init__(self, pull: Callable[[str], bytes], most: int):
        self._pull, self._most, self._bytes, self._lock = pull, most, 0, Lock()

    def __call__(self, name: str) -> bytes:
        content = self._pull(name)
        with self._lock:
            self._bytes += len(content)
        _check_size(self._bytes, self._most)
        return content


def _opened(name: str, contents: dict[str, bytes], most: int) -> tuple[RecordDict | None, Error | None]:
    """Return the content or the error of an answer, once it is known how large its arrays will be."""
    try:
        arrays, others = _sizes(contents)
        _check_size(arrays, most)
        _check_size(others, MORE)
        message = inflate_object_from_contents(name, contents)
        if isinstance(message, Message) and message.has_error():
            return None, message.error
        if isinstance(message, Message) and isinstance(message.content, RecordDict):
            return message.content, None
    except Unfit:
        raise
    except Exception as e:  # the bytes of strangers: Flower's parsers meet them with errors of many kinds
        raise Unfit(f"sent an answer that cannot be opened ({type(e).__name__})") from None
    raise Unfit("sent an answer that cannot be opened: it is not a message")


def _sizes(contents: Mapping[str, bytes]) -> tuple[int, int]:
    """Return how many bytes the values of all arrays will take, and all the rest takes.

    An array names its chunks by their places in its head, each as often as it likes.
    """
    arrays = others = 0
    for content in contents.values():
        kind, children, body = get_object_head_values_from_object_content(content)
        if kind == "Array":
            chunks = [contents[child] for child in children]
            if not all(chunk.startswith(b"ArrayChunk ") for chunk in chunks):
                raise Unfit("sent an answer that cannot be opened: an array consists of something else than chunks")
            places = json.loads(content[len(content) - body :])["arraychunk_ids"]
            arrays += sum(len(chunks[place]) for place in places)
        others += len(content) if kind != "ArrayChunk" else 0
    return arrays, others


def _check_size(found: int, most: int) -> None:
    if found > most:
        raise Unfit(f"sent an answer of {found} bytes or more, more than the {most} that one can have here")
