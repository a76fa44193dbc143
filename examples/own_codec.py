"""A codec of your own: one bit for each entry of an update. Run: python examples/own_codec.py"""

import numpy as np

import fedweave as fw
from fedweave.core.roles import Upload
from fedweave.upload.compressor import Compressor


@fw.settings
class Signs(Compressor, Upload):
    """The signs of the entries and their mean magnitude (1-bit SGD, Seide et al.)."""

    def compressed_size(self, dim, itemsize):
        return itemsize + (dim + 7) // 8  # exact: a lost message has this size too

    def compress(self, values, rng):
        scale = np.abs(values).mean(dtype=values.dtype)  # not finite if any entry is: the server will refuse it
        return scale.tobytes() + np.packbits(values > 0).tobytes()

    def expand(self, payload, out):
        scale = np.frombuffer(payload, out.dtype, 1)[0]
        bits = np.unpackbits(np.frombuffer(payload, np.uint8, offset=out.itemsize), count=out.size)
        out[:] = np.where(bits, scale, -scale)


if __name__ == "__main__":
    # Signs alone are biased. With error feedback a client adds what it left out to its next update.
    codecs = {"whole updates": None, "signs": Signs(), "signs, error feedback": fw.upload.ErrorFeedback(Signs())}
    for name, codec in codecs.items():
        experiment = fw.Experiment("fedavg", data="digits", partition="dirichlet:0.3", upload=codec, rounds=40)
        summary = fw.run(experiment).summary
        print(f"{name:<22} accuracy {summary['accuracy']:.3f}  {summary['bytes_up']:>9,} bytes up")
