"""docs/deploy.md: every command and option that it names exists, and what leaves a client is what it says."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

import fedweave as fw
from fedweave import flower
from fedweave.fleet.server.terms import VirtualClock
from flower.rehearsal import CLIENTS, app, experiment, network, run

PAGE = Path(__file__).parents[2] / "docs/deploy.md"
PROGRAMS = "fedweave", "flwr", "flower-superlink", "flower-supernode"
OTHER_LANGUAGES = "python", "toml", "nginx"

Tree = dict[str, Any]  # "" -> the options of a command; name -> the tree of a subcommand


def code(text: str) -> Iterator[str]:
    """Yield the blocks and the inline code of a page, blocks line by line with continued lines joined."""
    fenced = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    for _, language, block in fenced.findall(text):
        if language not in OTHER_LANGUAGES:
            yield from re.sub(r"\\\n\s*", "", block).splitlines()
    yield from re.findall(r"`([^`\n]+)`", fenced.sub("", text))


def commands(text: str) -> list[list[str]]:
    """Return the commands of these programs on a page, as words."""
    names = "|".join(PROGRAMS)
    found = []
    for line in code(text):
        for part in re.split(r";|&&|\|| # ", line):
            if match := re.search(rf"(?:^|[\s/=])({names})(?: .*)?$", part):
                found.append(shlex.split(part[match.start(1) :]))
    return found


@cache
def tree(program: str) -> Tree:
    """Return what a program accepts; nothing is started, since Flower's programs look for updates when they are."""
    if program == "fedweave":
        from fedweave.cli.app import app

        return of_cyclopts(app)
    if program == "flwr":
        from flwr.cli.app import app
        from typer.main import get_command

        return of_click(get_command(app))
    if program == "flower-superlink":
        from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink as parser
    else:
        from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode as parser
    shown = parser().format_help()
    return {"": set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", shown))}


def of_cyclopts(app: Any) -> Tree:
    below = {name: of_cyclopts(app[name]) for name in app if not name.startswith("-")}
    options = {"--help"}
    if app.default_command is not None:
        options |= {name for argument in app.assemble_argument_collection() for name in argument.names}
    return below | {"": options}


def of_click(command: Any) -> Tree:
    below = {name: of_click(sub) for name, sub in getattr(command, "commands", {}).items()}
    return below | {"": {option for p in command.params for option in (*p.opts, *p.secondary_opts)}}


def unknown(words: list[str]) -> list[str]:
    """Return the words of a command that its program does not know: a subcommand or options."""
    here, *rest = tree(words[0]), *words[1:]
    while rest and rest[0] in here:
        here, *rest = here[rest[0]], *rest[1:]
    if len(here) > 1 and rest and not rest[0].startswith("-"):
        return rest[:1]
    options = [word.partition("=")[0] for word in rest if re.match("--?[a-zA-Z]", word)]
    return [option for option in options if option not in here[""]]


def test_every_command_and_option_of_the_page_exists():
    found = commands(PAGE.read_text(encoding="utf-8"))
    assert {words[0] for words in found} == set(PROGRAMS)
    assert sum(word.startswith("--") for words in found for word in words) > 50, "continued lines and units are read"
    assert [(" ".join(words), bad) for words in found if (bad := unknown(words))] == []
    alone = set(re.findall(r"`(--[a-z-]+)(?: [^`]*)?`", PAGE.read_text(encoding="utf-8")))
    assert alone
    assert alone - set().union(*(all_options(tree(program)) for program in PROGRAMS)) == set()


def all_options(of: Tree) -> set[str]:
    return of[""].union(*(all_options(below) for name, below in of.items() if name))


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("fedweave flower doctor --adress x:1 --json", ["--adress"]),
        ("fedweave flower key folder --host x", ["key"]),
        ("flwr supernode remove 3", ["remove"]),
        ("flwr supernode list fleet --verbos", ["--verbos"]),
        ("ExecStart=/opt/bin/flower-superlink --host 127.0.0.1 \\\n    --data-base=x", ["--data-base"]),
        ("flower-supernode --superlink a:1 --port 1 --enable-supernode-auth", ["--enable-supernode-auth"]),
    ],
)
def test_one_that_does_not_exist_is_found(line, bad):
    ((words),) = commands(f"text\n```\n{line}\n```\n")
    assert unknown(words) == bad


def test_the_links_within_the_page_lead_somewhere():
    text = PAGE.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    others = "".join(page.read_text(encoding="utf-8") for page in PAGE.parent.glob("*.md"))
    wanted = set(re.findall(r"\]\(#([\w-]+)\)", text)) | set(re.findall(r"\(deploy\.md#([\w-]+)\)", others))
    assert wanted <= anchors
    assert len(wanted) > 5


class Noting(flower.LocalGrid):
    """A fleet that notes the names of the records and numbers that leave its clients, by the kind of question."""

    def __init__(self, names):
        super().__init__(app(), CLIENTS)
        self._names = names

    def _answered(self, message, node):
        answer = super()._answered(message, node)
        assert answer.has_content(), answer.error.reason
        found = self._names.setdefault(answer.metadata.message_type, set())
        for name, record in answer.content.items():
            found |= {
                name,
                *(() if name in ("update", "arrays") else record),
            }  # the arrays of these have the app's names
        return answer


def test_what_leaves_a_client_is_in_the_table():
    """Every record and every number in it, of methods that ask for all there is, and nothing more."""
    sent: dict[str, set[str]] = {}
    for method in ("scaffold", "feddd", "oort", "fedpracdelta", "fedacs_private", "power_of_choice"):
        run(experiment(getattr(fw.methods, method)(3), rounds=2), Noting(sent))
    strategy = flower.Strategy(fw.methods.fedavg(CLIENTS), clock=VirtualClock())
    clipped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1.0, CLIENTS)
    clipped.start(Noting(sent), network(), num_rounds=1)
    table = PAGE.read_text().partition("## What leaves a client")[2].partition("\n\nSamples, labels")[0]
    named, when = dict[str, set[str]](), ""
    for begin, what in re.findall(r"^\| ?(.*?) ?\| (.*) \|$", table, re.MULTILINE):
        when = begin.partition(",")[0] or when
        named.setdefault(when, set()).update(re.findall(r"`([^`]+)`", what))
    kinds = {"query": "first contact", "train": "training", "query.loss": "Power-of-Choice", "evaluate": "evaluation"}
    assert {kinds[kind]: names for kind, names in sent.items()} == {when: named[when] for when in kinds.values()}
