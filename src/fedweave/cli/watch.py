"""The command ``fedweave watch``: a live page over run folders."""

from __future__ import annotations

import json as json_text
import webbrowser
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Annotated

from cyclopts import Parameter

from fedweave.cli.parameters import Json, flag, help_text
from fedweave.core.settings import BadInput
from fedweave.watch.server import Server

PORT = 8377


def watch(
    *folders: Annotated[Path, Parameter(metavar="RUNS")],
    port: Annotated[int, help_text(f"Port of the page; 0 chooses a free one. [{PORT}]", "P")] = PORT,
    open_: Annotated[bool, flag("Open the page in a browser.", "--open")] = False,
    quiet: Annotated[bool, flag("Show errors, but not the address.", "--quiet", "-q")] = False,
    json: Json = False,
) -> None:
    """Show a live page over runs: how far they are, their curves, and who takes part.

    RUNS are run folders, comparisons, sweeps, or folders that contain such; without any, the folder runs. New runs
    appear by themselves. The page is for this machine alone, and nothing in a folder is changed. Ctrl-C ends it.
    """
    if not 0 <= port < 2**16:
        raise BadInput(f"--port must be between 0 and 65535. Got {port}.")
    if not folders and not Path("runs").is_dir():
        raise BadInput("watch needs a folder, such as: fedweave watch runs. There is no folder 'runs' here.")
    with Server(folders or (Path("runs"),), port) as server:
        if json:
            print(json_text.dumps({"url": server.url, "port": server.port}), flush=True)
        elif not quiet:
            print(f"Watching {', '.join(map(str, folders)) or 'runs'} at {server.url}  (Ctrl-C ends it)", flush=True)
        if open_:
            Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()  # some wait for the page
        with suppress(KeyboardInterrupt):
            server.serve_forever()
