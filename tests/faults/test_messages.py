"""Rubbish over the wire: a message that is not what it should be is refused in one short line, and nothing else."""

import json
import resource
import sys
import tracemalloc
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
from fleet import STRINGS, rubbish
from flwr.app import Array as Packed
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Proto

import fedweave as fw
from fedweave.core.records import Layout
from fedweave.fleet.wire.answer import Answer, Expected, answer, read_answer, read_loss, size
from fedweave.fleet.wire.request import (
    TrainRequest,
    ask,
    ask_loss,
    client_half,
    read_request,
    read_setting,
    read_vectors,
    solver_of,
)
from fedweave.fleet.wire.seal import check_seal, sealed
from fedweave.fleet.wire.tensors import NUMPY, Tensors, Unfit, packed
from fedweave.upload import DifferentialDropout, ErrorFeedback, Quantized, RandomK, TopK
from fedweave.upload.channels import channels_of
from fedweave.upload.codec import ClientModel
from fedweave.upload.wire import decode, encode

LAYOUT = Layout(names=("w", "b", "bn.running_mean"), shapes=((3, 2), (3,), (3,)), parameters=9)
TENSORS = Tensors.of_layout(LAYOUT)
UPLOAD = DifferentialDropout()
X = np.linspace(-1, 1, LAYOUT.dim, dtype=np.float32)
ABOUT = Answer(samples=20, steps=3, loss=0.5, first_gradient=1.5)
MOST = 10**7  # samples
REQUEST = TrainRequest(
    3, 1, 0, 4, 10, 0.05, 1.0, client_half(fw.solvers.Prox(0.1), UPLOAD, LAYOUT), memory="ab", kept=2
)
KINDS = [[type(value) for value in request] for request in (REQUEST, REQUEST._replace(budget=0.5))]
MODEL = TENSORS.record(X)
ANSWERS = {
    "displacement": answer(ABOUT, TENSORS, X),
    "payload": answer(ABOUT, TENSORS, X, encode(channels_of(LAYOUT), X, np.array([True, False, True]))),
    "model": RecordDict({"arrays": MODEL, "metrics": MetricRecord({"num-examples": 20, "loss": 0.5})}),
    "loss": RecordDict({"loss": MetricRecord({"loss": 0.5})}),
    "sealed": sealed(answer(ABOUT, TENSORS, X), REQUEST.round, REQUEST.client),
}
QUESTIONS = {
    "train": ask(REQUEST, MODEL, {"sent": MODEL, "memory": MODEL}, ConfigRecord({"local": [1.5, 2.5]})),
    "how do you do": ask_loss(MODEL, 5),
}


def expected():
    """Return the payload that a client must send that may leave out a third of its channels."""
    return Expected(UPLOAD, ClientModel(LAYOUT), 1 / 3, np.zeros(LAYOUT.dim, bool))


def server_reads(content, payload=None):
    """Read an answer as the server does; what is let through has the right form."""
    out, sent = np.full(LAYOUT.dim, 7, np.float32), payload and payload.sent
    about = read_answer(content, TENSORS, X, out, MOST, payload)
    assert 1 <= about.samples <= MOST
    assert all(isinstance(value, float) and abs(value) != np.inf for value in about)
    assert sent is None or not out[~sent].any()


def client_reads(content):
    """Read a question as the client does."""
    x, extras = read_vectors(content, TENSORS, 0)
    for vector in (x, *extras):
        assert vector is None or (vector.shape, vector.dtype) == (X.shape, X.dtype)
    if "seed" in content.config_records.get("fedweave", {}):
        assert 0 <= read_setting(content, "seed", 2**63) <= 2**63
        return
    request = read_request(content)
    assert [type(value) for value in request] in KINDS
    solver_of(request)


EACH = STRINGS // (len(ANSWERS) + len(QUESTIONS))
READERS = {
    server_reads: Unfit,
    lambda content: server_reads(content, expected()): Unfit,
    lambda content: read_loss(content) + 0.0: Unfit,
    lambda content: check_seal(content, REQUEST.round, REQUEST.client): Unfit,
    client_reads: (Unfit, fw.BadInput),
}


def read(content):
    """Give a message to all who read messages; return how many took it."""
    taken = 0
    size(content)
    for reader, errors in READERS.items():
        said = "read"
        try:
            reader(content)
            taken += 1
        except errors as e:
            said = str(e)
        assert said.isprintable()
        assert len(said) < 1000, "an error is one short line, whatever was sent"
    return taken


@contextmanager
def little_memory(more=256 * 2**20):
    """Let the process grow by so many bytes; what would take more is a MemoryError, which no reader may cause."""
    if sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_what_is_not_broken_is_read():
    taken = {name: read(m) for name, m in (ANSWERS | QUESTIONS).items()}
    assert all(taken.values()), taken
    payload = expected()
    assert read_answer(ANSWERS["payload"], TENSORS, X, X.copy(), MOST, payload).samples == 20
    assert 0 < payload.sent.sum() < LAYOUT.dim


