"""JSON that somebody else may have written: bounded nesting, and every value of the type it must have."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pydantic

from fedweave.core.settings import BadInput, brief

DEPTH = 50  # levels of nesting; settings have about five


class Checked(pydantic.BaseModel):
    """Tables whose named fields have the declared types; other fields may hold anything."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


def parse_json(text: bytes | str, kind: Any, source: str) -> Any:
    """Return what ``text`` says if it is a ``kind``; otherwise raise one sentence (BadInput) that names the source."""
    try:
        value = json.loads(text)
        _check_tree(value)
    except (ValueError, RecursionError, MemoryError) as e:
        raise BadInput(f"{source} cannot be read: {brief(str(e) or type(e).__name__)}.") from None
    try:
        _adapter(kind).validate_python(value)
    except pydantic.ValidationError as e:
        first = e.errors(include_url=False)[0]
        where = brief(".".join(map(str, first["loc"])))
        rule = first["msg"].removeprefix("Value error, ")
        what = f"{where!r}: {rule}" if where else rule
        raise BadInput(f"{source} cannot be read: {what}. Got {brief(first['input'])}.") from None
    return value


@cache
def _adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(kind)


def _check_tree(value: Any) -> None:
    """Refuse deep nesting, which exhausts the stack of whatever walks through it, and text that cannot be written."""
    level = [value]
    for _ in range(DEPTH):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += [*each, *each.values()]
            elif isinstance(each, list):
                inner += each
            elif isinstance(each, str):
                each.encode()  # half of a surrogate pair is an error
        level = [each for each in inner if isinstance(each, dict | list | str)]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEPTH} levels deep")
