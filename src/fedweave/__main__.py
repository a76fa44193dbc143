"""``python -m fedweave`` is the command line."""

from fedweave.cli import program

program()