@pytest.mark.parametrize("name", [*ANSWERS, *QUESTIONS])
def test_rubbish_as_the_bytes_of_a_message(name):
    """What Flower's own decoder refuses never gets here; whatever it lets through does."""
    valid = recorddict_to_proto((ANSWERS | QUESTIONS)[name]).SerializeToString()
    opened = 0
    with little_memory():
        for content in rubbish(len(name), valid):
            try:
                message = recorddict_from_proto(Proto.FromString(content))
            except MemoryError:
                raise
            except Exception:
                continue
            opened += 1
            read(message)
    assert opened > STRINGS / 100, "too few reach our own code"


NUMBERS = [
    0, -1, 2**63 - 1, -(2**63), 2**64 - 1, float("nan"), float("inf"), -float("inf"), 1e308, -0.0, 5e-324,
    [], [1, 2], [float("nan")] * 3, [2**64 - 1], list(range(5_000)),
]  # fmt: skip
SETTINGS = [*NUMBERS, True, "", "x" * 100_000, "\x00", "\n\u2028", b"\xff\x00", b"", [b""], ["a", ""], "null", "[]"]
TYPES = ["", "float32", "float64", "<f4", ">f4", "O", "object", "V0", "S0", "i4,,f4", "(2,)f4", "\n", "f4" * 10_000]
SHAPES = [(), (0,), (-1,), (-1, -1), (1,), (3, 2), (6,), (2**31 - 1,), (2**31 - 1,) * 40, (0, 2**31 - 1), (1,) * 5000]
HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }",
    "{'descr': '|V0', 'fortran_order': False, 'shape': (1099511627776,), }",
    "{'descr': '|S0', 'fortran_order': True, 'shape': (0,), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -1), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (4611686018427387904, 0), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (" + "9" * 1900 + ", " + "9" * 1900 + "), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }",
    "{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (1,), }",
    "{'descr': ('<f4', (1073741824, 1073741824)), 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<f4', 'fortran_order': '', 'shape': [6], }",
    "{'shape': " + "(" * 3000,
    "__import__('os').abort()",
]


class Spoilt:
    """Messages with one to three of their pieces replaced by others, which are also well-formed for Flower."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)

    def one(self, of):
        """Return one of a list."""
        return of[int(self._rng.integers(len(of)))]

    def array(self, array):
        """Return an array with something wrong: its bytes, its header, or what is announced of it."""
        dtype, shape, stype, data = array.dtype, tuple(array.shape), array.stype, array.data or b"x"
        way = int(self._rng.integers(7))
        if way == 0:
            dtype = self.one(TYPES)
        elif way == 1:
            shape = self.one(SHAPES)
        elif way == 2:
            stype = self.one(["", "pickle", "numpy.ndarray\n", "x" * 100_000])
        elif way == 3:
            data = self._rng.bytes(int(self._rng.integers(0, 200)))
        elif way == 4:
            data = data[: int(self._rng.integers(len(data)))]
        elif way == 5:
            data, shape, dtype = self.headed(self.one(HEADERS)), self.one([shape, *SHAPES]), self.one([dtype, *TYPES])
        else:
            broken = bytearray(data)
            broken[int(self._rng.integers(len(broken)))] ^= 1 << int(self._rng.integers(8))
            data = bytes(broken)
        return Packed(dtype, shape, stype, data)

    def headed(self, header):
        """Return an array's bytes under some header."""
        content = header.encode("latin1") + b"\n"
        return b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content + bytes(int(self._rng.integers(30)))

    def request(self):
        """Return a request with a field that is missing, odd or too many."""
        fields = REQUEST._asdict()
        name = self.one([*fields, "more"])
        if self._rng.random() < 0.2:
            fields.pop(name, None)
        else:
            fields[name] = self.one(
                [*(v for v in SETTINGS if not isinstance(v, bytes) and v != [b""]), None, {}, {"type": []}]
            )
        if name == "method" or self._rng.random() < 0.2:
            fields["method"] = self.one(
                [{}, {"solver": 3}, {"solver": {"type": []}}, {"solver": {"type": "Prox", "mu": {}}}]
            )
        return json.dumps(fields) if self._rng.random() < 0.9 else self.one(["[" * 100_000, "9" * 10_000, "{}", "[1]"])

    def record(self, record):
        """Return a record with one entry replaced, renamed or gone."""
        entries = dict(record.items())
        name = self.one([*entries, "more"])
        old = entries.pop(name, next(iter(record.values()), MODEL["w"]))
        to = self.one([name, name, name, "more", "", "num-examples", "loss", "request", "w" * 1000])
        if isinstance(record, ArrayRecord):
            return ArrayRecord(entries | ({to: self.array(old)} if self._rng.random() < 0.9 else {}))
        if isinstance(record, MetricRecord):
            return MetricRecord(entries | ({to: self.one(NUMBERS)} if self._rng.random() < 0.9 else {}))
        new = self.request() if name == "request" and self._rng.random() < 0.8 else self.one(SETTINGS)
        return ConfigRecord(entries | ({to: new} if self._rng.random() < 0.9 else {}))

    def message(self, content):
        """Return the message, spoilt."""
        records = dict(content.items())
        for _ in range(int(self._rng.integers(1, 4))):
            name = self.one(list(records)) if records else "arrays"
            record = records.pop(name, MODEL)
            to = self.one(
                [name] * 5 + ["arrays", "update", "payload", "metrics", "loss", "fedweave", "memory", "", "more"]
            )
            if self._rng.random() < 0.95:
                records[to] = self.record(record) if self._rng.random() < 0.9 else type(record)()
            if self._rng.random() < 0.05:
                records[name] = record
        return RecordDict(records)


