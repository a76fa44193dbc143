"""Every message and page that names a command, an option, an extra, a file or a Python name, names one that exists."""

import ast
import os
import re
import runpy
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import fedweave
from fedweave.cli.options import OLD_NAMES, as_option
from fedweave.cli.root import app

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
PAGES += sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.*")])
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
COMMAND = re.compile(r"(`|: |\$ |^)fedweave ((?:[^`\n;|>.]|\.(?=\w))+)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w/-])--[a-z][a-z-]*[a-z]")
EXTRA = re.compile(r"fedweave\[([\w,\s-]+)\]")
FILE = re.compile(r"(?<![\w/.])((?:docs|examples|benchmarks|tests|results)/[\w./-]*\w\.(?:md|py|csv|toml))(#[\w-]+)?")
LINK = re.compile(r"\]\(([\w./-]+\.md)?(#[\w-]+)?\)")
NAME = re.compile(r"(?<![\w./@-])(?:fw|fedweave)((?:\.[A-Za-z_]\w*)+)")
FOREIGN = {
    "--force-reinstall": "pip",
    "--sf": "LEAF",
    "--node-config": "Flower",
    "--stream": "Flower",
    "--imitate": "bits.py",
    "--logdir": "TensorBoard",
}  # options of other programs
NOT_OURS = (
    "report/style.py",
    "papers/atlas/style.py",
    "fleet/local/processes.py",
    "fleet/local/new_app.py",
    "fleet/doctor/",
)  # style sheets, Flower's programs
OTHERS = ("deploy", "performance", "ray", "migrating")  # pages with options of other programs, or with old names
GROUPS = {f"fedweave.{kind}" for kind in ("methods", "data", "models", "partitions", "systems", "tasks", "uploads")}
VARIABLE = re.compile(r"FEDWEAVE_[A-Z]+")


class Text(NamedTuple):
    """A text that users may read, and where it stands."""

    where: str
    text: str


def strings(path: Path) -> Iterator[Text]:
    """Yield the strings of a source file; what is filled in later is an underscore."""
    name = path.relative_to(ROOT)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "_" for p in node.values]
            yield Text(f"{name}:{node.lineno}", "".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Text(f"{name}:{node.lineno}", node.value)


@pytest.fixture(scope="module")
def texts():
    sources = [text for path in sorted((ROOT / "src").rglob("*.py")) for text in strings(path)]
    return sources + [
        Text(f"{page}:{number}", line)
        for page in PAGES
        for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1)
    ]


@cache
def options_of(*command):
    """Return the options of a command."""
    found = app
    for word in command:
        found = found[word]
    names = {"--help", "--version"}
    if found.default_command:
        names |= {name for a in found.assemble_argument_collection() for name in a.names if name.startswith("-")}
    return names


@cache
def commands():
    """Return every command, with those of flower as two words."""
    plain = [(name,) for name in app if not name.startswith("-")]
    return [*plain, *(("flower", name) for name in app["flower"] if not name.startswith("-"))]


def wrong_commands(text):
    """Return the commands that do not exist, and those whose options do not."""
    for mark, typed in COMMAND.findall(text):
        words = typed.replace("[", " ").replace("]", " ").replace("=", " ").split()
        command = tuple(words[: 2 if words[0] == "flower" else 1])
        if command in commands():
            known = options_of(*command)
            yield from (
                f"fedweave {typed}: {o}" for w in words for o in OPTION.findall(w) if w[0] == "-" and o not in known
            )
        elif mark in ("`", ": ") and words[0] != "_" and words[0].islower() and not words[0].startswith("-"):
            yield f"fedweave {typed}"


def wrong_options(text):
    """Return the options that no command has."""
    known = {as_option(name) for name in OLD_NAMES}.union(FOREIGN, *(options_of(*command) for command in commands()))
    return [option for option in OPTION.findall(text) if option not in known]


