"""Errors that users hear of and the sentences about them; nothing else is loaded, so that programs start at once."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any


class BadInput(ValueError):  # noqa: N818 - it names what the user gave, as KeyError does
    """Wrong input. Carries every problem found, each one a sentence that names the way out."""

    def __init__(self, *problems: str):
        super().__init__("\n".join(problems))
        self.problems = problems


class NotStored(OSError):  # noqa: N818 - named for what happened, like FileNotFoundError
    """A run could not be written; what was saved before is intact."""


def brief(value: Any, most: int = 80) -> str:
    """Return what somebody sent as a short piece of one line, whatever it is and however long."""
    text = value[:most] if isinstance(value, str) else reprlib.repr(value)
    line = text if text.isprintable() else repr(text)
    return line if len(line) <= 2 * most else f"{line[: 2 * most]}..."


def shown(value: Any, most: int = 120) -> str:
    """Return what somebody gave as it is written in Python, or ``brief`` where that is long or several lines."""
    text = repr(value)
    return text if len(text) <= most and text.isprintable() else brief(value)


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest choice, or nothing when none is close."""
    import difflib  # where something is wrong, there is time

    by_word = {str(c).lstrip("-"): c for c in choices}  # the dashes of options would make all of them alike
    word = str(name).lstrip("-")
    found = [w for w in by_word if len(w) == len(word) > 2 and sorted(w) == sorted(word)]  # letters in another order
    found = found or difflib.get_close_matches(word, by_word, n=1, cutoff=0.65)
    found = found or [w for w in by_word if len(word) > 2 and w.startswith(word)]
    return f" Did you mean {by_word[found[0]]!r}?" if found else ""


def choice(what: str, name: str, choices: Iterable[str]) -> str:
    """Return the sentence for a name that is none of ``choices``."""
    choices, shown = list(choices), repr(name[:80]) if isinstance(name, str) else brief(name)
    return f"There is no {what} {shown}.{nearest(name, choices)} Valid: {', '.join(choices)}."
