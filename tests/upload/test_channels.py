"""Channels: what is sent together, how many of each layer, and which; and their way through bytes."""

import numpy as np
import pytest
from torch import nn

from fedweave.core.settings import BadInput
from fedweave.local.torch.flat_module import FlatModule
from fedweave.upload.channels import channels_of
from fedweave.upload.importance import channel_counts, importance, most_important, scores
from fedweave.upload.wire import decode, encode, encoded_size


def normed():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, bias=False), nn.GroupNorm(2, 6),
        nn.Flatten(), nn.Linear(96, 5),
    )  # fmt: skip


LAYOUT = FlatModule(normed()).layout
CHANNELS = channels_of(LAYOUT)


def test_a_channel_is_a_row_its_bias_and_its_norm_and_no_input_of_the_next_layer():
    assert CHANNELS.widths == (4, 6, 5)
    assert CHANNELS.entries.tolist() == [9 + 1 + 4] * 4 + [36 + 2] * 6 + [97] * 5
    kept = np.zeros(15, bool)
    kept[2] = True  # the third channel of the first layer
    sent = LAYOUT.split(CHANNELS.spread(kept))
    for name in ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"):
        assert sent[name][2].all(), name
        assert sent[name].sum() == sent[name][2].size
    assert not sent["3.weight"].any(), "how the next layer reads it belongs to that layer"
    kept[:] = False
    kept[4] = True
    sent = LAYOUT.split(CHANNELS.spread(kept))
    assert sent["3.weight"][0].all(), "all inputs, also of channels that were not sent"
    assert sent["4.weight"][0]
    assert not sent["0.weight"].any()


def test_whatever_is_no_layer_has_a_channel_per_entry():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.free = nn.Parameter(nn.Linear(1, 1).weight[0, 0].detach()), nn.Linear(3, 3).bias

    assert channels_of(FlatModule(Odd()).layout).widths == (1, 3)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.37, 0.5, 0.8, 0.9, 1.0])
def test_as_many_channels_as_promised_and_one_at_least(rate):
    widths, exact = np.array([4, 6, 5]), np.array([4, 6, 5]) * (1 - rate)
    nearest, up, down, share = (channel_counts(CHANNELS, rate, r) for r in ("nearest", "up", "down", "exact"))
    assert (nearest == np.maximum(np.floor(exact + 0.5), 1)).all()
    assert (up >= exact - 1e-9).all()
    assert (np.maximum(down, 1) <= np.maximum(exact, 1) + 1e-9).all()
    assert (down <= share).all()
    assert (share <= up).all()
    for counts in (nearest, up, down, share):
        assert (counts >= 1).all()
        assert (counts <= widths).all()
        kept = most_important(CHANNELS, np.random.default_rng(0).random(15), counts)
        assert [int(k.sum()) for k in np.split(kept, [4, 10])] == counts.tolist()
    floor = np.maximum(down, 1) @ [14, 38, 97]
    assert share @ [14, 38, 97] <= max((1 - rate) * CHANNELS.dim, floor) + 1e-9
    if rate == 0:
        assert (nearest == widths).all()


def test_more_dropout_never_sends_more():
    counts = [channel_counts(CHANNELS, r) for r in np.linspace(0, 1, 101)]
    assert (np.diff(counts, axis=0) <= 0).all()


def test_importance_by_hand_and_without_infinities():
    w, after = np.array([[2.0, -1.0], [0.0, 4.0]]), np.array([[3.0, -1.0], [0.5, 4.0]])
    least = 1e-3 * np.sqrt(21 / 4) + 1e-12
    expected = np.array([[1 * 3 / 2, 0], [0.5 * 0.5 / least, 0]])
    assert np.allclose(np.abs(importance(w, after)), expected)
    zero = np.zeros((2, 3))
    assert np.isfinite(importance(zero, zero + 1)).all()
    assert not importance(zero, zero).any()


def test_choices_of_channels():
    rng = np.random.default_rng(0)
    start = rng.standard_normal(CHANNELS.dim)
    end, one = start.copy(), np.ones(15)
    t = CHANNELS.tensors[0]
    t.of(end)[1] += 3  # the second channel moves most
    t.of(end)[3] += 0.01
    t.of(start)[0] = t.of(end)[0] = 50  # the first is largest
    by = {c: scores(c, CHANNELS, start, end, one, rng)[:4] for c in ("importance", "max", "delta", "ordered", "random")}
    assert np.argmax(by["importance"]) == np.argmax(by["delta"]) == 1
    assert np.argmax(by["max"]) == 0
    assert np.argsort(-by["ordered"]).tolist() == [0, 1, 2, 3]
    assert np.unique(by["random"]).size == 4
    rare = one.copy()
    rare[3] = 1e-6  # hardly anyone has the last one: what is known of it counts more
    assert np.argmax(scores("importance", CHANNELS, start, end, rare, rng)[:4]) == 3
    only_bias = start.copy()
    CHANNELS.tensors[1].of(only_bias)[2] += 9
    assert not scores("importance", CHANNELS, start, only_bias, one, rng).any(), "biases go along, they do not count"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_partial_update_survives_its_way_through_bytes(dtype):
    rng = np.random.default_rng(1)
    for rate in (0.0, 0.4, 0.8):
        kept = most_important(CHANNELS, rng.random(15), channel_counts(CHANNELS, rate))
        update = rng.standard_normal(CHANNELS.dim).astype(dtype)
        message = encode(CHANNELS, update, kept)
        assert (
            len(message)
            == encoded_size(CHANNELS, kept, update.itemsize)
            == 8 + update.itemsize * (kept @ CHANNELS.entries)
        )
        back, channels = decode(CHANNELS, message, dtype)
        assert np.array_equal(channels, kept)
        assert np.array_equal(back, np.where(CHANNELS.spread(kept), update, 0))


def test_a_damaged_message_is_refused():
    kept = np.arange(15) % 2 == 0
    message = encode(CHANNELS, np.ones(CHANNELS.dim, np.float32), kept)
    for wrong, words in (
        (message[:7], "8 bytes of bits"),
        (message[:-1], "Got"),
        (message + b"0", "Got"),
        (bytes([message[0] ^ 1]) + message[1:], "bytes. Got"),
        (message[:1] + bytes([message[1] | 128]) + message[2:], "beyond the 15"),
        (message[:7] + bytes([1]) + message[8:], "beyond the 15"),
    ):
        with pytest.raises(BadInput, match=words):
            decode(CHANNELS, wrong)
    with pytest.raises(ValueError, match="shapes"):
        encode(CHANNELS, np.ones(3, np.float32), kept)
