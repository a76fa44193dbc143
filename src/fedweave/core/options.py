"""How a field of settings is presented to users, declared once beside its type, and fields that had another name."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")
FLAG = ""  # the metavar of an option that is on or off: alone it means true


@dataclass(frozen=True)
class Option:
    """Metadata of a field that is also an option of the command line: ``Annotated[int, Option(...)]``."""

    help: str
    metavar: str
    example: str  # a value as it is typed
    default: str | None = None  # in words; None: the field's default as it is typed
    group: str | None = None  # the heading it stands under in --help
    aliases: tuple[str, ...] = ()  # names that it had; they still work, with a warning


def options_of(settings: type[Any]) -> dict[str, Option]:
    """Return the options that a settings class declares, by field, with their defaults in words."""
    return {
        name: option if option.default is not None else replace(option, default=_as_typed(field.default))
        for name, field in settings.__pydantic_fields__.items()
        for option in field.metadata
        if isinstance(option, Option)
    }


def aliases_of(options: Mapping[str, Option]) -> dict[str, str]:
    """Return the new name of every old one."""
    return {old: new for new, option in options.items() for old in option.aliases}


def _as_typed(value: Any) -> str:
    """Return a default as it is typed; nothing if there is none."""
    if value is None or value == ():
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def renamed(**names: str) -> Callable[[type[T]], type[T]]:
    """Let a class accept keyword arguments and attributes by their old names, ``old="new"``, with a warning."""

    def decorate(cls: type[T]) -> type[T]:
        init = cls.__init__

        @wraps(init)
        def call(self: T, *args: Any, **kwargs: Any) -> None:
            for old in [name for name in names if name in kwargs]:
                warn_renamed(f"{cls.__name__}({old}=...)", names[old])
                kwargs[names[old]] = kwargs.pop(old)  # wins over the new name, which dataclasses.replace always gives
            init(self, *args, **kwargs)

        cls.__init__ = call
        for old, new in names.items():
            setattr(cls, old, _old_property(f"{cls.__name__}.{old}", new))
        return cls

    return decorate


def renamed_options(cls: type[T]) -> type[T]:
    """Let settings accept their options by the aliases that these declare, with a warning."""
    return renamed(**aliases_of(options_of(cls)))(cls)


def _old_property(old: str, new: str) -> property:
    def get(self: Any) -> Any:
        warn_renamed(old, new)
        return getattr(self, new)

    return property(get)


def rename_sentence(old: str, new: str) -> str:
    """Return the warning for an old name."""
    return f"{old} is now called {new}; the old name goes with the next release."


def warn_renamed(old: str, new: str) -> None:
    """Warn the code outside this package that uses an old name."""
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_globals.get("__name__", "").split(".")[0] in ("fedweave", "pydantic", "dataclasses"):
        frame, level = frame.f_back, level + 1
    warnings.warn(rename_sentence(old, new), DeprecationWarning, stacklevel=level)
