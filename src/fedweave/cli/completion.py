"""The command ``fedweave completion``: scripts for bash, zsh and fish, and the names that they complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from fedweave.core import names, plugins


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a script that completes commands, options and names in a shell.

    Save it where the shell looks for it: for bash as ~/.local/share/bash-completion/completions/fedweave, for zsh as
    _fedweave in a folder of $fpath, for fish as ~/.config/fish/completions/fedweave.fish. It also completes the names
    of methods, data, models, partitions, systems and tasks, those of installed plug-ins too.
    """
    from fedweave.cli.root import app

    print(app.generate_completion(shell=shell))


def completer(kind: str) -> Callable[[Any], list[str]]:
    """Return what a shell calls to complete a name of a kind, such as methods."""

    def complete(_: Any) -> list[str]:
        return [*_known(kind), *plugins.offered(kind)]

    return complete


def _known(kind: str) -> Sequence[str]:
    if kind == "models":
        from fedweave.models import names as models

        return models()
    whole = {"methods": names.methods(), "data": names.DATA, "tasks": names.TASKS}
    if kind in whole:
        return whole[kind]
    forms = names.PARTITIONS if kind == "partitions" else names.SYSTEMS
    return [form.partition(":")[0] for form in forms if form[0] not in ",T"]  # what needs no file and no other world
