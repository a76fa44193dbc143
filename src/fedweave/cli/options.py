"""The options of ``run`` and ``compare``, from a command line or a TOML file: checked all at once.

Each is declared once, by an ``Option`` beside a field of ``Experiment`` or ``CommandOptions``. ``--help``, the keys of
a file and the table of the reference (``options_table``) follow from these declarations.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Group, Parameter
from pydantic import PositiveInt, TypeAdapter, ValidationError

from fedweave import methods
from fedweave.cli.assignments import changed, changes_of
from fedweave.cli.completion import completer
from fedweave.cli.parameters import help_text
from fedweave.core import plugins
from fedweave.core.options import FLAG, Option, aliases_of, options_of, rename_sentence
from fedweave.core.settings import BadInput, nearest, sentences, settings
from fedweave.core.spec import build
from fedweave.data import partition
from fedweave.data.datasets import NATURAL
from fedweave.method import Method
from fedweave.runs import experiment as experiments
from fedweave.runs import method_names
from fedweave.runs.experiment import Experiment

T = TypeVar("T")
Text = str | None
Where = Callable[[str], str]  # how the user wrote the name of an option


@settings
class CommandOptions:
    """The options of run and compare that are not fields of an Experiment."""

    clients: Annotated[
        PositiveInt | None, Option("Number of clients.", "N", "50", default=f"{partition.CLIENTS}, or the data's own")
    ] = None
    per_round: Annotated[PositiveInt, Option("How many clients take part in a round.", "K", "10")] = (
        method_names.PER_ROUND
    )
    seeds: Annotated[PositiveInt, Option("How many seeds, from --seed on; for compare and sweep.", "COUNT", "5")] = 1


OURS = options_of(CommandOptions)
OPTIONS = OURS | experiments.OPTIONS
OLD_NAMES = aliases_of(OPTIONS)
BOOLEANS = ("true", "false", "yes", "no", "on", "off", "1", "0", "t", "f", "y", "n")  # as pydantic reads them
NAMED = {"data": "data", "model": "models", "partition": "partitions", "system": "systems", "task": "tasks"}


class Texts:
    """The options of run and compare as typed; they are checked later, all at once."""

    def given(self) -> dict[str, str]:
        """Return the options that were typed."""
        return {name: text for name, text in vars(self).items() if text is not None}


def _help(name: str, option: Option) -> Parameter:
    shown = help_text(option.help + (f" [{option.default}]" if option.default else ""), option.metavar)
    if name in NAMED:
        shown = Parameter.combine(shown, Parameter(completer=completer(NAMED[name])))
    return Parameter.combine(shown, Parameter(group=Group(option.group, sort_key=1))) if option.group else shown


if TYPE_CHECKING:
    Typed = Texts
else:
    _shown = {name: _help(name, option) for name, option in OPTIONS.items()}
    _hidden = dict.fromkeys(OLD_NAMES, Parameter(show=False))
    _fields = [(name, Annotated[Text, parameter], None) for name, parameter in (_shown | _hidden).items()]
    _made = make_dataclass("Typed", _fields, bases=(Texts,), namespace={"__module__": __name__}, frozen=True)
    Typed = Parameter(name="*")(_made)
NO_OPTIONS = Typed()


def as_option(name: str) -> str:
    """Return a name as it is typed."""
    return f"--{name.replace('_', '-')}"


def with_values(words: Sequence[str]) -> list[str]:
    """Return what was typed with a ``true`` behind every option that is on or off and stands alone."""
    flags, found = {as_option(name) for name, option in OPTIONS.items() if option.metavar == FLAG}, list[str]()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        found += [word, "true"] if word in flags and following.lower() not in BOOLEANS else [word]
    return found


def options_table() -> str:
    """Return the table of all options for the reference."""
    typed = {n: as_option(n) if o.metavar == FLAG else f"{as_option(n)} {o.example}" for n, o in OPTIONS.items()}
    rows = [f"| `{typed[name]}` | {option.help} | {option.default} |" for name, option in OPTIONS.items()]
    return "\n".join(["| option, with an example | what it does | default |", "|---|---|---|", *rows])


def experiments_of(
    wanted: Sequence[str],
    typed: Mapping[str, Any],
    assignments: Sequence[str] = (),
    others: Sequence[str] = (),
    check: Callable[[list[Experiment], set[str]], object] | None = None,
) -> tuple[list[Experiment], CommandOptions]:
    """Return an experiment for each wanted method, a name or a TOML file, after everything typed was checked.

    ``others`` are problems that were found before, and are reported together with all that are found here. ``check``
    may raise more: it gets the experiments as far as they can be made, and which of their fields were given wrongly.
    """
    problems = list(others)
    chosen, given, where = _read(wanted, typed, problems)
    problems += [
        f"--set takes PATH=VALUE, such as method.sampler.per_round=3. Got {a!r} instead."
        for a in assignments
        if "=" not in a
    ]
    assigned = [a for a in assignments if "=" in a]
    problems += [f"There is no option {where(k)!r}.{nearest(k, OPTIONS)}" for k in given if k not in OPTIONS]
    wrong: set[str] = set()
    ours = _check(CommandOptions, {k: v for k, v in given.items() if k in OURS}, where, problems, wrong)
    ours = ours or CommandOptions()
    zoo_ = list[Method]()
    for method in chosen:
        with gather(problems):
            zoo_.append(method_names.parse(method, ours.per_round) if isinstance(method, str) else method)
    theirs = {k: v for k, v in given.items() if k in experiments.OPTIONS}
    zoo_ = _with_own_rates(zoo_, theirs, where, problems)
    base = _check(Experiment, {"method": (zoo_ or [methods.fedavg()])[0], **theirs}, where, problems, wrong)
    limit = ours.clients or _clients(given)
    if limit and "per_round" in given and ours.per_round > limit:
        problems.append(
            f"{where('per_round')} must not exceed {where('clients')} ({limit}). Got {ours.per_round} instead."
        )
    found = list[Experiment]()
    if base is not None and len(zoo_) == len(wanted):
        if ours.clients:
            base = replace(base, partition=replace(base.partition, clients=ours.clients))
        given_ = [(current_name(key, f"--set {key}"), value) for key, _, value in (a.partition("=") for a in assigned)]
        changes = changes_of(given_, [method.name for method in zoo_], problems)
        found = [replace(base, method=method) for method in zoo_]
        try:
            found = changed(found, changes, wrong)
        except BadInput as e:
            problems += e.problems
            wrong |= {path.split(".")[0] for own in changes.values() for path in own}
        with gather(problems):
            if check is not None and found:
                check(found, wrong)
    if problems:
        raise BadInput(*problems)
    return found, ours


def _with_own_rates(zoo: list[Method], given: dict[str, Any], where: Where, problems: list[str]) -> list[Method]:
    """Return the methods with the learning rates that --lr gives them behind semicolons, and leave the first in it."""
    if not isinstance(given.get("lr"), str) or ";" not in given["lr"]:
        return zoo
    common, *own = given["lr"].split(";")
    given["lr"], names, found = common, [method.name for method in zoo], dict[str, Method]()
    if not common.strip():
        del given["lr"]
    for text in own:
        name, equals, rate = (part.strip() for part in text.partition("="))
        if not equals or name not in names:
            hint = nearest(name, names)
            problems.append(f"{where('lr')}: {text.strip()!r} must be METHOD=ETA, of one of {', '.join(names)}.{hint}")
            continue
        with gather(problems, f"{where('lr')}: "):
            found[name] = replace(zoo[names.index(name)], lr=rate)
    return [found.get(method.name, method) for method in zoo]


def _clients(given: Mapping[str, Any]) -> int | None:
    """Return how many clients there are if nobody says; None where the data or a partition of one's own does."""
    form, data = given.get("partition", "auto"), given.get("data")
    kind = form.strip().partition(":")[0] if isinstance(form, str) else ""
    own = kind not in partition.FORMS or kind == "natural"
    return None if own or (kind == "auto" and (data in NATURAL or plugins.is_plugin(data))) else partition.CLIENTS


