"""A fleet in one process: Flower's grid without processes or sockets, for trial runs, tests and benchmarks."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedweave.core.randomness import Stream, rng_for
from fedweave.fleet.floors import OPEN

SERVER = 1  # Flower's node id of the SuperLink, which also answers for nodes that are gone
RAISED, GONE = 2, 5  # Flower's error codes

Fate = Literal["", "raises", "dead", "silent"]


class LocalGrid(Grid):
    """Nodes that run a ClientApp inside this process, each with its own ``Context``.

    A message is handled when it is pushed, and its answer is kept until it is pulled. ``fate`` can lose answers as a
    network does: the app "raises", the node is "dead" (the server answers for it), or no answer comes ("silent").
    With ``bytes`` everything is sent as bytes, as over a network; ``app`` can be one app per node. ``run_config`` is
    what the app's pyproject.toml and ``flwr run -c`` say, for every node. Its nodes have no secrets from this process,
    and train as simulated clients do, unless ``node_config`` says otherwise.
    """

    in_process = True  # the server has no secrets from the clients

    def __init__(
        self,
        app: ClientApp | Mapping[int, ClientApp],
        clients: int,
        *,
        fate: Callable[[int, Message], Fate] | None = None,
        bytes: bool = False,
        node_config: Callable[[int], Mapping[str, Any]] | None = None,
        run_config: Mapping[str, Any] | None = None,
    ):
        TaskIdentity.task_id = TaskIdentity.run_id = 1
        TaskIdentity.node_id = SERVER
        rng = rng_for(clients, 0, Stream.MODEL)  # node ids as Flower draws them: 64 bits, in no order
        self.nodes = [int(rng.integers(2**63, 2**64 - 1, dtype="uint64")) for _ in range(clients)]
        config = node_config or (lambda i: {"partition-id": i, "num-partitions": clients})
        self._contexts = {
            n: Context(1, n, {OPEN: False, **config(i)}, RecordDict(), {**(run_config or {})})
            for i, n in enumerate(self.nodes)
        }
        self._app, self._fate, self._bytes = app, fate or (lambda client, message: ""), bytes
        self._ids, self._answers = itertools.count(1), dict[str, Message]()
        self.online = set(self.nodes)

    def forget(self) -> None:
        """Clear the clients' state, as Flower does for every new run."""
        for context in self._contexts.values():
            context.state = RecordDict()

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._handle(message) for message in messages]

    def _handle(self, message: Message) -> str:
        name = f"m{next(self._ids)}"
        setattr(message.metadata, "_message_id", name)  # noqa: B010 - Flower has no public way, its grids do the same
        node = message.metadata.dst_node_id
        if node in self._contexts:  # as in Flower, messages to unknown nodes are dropped silently
            answer = self._answered(message, node)
            if answer is not None:
                self._answers[name] = answer
        return name

    def _answered(self, message: Message, node: int) -> Message | None:
        client = self.nodes.index(node)
        fate = self._fate(client, message) if node in self.online else "dead"
        if fate == "silent":
            return None
        if fate == "dead":
            answer = Message(Error(GONE, "Node is unavailable"), reply_to=message)
            setattr(answer.metadata, "_src_node_id", SERVER)  # noqa: B010 - likewise
            return answer
        try:
            if fate == "raises":
                raise RuntimeError("no power")
            app = self._app if isinstance(self._app, ClientApp) else self._app[client]
            message.content = send_as_bytes(message.content) if self._bytes else _own(message.content)
            answer = app(message, self._contexts[node])
            if self._bytes:
                answer.content = send_as_bytes(answer.content)
        except Exception:
            answer = Message(Error(RAISED, traceback.format_exc()), reply_to=message)
        return answer

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._answers.pop(name) for name in message_ids if name in self._answers]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    # The rest of Flower's interface, which needs a SuperLink.

    def set_run(self, run: Any) -> None:
        raise NotImplementedError("A LocalGrid belongs to no run.")

    @property
    def run(self) -> Any:
        raise NotImplementedError("A LocalGrid belongs to no run.")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


def _own(content: RecordDict) -> RecordDict:
    """Return a node's own records, with the same arrays: what it puts into them the other nodes do not see."""
    return RecordDict({name: cast(Any, type(record))({**record}) for name, record in content.items()})


def send_as_bytes(content: RecordDict) -> RecordDict:
    """Return a message's content after conversion to bytes and back."""
    proto = recorddict_to_proto(content)
    return recorddict_from_proto(type(proto).FromString(proto.SerializeToString()))