def wrong_extras(text):
    """Return the extras that the project does not have."""
    named = [extra.strip() for several in EXTRA.findall(text) for extra in several.split(",")]
    return [extra for extra in named if extra not in EXTRAS and extra != "_"]


@cache
def headings(page):
    """Return the anchors of a page."""
    lines = (made().get(page) or (ROOT / page).read_text(encoding="utf-8")).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {"#" + re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@cache
def made():
    """Return the pages that `make docs` makes, by their places."""
    pages = runpy.run_path(str(ROOT / "tools/reference.py"))["pages"]()
    return {f"docs/reference/{name}": text for name, text in pages.items()}


def wrong_files(text, page=""):
    """Return the files that are not in the tree, and the headings that are not on their pages."""
    here = Path(page).parent
    linked = [((here / file).as_posix() if file else page, anchor) for file, anchor in LINK.findall(text) if page]
    for file, anchor in [*FILE.findall(text), *linked]:
        place = os.path.normpath(file)
        if not (ROOT / place).is_file() and place not in made():
            yield file
        elif anchor and anchor not in headings(place):
            yield file + anchor


def wrong_names(text):
    """Return the names of the package that it does not have."""
    for path in NAME.findall(text):
        found = fedweave
        for name in path[1:].split("."):
            if f"fedweave{path}" in GROUPS or name == "_":
                break
            try:
                found = getattr(found, name) if hasattr(found, name) else import_module(f"{found.__name__}.{name}")
            except (AttributeError, ImportError):
                yield f"fedweave{path}"
                break


def test_every_command_exists_with_its_options(texts):
    assert not [(t.where, wrong) for t in texts for wrong in wrong_commands(t.text)]


def test_every_option_exists(texts):
    ours = [t for t in texts if " " in t.text and not any(place in t.where for place in (*NOT_OURS, *OTHERS))]
    assert not [(t.where, wrong) for t in ours for wrong in wrong_options(t.text)]
    assert all(any(option in t.text for t in ours) for option in FOREIGN), "one that is no longer named"


def test_every_extra_exists(texts):
    assert not [(t.where, wrong) for t in texts for wrong in wrong_extras(t.text)]


def test_every_file_and_heading_exists(texts):
    for text in texts:
        page = text.where.split(":")[0]
        assert not list(wrong_files(text.text, page if page in PAGES else "")), text


def test_every_name_of_the_package_exists(texts):
    sentences = [t for t in texts if " " in t.text and "migrating" not in t.where]
    assert not [(t.where, wrong) for t in sentences for wrong in wrong_names(t.text)]


def test_every_variable_is_read(texts):
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = {name for t in texts for name in VARIABLE.findall(t.text)}
    assert named
    assert not [name for name in named if f'"{name}"' not in sources]


@pytest.mark.parametrize(
    ("check", "text", "wrong"),
    [
        (wrong_commands, "Continue with: fedweave resum runs/x", "fedweave resum runs/x"),
        (wrong_commands, "`fedweave resume RUN` goes on", None),
        (wrong_commands, "`fedweave list metods --al`", "fedweave list metods --al: --al"),
        (wrong_commands, "such as: fedweave flower dmo", "fedweave flower dmo"),
        (wrong_commands, "`fedweave report _ --html FILE`, or `fedweave _`", None),
        (wrong_options, "Give --ronds 3, or --rounds", "--ronds"),
        (wrong_extras, "pip install 'fedweave[torch,dat]'", "dat"),
        (wrong_files, "docs/guid.md says how", "docs/guid.md"),
        (wrong_files, "see docs/guide.md#no-such-heading", "docs/guide.md#no-such-heading"),
        (wrong_names, "fw.data.from_array makes one", "fedweave.data.from_array"),
        (wrong_names, "fedweave.data.from_arrays or fw.Experiment", None),
    ],
)
def test_what_does_not_exist_is_found(check, text, wrong):
    assert list(check(text)) == ([] if wrong is None else [wrong])