def _read(
    wanted: Sequence[str], typed: Mapping[str, Any], problems: list[str]
) -> tuple[list[Method | str], dict[str, Any], Where]:
    """Return the methods, the options by their current names, and where the user wrote each; values are unchecked."""
    chosen, places = list[Method | str](), dict[str, Where]()
    given, place = _with_current_names(typed, as_option, problems)
    for name in wanted:
        with gather(problems):
            method, path, at = name, Path(name), ""
            if name.endswith(".toml"):
                content, line = _with_current_names(read_file(path), line_of(path), problems)
                method, at = content.pop("method", "fedavg"), line("method").removesuffix("method")
                problems += [
                    f"{line(k)} = {v!r} contradicts {places[k](k)} = {given[k]!r}: a comparison has one for all."
                    for k, v in content.items()
                    if k in places and given[k] != v
                ]
                places |= {k: line for k in content if k not in given}  # what was typed counts more than what was read
                given = {**content, **given}
            with gather(problems, at):
                chosen.append(_method(method, path.stem))
    return chosen, given, lambda k: places.get(k, place)(k)


def _with_current_names(given: Mapping[str, Any], where: Where, problems: list[str]) -> tuple[dict[str, Any], Where]:
    """Return the options by their current names, with a warning for each old one, and where each was written."""
    written: dict[str, str] = {}
    for name in given:
        now = current_name(name, where(name))
        if written.setdefault(now, name) != name:
            problems.append(f"{where(written[now])} and {where(name)} are the same option: give one of them.")
    return {now: given[name] for now, name in written.items()}, lambda name: where(written.get(name, name))


