"""Frozen, checked settings: every part of a method, a world or an experiment is declared with ``@settings``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar, dataclass_transform

import pydantic
from pydantic.dataclasses import dataclass as checked_dataclass

from fedweave.core.errors import BadInput as BadInput
from fedweave.core.errors import brief as brief
from fedweave.core.errors import choice as choice
from fedweave.core.errors import nearest as nearest
from fedweave.core.errors import shown as shown
from fedweave.core.paths import check_name

T = TypeVar("T")
PositiveFactor = Annotated[float, pydantic.Field(gt=0, le=1e38)]  # clients and servers compute in float32
FileName = Annotated[str, pydantic.AfterValidator(check_name)]
NonNegativeFactor = Annotated[float, pydantic.Field(ge=0, le=1e38)]


def sentences(error: pydantic.ValidationError, caller: str, fields: Sequence[str]) -> dict[str, Sequence[str]]:
    """Turn pydantic's findings into our sentences, by parameter; those of the whole are under the empty name."""
    found: dict[str, list[Any]] = {}
    for e in error.errors():  # the branches of a union report one by one: gather them under their parameter
        found.setdefault(_name(e["loc"], fields), []).append(e)
    return {name: _own(same[0]) or [_sentence(name, same, caller, fields)] for name, same in found.items()}


def _own(error: Any) -> Sequence[str]:
    """Return the sentences of a check that already speaks ours."""
    cause = error.get("ctx", {}).get("error")
    return cause.problems if isinstance(cause, BadInput) else ()


def _name(loc: tuple[int | str, ...], fields: Sequence[str]) -> str:
    if not loc:
        return ""
    first = fields[loc[0]] if isinstance(loc[0], int) and loc[0] < len(fields) else str(loc[0])
    return ".".join([first, *(str(p) for p in loc[1:] if isinstance(p, int))])


def _sentence(name: str, errors: list[Any], caller: str, fields: Sequence[str]) -> str:
    kind, got = errors[0]["type"], errors[0]["input"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{caller} has no parameter {name!r}.{nearest(name, fields)} Valid: {', '.join(fields)}."
    if kind in ("missing", "missing_argument"):
        return f"The {name!r} parameter of {caller} is required."
    if kind == "unexpected_positional_argument":
        return f"{caller} takes {len(fields)} parameters ({', '.join(fields)}). Got {shown(got)} beyond them."
    messages = [e["msg"].removeprefix("Value error, ") for e in errors]
    if kind == "value_error":  # a check of our own is already a sentence, or the end of one
        return f"The {name!r} parameter of {caller} {messages[0]}" if name and messages[0][0].islower() else messages[0]
    return f"The {name!r} parameter of {caller} must be {rule_of(*messages)}. Got {shown(got)} instead."


def rule_of(*messages: str) -> str:
    """Return what pydantic says that a value should be, in our words."""
    rule = " or ".join(
        "a smaller whole number"
        if "exceeded maximum size" in m
        else m.replace("a valid integer", "a whole number").removeprefix("Input should be ").split(", unable")[0]
        for m in messages
    )
    return re.sub(r"\d{16,}", lambda number: f"{float(number[0]):g}", rule)


@dataclass_transform(frozen_default=True, field_specifiers=(pydantic.Field,))
def settings(cls: type[T]) -> type[T]:
    """Make ``cls`` a frozen dataclass whose arguments are checked once, when it is built."""
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    built = checked_dataclass(cls, frozen=True, config=config)
    built.__init__ = _explained(built.__init__, cls.__name__, list(built.__dataclass_fields__))
    return built  # pyright: ignore[reportReturnType]


def undeclared(part: Any) -> str:
    """Return why a part cannot be used whose class, or a class it adds to, was not declared with ``@settings``."""
    if "__dataclass_fields__" in vars(type(part)):
        return ""
    name = type(part).__name__
    return f"{name} must be declared with @fedweave.settings, so that it is frozen, checked and kept with the run."


def is_foreign(part: Any) -> bool:
    """Return whether a part, or one that it contains, is not the library's."""
    fields = getattr(part, "__dataclass_fields__", {})
    own = type(part).__module__.startswith("fedweave.")
    return not own or any(is_foreign(inner) for name in fields if is_dataclass(inner := getattr(part, name)))


def _explained(init: Callable[..., None], caller: str, fields: list[str]) -> Callable[..., None]:
    @wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        if why := undeclared(self):
            raise BadInput(why)
        try:
            init(self, *args, **kwargs)
        except pydantic.ValidationError as e:
            causes = (error.get("ctx", {}).get("error") for error in e.errors())
            cause = next((own.__cause__ for own in causes if own is not None and own.__cause__), None)
            raise BadInput(*(s for found in sentences(e, caller, fields).values() for s in found)) from cause

    return checked
