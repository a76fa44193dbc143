"""TopK, RandomK and Quantized: right on average by enumeration and by counting, variances as in the papers, sizes.

What is decoded here comes from bytes, as the server reads it.
"""

import re
from itertools import combinations, product
from math import ceil, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedweave.core.records import Layout
from fedweave.core.settings import BadInput
from fedweave.upload import ErrorFeedback, Quantized, RandomK, TopK, sparse
from fedweave.upload.bits import positions_size
from fedweave.upload.codec import ClientModel
from fedweave.upload.names import parse
from fedweave.upload.sparse import largest, random_positions

V = np.array([3.0, -1.3, 0.25, 1.9], np.float32)


def model(dim, buffers=0, dtype="float32"):
    layout = Layout(names=("w", "running_var"), shapes=((dim,), (buffers,)), parameters=dim)
    return ClientModel(layout, dtype=np.dtype(dtype))


def sent(codec, update, rng=None, buffers=0):
    """Return what the server reads of an update."""
    of = model(update.size - buffers, buffers, update.dtype)
    rng = np.random.default_rng(0) if rng is None else rng
    payload = codec.encode(update, np.zeros_like(update), np.zeros_like(update), None, None, rng, of).payload
    assert len(payload) == codec.size(of, None)
    found, mask = codec.decode(payload, of)
    assert mask is None
    assert (found.dtype, found.shape) == (update.dtype, update.shape)
    return found


class Given:
    """A generator that draws what it is told."""

    def __init__(self, draws):
        self.draws = np.asarray(draws, np.float32)

    def random(self, shape, dtype):
        now, self.draws = np.split(self.draws, [np.prod(shape)])
        return now.reshape(shape).astype(dtype)


DOWN, UP = 1 - 2**-24, 0.0  # a draw below the fraction rounds up


# Quantized

QUANTIZED = [
    Quantized(bits, bucket, norm) for bits in (2, 3, 8) for bucket in (1, 2, 3, 4, 512) for norm in ("max", "l2")
]


@pytest.mark.parametrize("codec", QUANTIZED, ids=str)
def test_quantised_entries_are_right_on_average_over_all_outcomes(codec):
    """The sixteen outcomes of four entries, with probabilities by the paper's formula."""
    s, norms = 2 ** (codec.bits - 1) - 1, np.zeros(4)
    for i in range(0, 4, codec.bucket):
        part = V[i : i + codec.bucket].astype(float)
        norms[i : i + codec.bucket] = np.abs(part).max() if codec.norm == "max" else np.linalg.norm(part)
    scaled = V / norms * s
    up = scaled - np.floor(scaled)
    up[np.abs(scaled - np.round(scaled)) < 1e-6] = 0  # on a level: only one outcome
    mean, square, outcomes = np.zeros(4), 0.0, set()
    for rises in product((False, True), repeat=4):
        chance = np.prod(np.where(rises, up, 1 - up))
        found = sent(codec, V, Given(np.where(rises, UP, DOWN))) if chance else np.zeros(4)
        level = np.where(rises, np.ceil(scaled - 1e-6), np.floor(scaled + 1e-6))
        assert not chance or np.allclose(found, level / s * norms, rtol=1e-6)
        mean, square = mean + chance * found, square + chance * np.sum((found - V) ** 2)
        outcomes.add(tuple(found)) if chance else None
    assert np.allclose(mean, V, rtol=1e-5)
    assert len(outcomes) == 2 ** np.count_nonzero(up)
    b = min(codec.bucket, 4)
    assert square <= min(b / s**2, sqrt(b) / s) * np.sum(V**2) * (1 + 1e-6), "Lemma 3.1"


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_a_hundred_thousand_quantised_encodings_have_the_right_mean(norm):
    """Each bucket is an encoding of its own: four entries, a hundred thousand times."""
    n, codec = 100_000, Quantized(3, bucket=4, norm=norm)
    found = sent(codec, np.tile(V, n), np.random.default_rng(5)).reshape(n, 4)
    error = found.std(axis=0) / sqrt(n)
    assert (np.abs(found.mean(axis=0) - V) <= 4 * error + 1e-6).all()
    pairs = np.corrcoef(found[:, error > 0].T)  # entries are rounded independently
    assert np.abs(pairs - np.eye(len(pairs))).max() < 5 / sqrt(n)


