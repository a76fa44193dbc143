"""Options that several commands have; loads nothing but cyclopts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter


def help_text(text: str, metavar: str | None = None) -> Parameter:
    """Return the help of an option; its default is part of the text, in brackets."""
    return Parameter(help=text, metavar=metavar, show_default=False)


def whole_number(name: str, text: str, problems: list[str], low: int = 1, high: int | None = None) -> int:
    """Return a whole number as typed; where it is none, or out of range, that is added to ``problems``."""
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if number < low or (high is not None and number > high):
        allowed = f"of at least {low}" if high is None else f"from {low} to {high}"
        problems.append(f"{name} must be a whole number {allowed}. Got {text!r} instead.")
        return low
    return number


def flag(text: str, *names: str) -> Parameter:
    """Return an option without a value."""
    return Parameter(names or None, negative="", show_default=False, help=text)


Json = Annotated[bool, flag("Print one JSON object and nothing else.", "--json")]


@Parameter(name="*")
@dataclass(frozen=True)
class Talk:
    """How much a command says beside its results."""

    quiet: Annotated[bool, flag("Show results, warnings and errors, but no progress.", "--quiet", "-q")] = False
    verbose: Annotated[
        bool,
        flag("Also show software, data, devices, where warnings come from, and tracebacks.", "--verbose", "-v"),
    ] = False


NORMAL = Talk()
