"""The main program of a training process: build a trainer, then answer calls until the pipe closes."""

from __future__ import annotations

import pickle
import signal
import sys
from multiprocessing.connection import Connection

import torch

from fedweave.engine.workers import opened


def main(descriptor: int) -> None:
    """Serve the pipe at file ``descriptor``; an exception is an answer too, with its traceback as a note."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's affair; it closes the pipe
    torch.set_num_threads(1)
    link = Connection(descriptor)
    try:
        build, data = pickle.loads(link.recv_bytes())  # from our own parent, over an inherited pipe
        trainer = build(opened(data))
        link.send((True, None))
        while True:
            name, args = link.recv()
            try:
                answer = (True, getattr(trainer, name)(*args))
            except Exception as error:
                answer = (False, _portable(error))
            link.send(answer)
    except (EOFError, BrokenPipeError, ConnectionError):
        return


def _portable(error: Exception) -> Exception:
    import traceback

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note("In a training process:\n" + traceback.format_exc())
    return error


if __name__ == "__main__":
    main(int(sys.argv[1]))
