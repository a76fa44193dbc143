"""The command line."""

from fedweave.cli.app import main as main