VECTORS = arrays(np.float32, st.integers(1, 40), elements=st.floats(-100, 100, width=32, allow_subnormal=False))


@given(VECTORS, st.integers(2, 8), st.integers(1, 50), st.sampled_from(["max", "l2"]))
def test_the_variance_of_quantised_vectors_is_within_lemma_3_1(v, bits, bucket, norm):
    codec = Quantized(bits, bucket, norm)
    low, high = (sent(codec, v, Given(np.full(v.size, draw))).astype(float) for draw in (DOWN, UP))
    largest_entry = float(np.abs(v).max())
    tiny = 1e-6 * largest_entry  # roundings of float32
    assert (low <= v + tiny).all()
    assert (v <= high + tiny).all()
    variance = ((high - v) * (v - low)).sum()  # of two outcomes around their mean
    s, b = 2 ** (bits - 1) - 1, min(bucket, v.size)
    assert variance <= min(b / s**2, sqrt(b) / s) * (v.astype(float) ** 2).sum() + v.size * tiny * largest_entry


@given(VECTORS, st.integers(2, 8), st.integers(1, 50))
def test_rounded_to_the_nearest_it_leaves_out_at_most_all_but_the_largest_of_each_bucket(v, bits, bucket):
    codec = Quantized(bits, bucket, "l2").contraction()
    found = sent(codec, v, rng=Given([])).astype(float)  # nothing is drawn
    for i in range(0, v.size, bucket):
        part, largest_entry = v[i : i + bucket].astype(float), float(np.abs(v[i : i + bucket]).max())
        step, error = largest_entry / (2 ** (bits - 1) - 1), np.abs(found[i : i + bucket] - part)
        assert (error <= np.minimum(np.abs(part), step / 2) + 1e-6 * largest_entry).all()
        assert (error**2).sum() <= (1 - 1 / part.size) * (part**2).sum() + 1e-5 * part.size * largest_entry**2


def test_zeros_and_the_extremes_of_float32_are_quantised_too():
    assert not sent(Quantized(8), np.zeros(700, np.float32)).any(), "never by chance"
    for scale in (1e-40, 1e-30, 1e30, 3e38 / 3):
        for norm in ("max", "l2"):
            v = (V * np.float32(scale)).astype(np.float32)
            if norm == "l2" and scale > 1e38 / 3:
                continue  # the length itself is beyond float32
            found = sent(Quantized(8, norm=norm), v)
            assert np.isfinite(found).all()
            assert np.abs(found - v).max() <= (1 + 1e-3) * np.linalg.norm(v.astype(float)) / 127


# TopK


@given(VECTORS, st.floats(0.01, 1))
def test_top_k_sends_the_largest_and_leaves_at_most_its_share(v, share):
    codec = TopK(share)
    k, found = codec.count(v.size), sent(codec, v)
    order = sorted(range(v.size), key=lambda i: (-abs(v[i]), i))[:k]  # ties: the first
    assert np.array_equal(found, np.where(np.isin(np.arange(v.size), order), v, 0))
    left, whole = np.sum((found.astype(float) - v) ** 2), np.sum(v.astype(float) ** 2)
    assert left <= (1 - k / v.size) * whole * (1 + 1e-12)
    assert largest(v, k).tolist() == sorted(order)


def test_the_values_of_a_top_k_may_be_quantised():
    v = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    codec = TopK(0.05, values=Quantized(6))
    where = largest(v, 50)
    found = sent(codec, v)
    assert not np.delete(found, where).any()
    assert 0 < np.abs(found[where] - v[where]).max() <= np.abs(v).max() / 31
    assert np.array_equal(found[where], sent(Quantized(6), v[where]))
    assert codec.size(model(1000), None) == 4 + ceil(50 * 6 / 8) + positions_size(1000, 50)


# RandomK


