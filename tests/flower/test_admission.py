"""What a client sends is not believed: names, shapes, types, sizes and numbers are checked before anything is used."""

import re

import numpy as np
import pytest
from flwr.app import Array as Packed
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fedweave as fw
from fedweave import flower
from fedweave.core.records import Layout
from fedweave.fleet.server.terms import Terms
from fedweave.fleet.wire.seal import sealed
from fedweave.fleet.wire.tensors import Tensors, Unfit, opened, packed
from flower.rehearsal import BAD, CLIENTS, Tampered, app, asked_in, experiment, reasons, run

arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@given(arrays, st.booleans())
def test_arrays_travel_as_they_are(values, fortran):
    values = np.asfortranarray(values) if fortran and values.ndim else values
    for sent in (packed(values), Packed(np.asarray(values))):  # our own and Flower's
        found = opened("w", sent)
        assert found.dtype == values.dtype
        assert found.shape == values.shape
        assert np.array_equal(found, values, equal_nan=values.dtype.kind == "f")
    assert np.array_equal(packed(values).numpy(), values, equal_nan=values.dtype.kind == "f"), "Flower reads ours"


@given(st.data())
def test_no_byte_can_make_the_server_do_anything_but_refuse_or_read_as_many_values(data):
    good = packed(np.arange(6, dtype=np.float32).reshape(2, 3))
    content = bytearray(good.data)
    kind = data.draw(st.sampled_from(["flip", "cut", "grow"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    content = content[:at] if kind == "cut" else content + b"0" * (kind == "grow")
    sent = Packed(good.dtype, good.shape, good.stype, bytes(content))
    if kind != "flip":
        with pytest.raises(Unfit, match="w"):
            opened("w", sent)
        return
    try:
        found = opened("w", sent)
    except Unfit:
        assert at < len(content) - 24, "values may be anything"
    else:
        assert (found.shape, found.dtype) == ((2, 3), np.float32)


def test_a_header_that_claims_a_terabyte_is_refused_before_anything_is_allocated():
    small = packed(np.zeros(4, np.float32))
    lie = small.data.replace(b"(4,), }         ", b"(274877906944,)}")
    assert lie != small.data
    with pytest.raises(Unfit, match="sent w with 16 bytes for 274877906944 values of type float32"):
        opened("w", Packed("float32", (274877906944,), small.stype, lie))
    objects = Packed("object", (1,), small.stype, _npy(np.array([None])))
    with pytest.raises(Unfit, match=r"w .*object"):
        opened("w", objects)
    with pytest.raises(Unfit, match="'pickle', which is not NumPy's format"):
        opened("w", Packed("float32", (4,), "pickle", small.data))


def _npy(values):
    from io import BytesIO

    out = BytesIO()
    np.save(out, values, allow_pickle=True)
    return out.getvalue()


def changed(arrays, name, values):
    return {n: packed(np.asarray(values)) if n == name else a for n, a in arrays.items()}


def nan(a):
    values = a["fc1.weight"].numpy().copy()
    values[3, 5] = np.nan
    return values


UPDATES = {
    "NaN": (
        lambda a: changed(a, "fc1.weight", nan(a)),
        r"client 2: 1 of \d+ values are not finite, first in fc1.weight\[3, 5\]",
    ),
    "infinite": (lambda a: changed(a, "fc1.bias", np.full(10, np.inf, np.float32)), r"client 2: 10 of \d+ values"),
    "stretched": (
        lambda a: changed(a, "fc1.bias", np.zeros(1, np.float32)),
        r"has fc1.bias of shape \(1,\), the model \(10,\)",
    ),
    "shape": (
        lambda a: changed(a, "fc1.bias", np.zeros(11, np.float32)),
        r"has fc1.bias of shape \(11,\), the model \(10,\)",
    ),
    "turned": (lambda a: changed(a, "fc1.weight", a["fc1.weight"].numpy().T), r"has fc1.weight of shape"),
    "whole": (
        lambda a: changed(a, "fc1.bias", np.zeros(10, np.int32)),
        "has fc1.bias of type int32, the model float32",
    ),
    "too large": (lambda a: changed(a, "fc1.bias", np.full(10, 1e300)), r"10 of \d+ values are not finite"),
    "missing": (lambda a: {"fc1.bias": a["fc1.bias"]}, "client 2: lacks the tensor 'fc1.weight'"),
    "extra": (lambda a: {**a, "more": a["fc1.bias"]}, "client 2: has a tensor 'more' that the model does not have"),
    "liar": (
        lambda a: {**a, "fc1.bias": Packed("float32", (10,), "numpy.ndarray", a["fc1.weight"].data)},
        "announced fc1.bias as",
    ),
}
NUMBERS = {
    "num-examples": [1e15, 0, -1, float("nan"), float("inf")],
    "steps": [-3, float("inf"), 2.0**31, 1000.0],
    "loss": [float("inf"), float("nan")],
    "its-own": [float("nan"), [1.0, float("inf")]],
    "first-gradient": [-1.0],
}


def bad_app(change_update=None, **numbers):
    """A client app that tampers with what it sends."""

    def tampered(message, context, call_next):
        reply = call_next(message, context)
        if not asked_in(message):
            return reply
        update, metrics = reply.content["update"], reply.content["metrics"]
        if change_update:
            update = ArrayRecord({**change_update(dict(update.items()))})
        told = {name: value for name, value in {**metrics, **numbers}.items() if value is not None}
        content = RecordDict({"update": update, "metrics": MetricRecord(told)})
        return Message(sealed(content, asked_in(message), BAD), reply_to=message)

    good = app()

    def handle(message, context):
        return tampered(message, context, good)

    return handle


def lost_instead():
    """The same rounds with client 2 simply not heard."""
    fleet = flower.LocalGrid(app(), CLIENTS, fate=lambda client, m: "raises" if client == BAD and asked_in(m) else "")
    return run(experiment(fw.methods.fedavg(CLIENTS), rounds=2), fleet).summary["digest"]


CASES = [pytest.param(u, {}, why, id=name) for name, (u, why) in UPDATES.items()] + [
    pytest.param(None, {name: value}, f"client 2: reports {name} = ", id=f"{name}={value}")
    for name, values in NUMBERS.items()
    for value in values
]


@pytest.mark.parametrize(("update", "numbers", "why"), CASES)
def test_a_bad_answer_is_refused_by_name_and_changes_nothing(update, numbers, why, tmp_path):
    result = run(
        experiment(fw.methods.fedavg(CLIENTS), rounds=2),
        Tampered(bad_app(update, **numbers)),
        out=tmp_path / "run",
    )
    refused = reasons(tmp_path / "run")
    assert [r for r, _ in refused] == [1, 2]
    assert all(re.search(why, sentence) for _, sentence in refused), refused
    assert result.rounds["refused"].tolist() == [1, 1]
    assert result.clients["received"].reshape(2, -1).tolist() == [[1, 1, 0, 1, 1, 1]] * 2
    assert result.summary["digest"] == lost_instead()


def flipped(arrays):
    """One bit of one value, which stays a check_cohort number."""
    data = bytearray(arrays["fc1.bias"].data)
    data[-1] ^= 1
    return {**arrays, "fc1.bias": Packed("float32", (10,), "numpy.ndarray", bytes(data))}


def cut(arrays):
    short = arrays["fc1.bias"].data[:-40]
    return {**arrays, "fc1.bias": Packed("float32", (10,), "numpy.ndarray", short)}


def test_an_answer_that_is_damaged_repeated_or_somebody_elses_is_refused(tmp_path):
    """The seal was made for the honest answer: each kind of disturbance comes after it."""
    honest, kept = app(), {}

    def disturbed(message, context):
        reply = honest(message, context)
        if not (r := asked_in(message)):
            return reply
        kept[r] = reply.content
        content = reply.content
        if r in (2, 3):
            content["update"] = ArrayRecord({**(flipped if r == 2 else cut)(dict(content["update"].items()))})
        elif r == 4:
            content["metrics"]["num-examples"] = 1 + content["metrics"]["num-examples"]
        elif r == 5:
            content = kept[1]
        elif r == 6:
            content["seal"]["client"] = 3
        elif r == 7:
            del content["seal"]
        return Message(content, reply_to=message)

    result = run(experiment(fw.methods.fedavg(CLIENTS), rounds=7), Tampered(disturbed), out=tmp_path / "run")
    damaged = "client 2: its answer does not have the digest that it had when it was sent"
    assert reasons(tmp_path / "run") == [
        *((r, damaged) for r in (2, 3, 4)),
        (5, "client 2: replayed: its answer is for dispatch 1, this is 5"),
        (6, "client 2: its answer is that of client 3"),
        (7, "client 2: sent its update without a seal; use the same release of fedweave on both sides"),
    ]
    assert result.rounds["refused"].tolist() == [0, 1, 1, 1, 1, 1, 1]
    lost = flower.LocalGrid(
        app(), CLIENTS, fate=lambda client, m: "raises" if client == BAD and asked_in(m) > 1 else ""
    )
    assert result.summary["digest"] == run(experiment(fw.methods.fedavg(CLIENTS), rounds=7), lost).summary["digest"]


def test_a_client_that_is_refused_again_and_again_is_not_asked_any_more(tmp_path):
    given = experiment(fw.methods.fedavg(CLIENTS), rounds=5, quarantine=2)
    result = run(given, Tampered(bad_app(lambda a: changed(a, "fc1.weight", nan(a)))), out=tmp_path / "run")
    assert result.rounds["refused"].tolist() == [1, 1, 0, 0, 0]
    assert result.rounds["asked"].tolist() == [6, 6, 5, 5, 5]


@pytest.mark.parametrize(
    ("variance", "why"),
    [
        (-1.0, "reports variance = -1.0"),
        (float("nan"), "reports variance = nan"),
        (None, "does not report the variance"),
    ],
)
def test_a_variance_that_was_asked_for_must_come_and_make_sense(variance, why, tmp_path):
    method = fw.Method(fw.sample.FirstEveryone(fw.sample.PracticalDelta(CLIENTS)))
    run(experiment(method, rounds=1), Tampered(bad_app(variance=variance)), out=tmp_path / "run")
    ((_, sentence),) = reasons(tmp_path / "run")
    assert sentence.startswith(f"client 2: {why}")


@pytest.mark.parametrize("value", [1e15, 0, float("nan")])
def test_a_client_that_lies_about_its_samples_does_not_get_in(value):
    class Liar(Tampered):
        def _answered(self, message, node):
            reply = super(Tampered, self)._answered(message, node)
            if node == self.nodes[BAD]:
                reply.content["hello"]["num-examples"] = value
            return reply

    with pytest.raises(RuntimeError, match=r"missing are 2\..*client 2 reports num-examples = "):
        run(experiment(), Liar(None), Terms(start_seconds=5))


def test_the_model_of_another_app_travels_whole():
    """Averages lie behind the parameters whatever their place in the record; whole numbers stay outside."""
    record = ArrayRecord(
        {
            "bn.running_var": packed(np.full(2, 3, np.float32)),
            "w": packed(np.arange(4, dtype=np.float16).reshape(2, 2)),
            "bn.num_batches_tracked": packed(np.array(7)),
            "b": packed(np.array([5.0])),
        }
    )
    tensors = Tensors.of_record(record)
    assert tensors.layout == Layout(names=("w", "b", "bn.running_var"), shapes=((2, 2), (1,), (2,)), parameters=5)
    x = np.empty(7, tensors.dtype)
    assert x.dtype == np.float64
    tensors.read(record, x)
    assert x.tolist() == [0, 1, 2, 3, 5, 3, 3]
    back = tensors.record(x + 1, record)
    assert {n: (a.dtype, a.numpy().tolist()) for n, a in back.items()} == {
        "bn.running_var": ("float32", [4, 4]),
        "w": ("float16", [[1, 2], [3, 4]]),
        "bn.num_batches_tracked": ("int64", 7),
        "b": ("float64", [6]),
    }
    assert list(back) == list(record)
    with pytest.raises(ValueError, match="nothing to train"):
        Tensors.of_record(ArrayRecord({"n": packed(np.array(1))}))
