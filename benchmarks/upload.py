"""How fast an update becomes bytes and an update again, in dense parameters per second on one core.

Partial updates: channels of the paper's CNN2 (587,194 parameters), of its widest network with five convolutions, and of
ResNet-18, 60 % kept at random. The other side is the plain way, a boolean mask over the entries (`update[mask]`, and
back), without the bits. Then every codec on normal updates of 10⁶ and 10⁷ parameters; the other side is the whole
update as bytes and back.
One thread, alternating; processor time, the median of the turns. The aim is 100 MB/s for every codec.
Use: python benchmarks/upload.py [--keep 0.6] [--turns 15]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from fedweave import models
from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Layout
from fedweave.core.roles import Parcel, Upload
from fedweave.local.torch.flat_module import FlatModule
from fedweave.upload.channels import Channels, channels_of
from fedweave.upload.codec import ClientModel
from fedweave.upload.everything import Everything
from fedweave.upload.importance import channel_counts, most_important
from fedweave.upload.names import parse
from fedweave.upload.wire import decode, encode

MODELS = ("cnn2", "feddd_a1", "resnet18")
CODECS = "topk:0.01 topk:0.1 topk:0.5 topk:0.01:4 randomk:0.01 randomk:0.1 randomk:0.5 randomk:0.5:4 quantized:2"
CODECS += " quantized:3 quantized:4 quantized:8 ef:topk:0.01 ef:topk:0.01:4 ef:randomk:0.1 ef:quantized:4"
SIZES = (10**6, 10**7)


def seconds(work: Callable[[], Any]) -> float:
    """Return the processor time that the work takes."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(name: str, channels: Channels, keep: float, turns: int) -> dict[str, Any]:
    """Return megabytes of dense parameters per second: encoding, decoding, both, and both by a mask."""
    rng = np.random.default_rng(0)
    update = rng.standard_normal(channels.dim).astype(np.float32)
    kept = most_important(channels, rng.random(channels.count), channel_counts(channels, 1 - keep))
    message, mask = encode(channels, update, kept), channels.spread(kept)
    back, found = decode(channels, message)
    if not (np.array_equal(back, np.where(mask, update, 0)) and np.array_equal(found, kept)):
        raise SystemExit("what was decoded is not what was encoded")

    def by_mask() -> None:
        values, out = update[mask].tobytes(), np.zeros_like(update)
        out[mask] = np.frombuffer(values, np.float32)

    rows = np.array(
        [
            (
                seconds(lambda: encode(channels, update, kept)),
                seconds(lambda: decode(channels, message)),
                seconds(by_mask),
            )
            for _ in range(turns)
        ]
    )
    dense = update.nbytes / 1e6
    both = rows[:, 0] + rows[:, 1]
    return {
        "model": name,
        "parameters": channels.dim,
        "channels": channels.count,
        "message_share": round(len(message) / update.nbytes, 4),
        "encode_MB_per_s": round(dense / float(np.median(rows[:, 0]))),
        "decode_MB_per_s": round(dense / float(np.median(rows[:, 1]))),
        "both_MB_per_s": round(dense / float(np.median(both))),
        "times_as_fast_as_a_mask": round(float(np.median(rows[:, 2] / both)), 2),
    }


def measure_codec(form: str, dim: int, turns: int) -> dict[str, Any]:
    """Return megabytes of dense parameters per second of a codec, and how many times as long as a copy it takes."""
    upload, plain = parse(form), Everything()
    model = ClientModel(Layout(names=("w",), shapes=((dim,),), parameters=dim))
    update, nothing = np.random.default_rng(0).standard_normal(dim).astype(np.float32), np.zeros(0)
    residual = 0.1 * update if upload.keeps else None

    def encode_with(codec: Upload, turn: int) -> Parcel:
        rng = rng_for(0, turn, Stream.UPLOAD, 0)
        return codec.encode(update, nothing, nothing, None, residual, rng, model)

    message = encode_with(upload, 0).payload
    if len(message) != upload.size(model, None):
        raise SystemExit(f"{form}: a payload of {len(message)} bytes instead of {upload.size(model, None)}")
    rows = np.array(
        [
            (
                seconds(lambda turn=turn: encode_with(upload, turn)),
                seconds(lambda: upload.decode(message, model)),
                seconds(lambda turn=turn: plain.decode(encode_with(plain, turn).payload, model)[0].copy()),
            )
            for turn in range(turns)
        ]
    )
    dense, both = update.nbytes / 1e6, rows[:, 0] + rows[:, 1]
    return {
        "codec": form,
        "parameters": dim,
        "bytes": len(message),
        "encode_MB_per_s": round(dense / float(np.median(rows[:, 0]))),
        "decode_MB_per_s": round(dense / float(np.median(rows[:, 1]))),
        "both_MB_per_s": round(dense / float(np.median(both))),
        "times_as_long_as_a_copy": round(float(np.median(both) / np.median(rows[:, 2])), 1),
    }


def main() -> None:
    """Measure and print one JSON object per model, and per codec and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=float, default=0.6)
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.2f}, cores: {os.cpu_count()}", flush=True)
    with threadpool_limits(1):
        for name in MODELS:
            layout = FlatModule(models.build(name, (3, 32, 32), 10)).layout
            print(json.dumps(measure(name, channels_of(layout), options.keep, options.turns)), flush=True)
        for dim in SIZES:
            for form in CODECS.split():
                print(json.dumps(measure_codec(form, dim, options.turns)), flush=True)


if __name__ == "__main__":
    main()