def test_random_entries_are_right_on_average_over_all_sets(monkeypatch):
    """Every set of two of four, and both its mean and its variance as the definition has them."""
    for k in (1, 2, 3, 4):
        sets = list(combinations(range(4), k))
        found = []
        for chosen in sets:
            monkeypatch.setattr(sparse, "random_positions", lambda *_, chosen=chosen: np.array(chosen))
            found.append(sent(RandomK(k / 4), V))
        assert np.allclose(np.mean(found, axis=0), V, rtol=1e-6)
        variance = np.mean([np.sum((row - V) ** 2) for row in found])
        assert np.isclose(variance, (4 / k - 1) * np.sum(V**2))
        plain = RandomK(k / 4, unbiased=False)
        left = []
        for chosen in sets:
            monkeypatch.setattr(sparse, "random_positions", lambda *_, chosen=chosen: np.array(chosen))
            left.append(np.sum((sent(plain, V) - V) ** 2))
        assert np.isclose(np.mean(left), (1 - k / 4) * np.sum(V**2))


@pytest.mark.parametrize(("dim", "count", "n"), [(4, 2, 100_000), (5, 4, 5_000)])
def test_a_hundred_thousand_seeds_draw_every_set_equally_often(dim, count, n):
    seeds = np.random.default_rng(dim).integers(2**63, size=n).tolist()
    rows = np.array([random_positions(seed, dim, count) for seed in seeds])
    _, times = np.unique(rows, axis=0, return_counts=True)
    p = 1 / len(list(combinations(range(dim), count)))
    assert times.size == round(1 / p)
    assert (np.abs(times - n * p) <= 4 * sqrt(n * p * (1 - p))).all()
    values = np.where((rows[:, :, None] == np.arange(dim)).any(axis=1), dim / count, 0) * np.arange(1, dim + 1)
    assert (np.abs(values.mean(axis=0) - np.arange(1, dim + 1)) <= 4 * values.std(axis=0) / sqrt(n)).all()


