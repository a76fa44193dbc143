"""The command line."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from fedweave.cli.loading import load_ahead, uncollected


def main() -> None:
    """Run the command line, and leave by SystemExit."""
    with uncollected():
        from fedweave.cli import root
    root.main()


def program() -> None:
    """Run the command line as a program of its own, which ends at once: taking torch apart in good order takes long."""
    load_ahead()
    code = 1
    try:
        main()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        if isinstance(e.code, str) and sys.stderr:
            sys.stderr.write(f"{e.code}\n")  # as Python does
    except KeyboardInterrupt:  # while modules are loaded; later the command itself takes care of it
        code = 130
    except BaseException as e:
        sys.excepthook(type(e), e, e.__traceback__)
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] - both as multiprocessing's children do
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    for stream in filter(None, (sys.stdout, sys.stderr)):  # one that was closed from the start is None
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120  # Python's own code for output that is lost
    os._exit(code)
