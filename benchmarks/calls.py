"""How many functions and files of the package an update passes from the command line to its stored row.

Runs `fedweave run fedavg` for one round of one client on digits in this process under a tracer, and counts distinct
functions and files that were called after the options were checked. With --against also those of another checkout.

Use: python benchmarks/calls.py [--against ../another-checkout]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path


def traced() -> tuple[int, int]:
    """Return distinct functions and files of the package between the start of a run and its stored row."""
    import fedweave
    from fedweave.cli import main

    root, seen, on = str(Path(fedweave.__file__).parent), set[tuple[str, str]](), [False]

    def trace(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            if code.co_name in ("run", "run_with") and code.co_filename.endswith(("loop.py", "running.py")):
                on[0] = True
            if on[0]:
                seen.add((code.co_filename, code.co_qualname))

    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        small = "--data digits --clients 2 --per-round 1 --rounds 1 --steps 1 --workers 1 --json"
        sys.argv = ["fedweave", "run", "fedavg", *small.split(), "--out", out]
        threading.setprofile(trace)
        sys.setprofile(trace)
        try:
            main()
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)
    return len(seen), len({file for file, _ in seen})


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout of fedweave")
    given = parser.parse_args()
    functions, files = traced()
    print(f"{functions} functions in {files} files", file=sys.stderr)
    if given.against:
        environment = {**os.environ, "PYTHONPATH": str(given.against / "src")}
        subprocess.run([sys.executable, __file__], env=environment, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