@pytest.mark.parametrize("name", [*ANSWERS, *QUESTIONS])
def test_rubbish_in_the_pieces_of_a_message(name):
    """Every piece is something that Flower can send; their whole is not what was agreed."""
    spoil, valid, taken = Spoilt(len(name)), (ANSWERS | QUESTIONS)[name], 0
    with little_memory():
        for _ in range(EACH):
            taken += read(spoil.message(valid))
    assert 0 < taken < EACH * len(READERS)


def test_rubbish_as_a_partial_update():
    channels = channels_of(LAYOUT)
    valid = bytes(encode(channels, X, np.array([True, True, False])))
    taken = 0
    for content in rubbish(7, valid):
        try:
            update, kept = decode(channels, content)
        except fw.BadInput:  # the one answer there is; anything else ends the test
            continue
        assert (update.shape, kept.shape) == (X.shape, (channels.count,))
        assert not update[~channels.spread(kept)].any()
        taken += 1
    assert taken


CODECS = {
    "top-k": ErrorFeedback(TopK(0.3)),
    "quantised top-k": TopK(0.4, Quantized(3)),
    "random": RandomK(0.5),
    "quantised": Quantized(4, bucket=4),
}


@pytest.mark.parametrize("name", CODECS)
def test_rubbish_as_the_payload_of_a_codec(name):
    """Read as the server does: what has the right length and is a payload gives an update, all else one short line."""
    upload, out = CODECS[name], np.zeros(LAYOUT.dim, np.float32)
    expected = Expected(upload, ClientModel(LAYOUT), None)
    rng, said, taken = np.random.default_rng(1), set(), 0
    valid = bytes(upload.encode(X, X, X, None, None, rng, ClientModel(LAYOUT)).payload)
    for n, content in enumerate(rubbish(len(name), valid)):
        content = content if n % 4 else rng.bytes(len(valid))
        try:
            read_answer(answer(ABOUT, TENSORS, X, content), TENSORS, X, out, MOST, expected)
            taken += 1
        except Unfit as e:
            said.add(str(e))
    assert taken
    assert said
    assert all(line.isprintable() and len(line) < 300 and "Error" not in line for line in said)


LARGE = Layout(names=("w",), shapes=((500, 500),), parameters=250_000)  # a megabyte
TEN = np.zeros(10 * LARGE.dim, np.float32)
FITTING = packed(np.zeros((500, 500), np.float32))


def claims(count):
    """Return the bytes of a small array whose header claims to be of so many values."""
    return Spoilt(0).headed(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}")


TOO_LARGE = {
    "2^40 values claimed": {"update": ArrayRecord({"w": Packed("float32", (500, 500), NUMPY, claims(2**40))})},
    "2^40 values announced": {"update": ArrayRecord({"w": Packed("float32", (2**40,), NUMPY, claims(2**40))})},
    "10 times the values": {"update": ArrayRecord({"w": packed(TEN)})},
    "10 times the bytes": {"update": ArrayRecord({"w": Packed("float32", (500, 500), NUMPY, packed(TEN).data)})},
    "one more tensor": {"update": ArrayRecord({"w": FITTING, "more": packed(TEN)})},
    "one more set of arrays": {"update": ArrayRecord({"w": FITTING}), "more": ArrayRecord({"w": packed(TEN)})},
    "a payload of 2^40 bytes": {"payload": ArrayRecord({"payload": Packed("uint8", (2**40,), NUMPY, claims(2**40))})},
    "a payload 10 times the model": {"payload": ArrayRecord({"payload": packed(TEN.view(np.uint8))})},
    "a list for a number": {
        "update": ArrayRecord({"w": FITTING}),
        "more": MetricRecord({"num-examples": [0.5] * 10**5}),
    },
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_too_large_is_refused_before_anything_is_allocated(name):
    """The message is there already, in Flower's hands; we take no more memory for it than a tenth of a model."""
    content = RecordDict({"metrics": MetricRecord({"num-examples": 20}), **TOO_LARGE[name]})
    tensors, x, out, sent = Tensors.of_layout(LARGE), *(np.zeros(LARGE.dim, t) for t in (np.float32, np.float32, bool))
    payload = Expected(UPLOAD, ClientModel(LARGE), 0.0, sent) if "payload" in TOO_LARGE[name] else None
    channels_of(LARGE)
    tracemalloc.start()
    try:
        with pytest.raises(Unfit):
            read_answer(content, tensors, x, out, MOST, payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < x.nbytes / 10
    assert not out.any()