def test_the_seed_is_drawn_at_the_clients_address_and_each_round_has_another():
    v, codec = np.arange(1, 1001, dtype=np.float32), RandomK(0.1)
    one, same, other = (sent(codec, v, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one != 0, other != 0)
    assert np.array_equal(one[one != 0], v[one != 0] * np.float32(10))


def philox(key, blocks):
    """Philox4x64-10 as Salmon et al. (2011) write it, counters 1, 2, … with the address of uploads above them."""
    mask, found = 2**64 - 1, []
    for n in range(1, blocks + 1):
        c, k = [n, 0, 9, 0], [key, 0]
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [b >> 64 ^ c[1] ^ k[0], b & mask, a >> 64 ^ c[3] ^ k[1], a & mask]
            k = [k[0] + 0x9E3779B97F4A7C15 & mask, k[1] + 0xBB67AE8584CAA73B & mask]
        found += c
    return found


@pytest.mark.parametrize("dim", [2, 37, 64, 1000])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8, 1.0])
def test_positions_are_those_of_the_published_generator_whatever_numpy_is_there(dim, share):
    """The rule by hand, on lists: the smallest bytes, and of those with the next one some in the same way."""
    count, seed = max(1, round(share * dim)), 2**64 - 12345
    words, taken, candidates = iter(philox(seed, dim)), set(), list(range(dim))
    while len(taken) < count:
        content = b"".join(next(words).to_bytes(8, "little") for _ in range(-(-len(candidates) // 8)))
        by_byte = [[c for c, key in zip(candidates, content, strict=False) if key == byte] for byte in range(256)]
        candidates = []
        for group in by_byte:
            if len(taken) + len(group) > count:
                candidates = group
                break
            taken.update(group)
    assert random_positions(seed, dim, count).tolist() == sorted(taken)


# All of them

CODECS = {
    "top-k": TopK(0.1), "one": TopK(0.001), "all": TopK(1.0), "half": TopK(0.5),
    "quantised top-k": TopK(0.2, Quantized(3)),
    "random": RandomK(0.1), "all at random": RandomK(1.0), "quantised random": RandomK(0.3, Quantized(5, 4)),
    "2 bits": Quantized(2), "3 bits": Quantized(3, bucket=5), "8 bits": Quantized(8, 7, "l2"),
    "feedback": ErrorFeedback(TopK(0.1)), "feedback of random": ErrorFeedback(RandomK(0.4)),
}  # fmt: skip


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_payload_has_the_size_that_was_told_beforehand(codec, dtype):
    for dim in (1, 2, 3, 8, 9, 63, 64, 65, 1000):
        for buffers in (0, 3):
            update = np.random.default_rng(dim).standard_normal(dim + buffers).astype(dtype)
            found = sent(codec, update, buffers=buffers)
            assert np.array_equal(found[dim:], update[dim:]), "buffers travel as they are"
            assert found[:dim].any()


def test_sizes_by_hand():
    of = model(10**6)
    assert TopK(0.01).size(of, None) == 40_000 + ceil((10_000 + (10**6 - 1 >> 6)) / 8) + 10_000 * 6 // 8 == 50_703
    assert TopK(0.5).size(of, None) == 2_000_000 + 125_000
    assert TopK(1.0).size(of, None) == 4_000_000
    assert TopK(0.01, Quantized(4)).size(of, None) == 50_703 - 40_000 + 4 * 20 + 5_000
    assert RandomK(0.1).size(of, None) == 400_008
    assert Quantized(4).size(of, None) == 4 * 1954 + 500_000
    assert Quantized(2).size(of, None) == 4 * 1954 + 250_000
    assert ErrorFeedback(TopK(0.01)).size(of, None) == 50_703


def test_the_page_has_the_bytes_of_a_million_parameters():
    guide = (Path(__file__).parents[2] / "docs/how-to/compression.md").read_text()
    rows = re.findall(r"^\| `([a-z]+:[\d.:]+)` \| `(.+?)` \|.*\| ([\d,]+) \| ([\d.]+) % \|$", guide, re.MULTILINE)
    assert len(rows) == 9
    for form, part, size, percent in rows:
        codec = parse(form)
        assert codec == eval(part, {"TopK": TopK, "RandomK": RandomK, "Quantized": Quantized})
        assert codec.size(model(10**6), None) == int(size.replace(",", ""))
        assert f"{int(size.replace(',', '')) / 40_000:.2f}" == percent


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_never_lost_on_the_way(codec, bad):
    """So that admission refuses the client by name, in the simulator and on a fleet."""
    for place in (0, 7, 99):
        update = np.linspace(-1, 1, 100, dtype=np.float32)
        update[place] = bad
        assert not np.isfinite(sent(codec, update)).all()


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_random_bytes_are_an_update_or_refused_in_a_sentence(codec):
    rng, of = np.random.default_rng(3), model(50, 2)
    update = rng.standard_normal(52).astype(np.float32)
    valid = bytes(codec.encode(update, update, update, None, None, rng, of).payload)
    size, refused = len(valid), []
    for n in range(600):
        content = bytearray(valid) if n % 2 else bytearray(rng.bytes(int(rng.integers(0, 2 * size)) if n % 4 else size))
        if n % 2:
            for at in rng.integers(0, size, int(rng.integers(1, 5))):
                content[at] = rng.integers(256)
        try:
            found, _ = codec.decode(memoryview(content), of)
        except BadInput as e:
            refused.append(str(e))
            continue
        assert (found.shape, found.dtype, len(content)) == (update.shape, np.float32, size)
    assert refused
    assert all(said.isprintable() and len(said) < 200 for said in refused)


def test_what_is_no_payload_of_a_codec_is_named():
    of = model(100)
    update = np.linspace(-1, 1, 100, dtype=np.float32)
    rng = np.random.default_rng(0)
    for codec in CODECS.values():
        payload = codec.encode(update, update, update, None, None, rng, of).payload
        for wrong in (payload[:-1], payload + b"0", b""):
            with pytest.raises(BadInput, match=r"has \d+ bytes\. Got \d+\.$"):
                codec.decode(wrong, of)
    message = bytearray(Quantized(4).encode(update, update, update, None, None, rng, of).payload)
    message[-1] = 0xFF
    with pytest.raises(BadInput, match="15 codes"):
        Quantized(4).decode(message, of)
    message[-1] = 0
    message[:4] = np.float32(-1).tobytes()
    with pytest.raises(BadInput, match="no negative norms"):
        Quantized(4).decode(message, of)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TopK(0), "greater than 0"),
        (lambda: RandomK(1.5), "less than or equal to 1"),
        (lambda: Quantized(1), "greater than or equal to 2"),
        (lambda: Quantized(9), "less than or equal to 8"),
        (lambda: Quantized(4, bucket=0), "greater than 0"),
        (lambda: Quantized(4, norm="l1"), "'max' or 'l2'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, words):
    with pytest.raises(BadInput, match=words):
        make()
