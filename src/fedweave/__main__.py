"""``python -m fedweave`` is the command line."""

from fedweave.cli.app import main

main()