def current_name(name: str, where: str) -> str:
    """Return the current name of an option, and warn on stderr if an old one was used."""
    now = OLD_NAMES.get(name, name)
    if now != name:
        _warn(rename_sentence(where, as_option(now) if where == as_option(name) else now))
    return now


def _warn(sentence: str) -> None:
    print(f"warning: {sentence}", file=sys.stderr)


@contextmanager
def gather(problems: list[str], prefix: str = "") -> Generator[None]:
    """Keep the problems of a step, so that those of the next ones are reported too."""
    try:
        yield
    except BadInput as e:
        problems += [prefix + problem for problem in e.problems]


def _check(cls: type[T], given: Mapping[str, Any], where: Where, problems: list[str], wrong: set[str]) -> T | None:
    """Return the settings, as far as they can be made of what was given; what is wrong is added to the last two."""
    try:
        return TypeAdapter(cls).validate_python(given)
    except ValidationError as e:
        found = sentences(e, cls.__name__, list(given))
    problems += [
        _located(sentence, name, where)
        for name, same in found.items()
        for sentence in same
        if name or not any(f"'{other}'" in sentence for other in wrong)  # else it follows from another mistake
    ]
    names = {name.split(".")[0] for name in found}
    wrong |= names
    if names == {""}:  # good fields that contradict each other
        return None
    return _check(cls, {k: v for k, v in given.items() if k not in names}, where, problems, wrong)


def _located(sentence: str, name: str, where: Where) -> str:
    """Return a sentence about a field, or about several in quotes, as one about what the user wrote."""
    if not name:
        return re.sub(r"'(\w+)'", lambda m: where(m[1]) if m[1] in OPTIONS else m[0], sentence)
    place = where(name.split(".")[0])
    of_field = re.match(r"The '[\w.]+' parameter of (Experiment|CommandOptions)", sentence)
    return place + sentence[of_field.end() :] if of_field else f"{place}: {sentence}"


def known_method(name: Any) -> str:
    """Return the current name of a method that exists, and warn on stderr if an old one was used."""
    if name in list(methods.RENAMED):
        _warn(rename_sentence(f"the method {name}", methods.RENAMED[name]))
        return methods.RENAMED[name]
    if name not in list(method_names.method_names()):
        raise method_names.unknown(name)
    return name


def _method(given: Any, name: str) -> Method | str:
    """Return the name of a method or plug-in that exists, or the composed method of a table."""
    if isinstance(given, Mapping):
        return build(Method, {"type": "Method", "name": name, **given}, "method")
    if isinstance(given, str) and (plugin := plugins.plugin_text("methods", given)):
        plugins.find(plugin)
        return plugin
    try:
        return known_method(given)
    except BadInput as e:
        raise BadInput(f"{e} Or give a TOML experiment file.") from None


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a TOML experiment file; keys may be written with dashes."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise BadInput(f"The experiment file {str(path)!r} cannot be read: {e.strerror}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as e:
        raise BadInput(f"{path}: {e}") from None
    return {k.replace("-", "_"): v for k, v in content.items()}


def line_of(path: Path) -> Callable[[str], str]:
    """Return how to name a key of this TOML file in an error: file:line: key."""
    lines = path.read_text(encoding="utf-8").splitlines()

    def where(name: str) -> str:
        pattern = re.compile(rf"\s*\[?{re.escape(name).replace('_', '[-_]')}\s*[].=]")
        return next(
            (f"{path}:{i}: {name}" for i, line in enumerate(lines, 1) if pattern.match(line)),
            f"{path}: {name}",
        )

    return where
