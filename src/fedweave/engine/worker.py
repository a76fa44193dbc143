"""The main program of a training process: build trainers and answer calls until the pipe closes."""

from __future__ import annotations

import pickle
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection

import torch

from fedweave.engine.workers import opened


def main(descriptor: int) -> None:
    """Serve the pipe at file ``descriptor``; an exception is an answer too, with its traceback as a note."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's affair; it closes the pipe
    torch.set_num_threads(1)
    link, trainer, x = Connection(descriptor), None, None
    with suppress(EOFError, BrokenPipeError, ConnectionError):
        while True:
            name, arguments = link.recv()
            try:
                if name == "model":
                    x = arguments
                    continue
                if name == "load":
                    build, data = pickle.loads(arguments)  # from our own parent, over an inherited pipe
                    trainer, answer = build(opened(data)), None
                else:
                    answer = getattr(trainer, name)(x, *arguments)
                link.send((True, answer))
            except Exception as error:
                link.send((False, _portable(error)))


def _portable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note("In a training process:\n" + traceback.format_exc())
    return error


if __name__ == "__main__":
    main(int(sys.argv[1]))
