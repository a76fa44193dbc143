"""Flower's own grid without a SuperLink: what it sends and receives are objects in bytes, which a test may change."""

# ruff: noqa: N802 - the names are those of the requests

import json
import threading

from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse, PushObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import GetNodesResponse, PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid


class FakeRuntime:
    """The nodes of a LocalGrid behind the requests of a SuperLink's runtime.

    ``tamper(client, answer, contents)`` changes the bytes of an answer's objects, by id, where they are.
    """

    def __init__(self, local, tamper):
        self._local, self._tamper, self._lock = local, tamper, threading.Lock()
        self._objects, self._trees, self.confirmed = {}, {}, 0

    def GetNodes(self, request):
        return GetNodesResponse(nodes=[NodeInfo(node_id=node) for node in self._local.get_node_ids()])

    def PushMessages(self, request):
        names = [message.metadata.message_id for message in request.messages_list]
        self._trees |= zip(names, request.message_object_trees, strict=True)
        ids = {part.object_id for tree in request.message_object_trees for part in iterate_object_tree(tree)}
        return PushAppMessagesResponse(message_ids=names, objects_to_push=ids, session_id="1")

    def PushObject(self, request):
        self._objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def PullMessages(self, request):
        with self._lock:
            found = [self._answer(name) for name in request.message_ids if name in self._trees]
        return PullAppMessagesResponse(
            messages_list=[proto for proto, _ in found], message_object_trees=[tree for _, tree in found]
        )

    def _answer(self, name):
        ids = [part.object_id for part in iterate_object_tree(self._trees.pop(name))]
        message = inflate_object_from_contents(name, {i: self._objects[i] for i in ids})
        message.metadata.__dict__["_message_id"] = name
        node = message.metadata.dst_node_id
        answer = self._local._answered(message, node)
        contents = {i: part.deflate() for i, part in get_all_nested_objects(answer).items()}
        answer.metadata.__dict__["_message_id"] = answer.object_id
        proto, tree = message_to_proto(remove_content_from_message(answer)), get_object_tree(answer)
        self._tamper(self._local.nodes.index(node), answer, contents)
        self._objects |= contents
        return proto, tree

    def PullObject(self, request):
        content = self._objects[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):
        self.confirmed += 1
        return ConfirmMessageReceivedResponse()


def http_grid(local, tamper=lambda client, answer, contents: None):
    """Return Flower's grid on a fake runtime."""
    grid = HttpGrid(token="none")
    grid._client, grid._run = FakeRuntime(local, tamper), Run.create_empty(1)
    return grid


def with_body(content, body):
    """Return the bytes of an object with another body, and the right length in its head."""
    kind, children, _ = content[: content.index(b"\0")].decode().split(" ")
    return f"{kind} {children} {len(body)}".encode() + b"\0" + body


def kind_of(content):
    return content.split(b" ", 1)[0].decode()


def repeated(content, times):
    """Return the bytes of an Array that repeats its first chunk."""
    about = json.loads(content[content.index(b"\0") + 1 :])
    return with_body(content, json.dumps(about | {"arraychunk_ids": [0] * times}).encode())
