"""The pages of the reference, made from docstrings, signatures and the declarations of options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from types import ModuleType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import fedweave as fw
from fedweave.cli.listing import KINDS
from fedweave.cli.options import NAMED, OPTIONS, options_table
from fedweave.cli.root import COMMANDS, app
from fedweave.core import names, roles
from fedweave.core.options import options_of

MODULES = {  # in the order of the page; the first word of a heading is what a program writes
    "fw.data": "fedweave.data",
    "fw.partition": "fedweave.data.partition",
    "fw.models": "fedweave.models",
    "fw.tasks": "fedweave.tasks",
    "fw.system": "fedweave.system",
    "fw.sample": "fedweave.sample",
    "fw.solvers": "fedweave.local.solvers",
    "fw.aggregate": "fedweave.aggregate",
    "fw.server": "fedweave.server",
    "fw.upload": "fedweave.upload",
    "fw.pacing": "fedweave.pacing",
    "fw.schedule": "fedweave.schedule",
    "fw.adversaries": "fedweave.local.adversaries",
    "fw.track": "fedweave.runs.track",
    "fw.solve": "fedweave.solve",
    "fw.theory": "fedweave.theory",
    "fedweave.flower": "fedweave.flower",
    "fedweave.privacy": "fedweave.privacy",
    "fedweave.statistics": "fedweave.statistics",
    "fedweave.core.roles": "fedweave.core.roles",
    "fedweave.core.records": "fedweave.core.records",
    "fedweave.core.vectors": "fedweave.core.vectors",
    "fedweave.tables.rows": "fedweave.tables.rows",
}
ROLES = {role for _, role in inspect.getmembers(roles, inspect.isclass) if role.__module__ == roles.__name__}

INTERNAL = {fw.Experiment: ("paced_method", "rules"), fw.Method: ("asking", "foreign", "widened")}

PYTHON = """Made from the docstrings. `import fedweave as fw`; the methods by name, `fw.methods`, are on
[a page of their own](methods.md). Everything that is listed under a heading is an attribute of it."""
COMMON = """`fedweave run`, `compare` and `sweep` take these options, an experiment file has them as keys
(`batch-size` or `batch_size`), and `fw.Experiment` has fields of the same names, defaults and values:
`fw.Experiment("fedacs", partition="dirichlet:0.1", system="dynamic")`. `clients`, `per_round` and `seeds` are not
fields: in Python the partition has the clients, the method has those of a round, and `fw.compare` takes `seeds`. A
method that is given by its name has five clients per round. An option that is on or off, such as `--audit`, may stand
alone, or with `true` or `false`. `--set PATH=VALUE` changes any other field."""
FIELDS = """The values are those of [the options of an experiment](commands.md#the-options-of-an-experiment), as text,
or what they stand for: `partition="dirichlet:0.1"` or `fw.partition.Dirichlet(clients=20, alpha=0.1)`."""
METHODS = """Made from the docstrings of `fw.methods`. Each name works on the command line, where `--per-round`
gives the number of clients and `--set method.solver.mu=0.1` changes a field of a part, and is a function in Python
that returns a `fw.Method`."""
WIDTH, NEWLINE = 110, "\n"


def pages() -> dict[str, str]:
    """Return the pages of the reference by their file names."""
    made = {"python.md": python_page(), "commands.md": commands_page(), "methods.md": methods_page()}
    return {name: re.sub(r"\n{3,}", "\n\n", text) for name, text in made.items()}


def python_page() -> str:
    """Return the whole public interface of Python on one page."""
    own = [name for name in dir(fw) if name != "__version__" and not isinstance(getattr(fw, name), ModuleType)]
    text = [
        "# The Python interface",
        PYTHON,
        "## fedweave",
        *(entry(name, getattr(fw, name)) for name in own),
    ]
    for shown, place in MODULES.items():
        module = import_module(place)
        text += [f"## {shown}", prose(module), *(entry(name, found) for name, found in public(module))]
    return "\n\n".join(text) + "\n"


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes that a module offers."""
    for name in sorted(getattr(module, "__all__", dir(module)), key=str.lower):
        found = getattr(module, name)
        ours = str(getattr(found, "__module__", "")).startswith((module.__name__, "fedweave.fleet"))
        if not name.startswith("_") and ours and (inspect.isclass(found) or inspect.isroutine(found)):
            yield name, found


def entry(name: str, found: Any) -> str:
    """Return the signature, the docstring and, for what is no part, the members of a class or function."""
    text = [f"### {name}", f"```python\n{name}{signature(found)}\n```", prose(found)]
    if found is fw.Experiment:
        text.append(fields_table())
    if inspect.isclass(found) and not ROLES & {*found.__mro__[1:]}:
        text.append("\n".join(members(found)))
    return "\n\n".join(filter(None, text))


def fields_table() -> str:
    """Return the fields of an experiment with their types, and those that are options with what these do."""
    types, options = get_type_hints(fw.Experiment), options_of(fw.Experiment)
    rows = ["| field | type | what it does | default |", "|---|---|---|---|"]
    for field in fields(fw.Experiment):
        option = options.get(field.name)
        does, default = (option.help, option.default) if option else ("A `Method`, or the name of one.", "")
        rows.append(f"| `{field.name}` | `{cell(type_text(types[field.name]))}` | {cell(does)} | {default} |")
    return f"{FIELDS}\n\n{NEWLINE.join(rows)}"


def type_text(of: Any) -> str:
    """Return a type as it is written, without the names of modules."""
    if get_origin(of) in (Union, UnionType):
        return " | ".join(map(type_text, get_args(of)))
    return "None" if of is type(None) else re.sub(r"(\w+\.)+", "", inspect.formatannotation(of))


def members(of: type) -> Iterator[str]:
    """Yield a line for each public method or property of a class."""
    for name, found in inspect.getmembers(of):
        plain = found.fget if isinstance(found, property) else getattr(found, "func", found)  # also cached ones
        ours = inspect.isroutine(plain) and str(getattr(plain, "__module__", "")).startswith("fedweave")
        if name.startswith("_") or name in INTERNAL.get(of, ()) or not ours:
            continue
        called = " ".join(signature(plain).split()) if inspect.isroutine(found) else ""
        if first := prose(plain).split("\n\n")[0]:  # old names have none
            yield f"- `.{name}{called}`: {first}"


def signature(of: Any) -> str:
    """Return a signature with the types as they are written, where they are short."""
    try:
        given = inspect.signature(of)
    except ValueError:
        return "(…)"
    if inspect.isclass(of) and not is_dataclass(of) and of.__init__ is object.__init__:
        return ""
    shown = list[str]()
    for parameter in given.parameters.values():
        if parameter.name in ("self", "cls") or parameter.name.startswith("_"):
            continue
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if parameter.kind is parameter.KEYWORD_ONLY and not any(s.startswith("*") for s in shown):
            shown.append("*")
        kind = parameter.annotation
        typed = f": {kind}" if isinstance(kind, str) and len(kind) < 40 and not inspect.isclass(of) else ""
        default = "" if parameter.default is parameter.empty else f"={default_of(of, parameter)}"
        shown.append(f"{star}{parameter.name}{typed}{default}")
    returns = given.return_annotation
    arrow = f" -> {returns}" if isinstance(returns, str) and not inspect.isclass(of) else ""
    line = f"({', '.join(shown)}){arrow}"
    return line if len(line) < WIDTH else f"(\n    {f',{NEWLINE}    '.join(shown)},\n){arrow}"


def default_of(of: Any, parameter: inspect.Parameter) -> str:
    """Return a default as it would be typed; one that is made by a function is three dots."""
    made = is_dataclass(of) and any(f.name == parameter.name and callable(f.default_factory) for f in fields(of))
    text = repr(parameter.default)
    return "…" if made or "<" in text or len(text) > 60 else text


def prose(of: Any) -> str:
    """Return a docstring as Markdown."""
    text = inspect.getdoc(of) or ""
    return re.sub(r"``(.+?)``", r"`\1`", text)


def commands_page() -> str:
    """Return every command with its options, and those of an experiment once."""
    text = [
        "# The command line",
        "Made from the declarations. `fedweave COMMAND --help` shows the same.",
        "## The options of an experiment",
        COMMON,
        options_table(),
    ]
    for name in COMMANDS:
        below = [f"{name} {sub}" for sub in app[name] if not sub.startswith("-")] if name == "flower" else []
        for path in below or [name]:
            text += command(path)
    for kind in ("data", *(kind for kind in KINDS if kind in NAMED.values() and kind != "data")):
        text += [f"## Names of {kind}", names_table(kind)]
    return "\n\n".join(text) + "\n"


def command(path: str) -> list[str]:
    """Return the heading, the text, the example and the options of a command."""
    found = app
    for word in path.split():
        found = found[word]
    rows, common = list[str](), False
    for argument in found.assemble_argument_collection():
        name, parameter = argument.names[0], argument.parameter
        if name[2:].replace("-", "_") in OPTIONS and path in ("run", "compare", "sweep"):
            common = True
        elif parameter.show is not False:
            shown = " ".join(filter(None, (", ".join(argument.names), parameter.metavar)))
            rows.append(f"| `{shown}` | {cell(parameter.help or '')} |")
    example = getattr(found, "help_epilogue", None) or ""
    return [
        f"## fedweave {path}",
        prose(found.default_command) or str(found.help),
        "\n\n".join(re.sub(r"^(.*?): (fedweave .*)$", r"\1: `\2`", line) for line in example.split("\n\n")),
        "\n".join(["| argument or option | what it does |", "|---|---|", *rows]) if rows else "",
        "And the options of an experiment, above." if common else "",
    ]


def names_table(kind: str) -> str:
    """Return what `fedweave list` says of a kind."""
    module, _, name = KINDS[kind].partition(":")
    known = getattr(import_module(f"fedweave.{module}"), name)()
    return "\n".join(["| name | what it is |", "|---|---|", *(f"| `{n}` | {cell(t)} |" for n, t in known.items())])


def cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def methods_page() -> str:
    """Return every method by what it cures, with its settings and the parts that it consists of."""
    text = [
        "# The methods",
        METHODS,
    ]
    for group, (cures, members_) in names.METHODS.items():
        text += [f"## {group}: {cures}"]
        for name in members_.split():
            function = getattr(fw.methods, name)
            parts = re.sub(r"^Method\(\w+: (.*)\)$", r"\1", repr(function()))
            text += [
                f"### {name}",
                f"```python\n{name}{signature(function)}\n```",
                prose(function),
                f"Parts: `{parts}`",
            ]
    return "\n\n".join(text) + "\n"
