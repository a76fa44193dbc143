"""The command line."""

from __future__ import annotations

from fedweave.cli.loading import load_ahead, uncollected


def main() -> None:
    """Run the command line; whoever will train needs torch, whose library loads meanwhile."""
    load_ahead()
    with uncollected():
        from fedweave.cli import app
    app.main()
