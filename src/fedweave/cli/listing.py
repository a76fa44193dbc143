"""The command ``fedweave list``: the names that options take, in short or one kind with a line each."""

from __future__ import annotations

import json as json_text
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from textwrap import TextWrapper
from typing import Annotated, Literal

from fedweave.cli.parameters import Json, flag, help_text
from fedweave.core import names, plugins
from fedweave.core.errors import BadInput

KINDS = {  # where the names of each kind and a line about each are found: loaded only if they are wanted
    "methods": "runs.method_names:method_names",
    "data": "data.datasets:info",
    "models": "models:info",
    "partitions": "data.partition:forms",
    "systems": "system.names:info",
    "tasks": "tasks.names:info",
    "papers": "papers:shown",
}
LINES = 2  # of a kind in the short list


def list_(
    what: Literal["methods", "data", "models", "partitions", "systems", "tasks", "papers", "claims"] | None = None,
    item: Annotated[str, help_text("With claims: a paper, or the beginning of an item, such as feddd/fig7.")] = "",
    *,
    run: Annotated[bool, flag("With claims: only those that were run.")] = False,
    json: Json = False,
) -> None:
    """Show the names that options take, those of plug-ins too, or the papers' claims with their verdicts.

    Without a kind: a line or two about each. With --json everything is printed, also without a kind.
    """
    if what == "claims":
        _print_claims(item, run, json)
    elif item or run:
        raise BadInput("ITEM and --run choose among the claims: fedweave list claims feddd --run")
    elif what or json:
        _print_all({kind: plugins.info(kind, _known(kind)) for kind in ([what] if what else KINDS)}, json)
    else:
        sys.stdout.write(short_list(shutil.get_terminal_size().columns))


def _known(kind: str) -> Mapping[str, str]:
    module, _, name = KINDS[kind].partition(":")
    function: Callable[[], Mapping[str, str]] = getattr(import_module(f"fedweave.{module}"), name)
    return function()


def _print_all(chosen: Mapping[str, Mapping[str, str]], json: bool) -> None:
    """Print every name with what it is; methods by what they cure."""
    groups = dict[str, list[str]]()
    if "methods" in chosen:
        from fedweave.runs.method_names import method_groups

        groups = method_groups(chosen["methods"])
    if json:
        print(json_text.dumps({**chosen, "groups": groups} if "methods" in chosen else chosen))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    for title, rows in chosen.items():
        table = Table("name", "what it is", title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for group, members in groups.items() if title == "methods" else [("", rows)]:
            if group:
                table.add_row()
                table.add_row(group, names.METHODS.get(group, ("of installed packages",))[0], style="bold")
            for name in members:
                table.add_row(Text(f"  {name}" if group else name), Text(rows[name]))  # ":UP:" is an emoji to rich
        Console().print(table)


def short_list(width: int) -> str:
    """Return how many names of each kind there are, and those that most people use."""
    from fedweave.models import names as models
    from fedweave.papers.common.ledger import SECTIONS, frozen

    known: dict[str, tuple[Sequence[str], int]] = {  # those to show, and how many there are
        "methods": (names.COMMON_METHODS, len(names.methods())),
        "data": (names.DATA, len(names.DATA)),
        "models": (names.COMMON_MODELS, len(models())),
        "partitions": (names.PARTITIONS, len(names.PARTITIONS)),
        "systems": (names.SYSTEMS, len(names.SYSTEMS)),
        "tasks": (names.TASKS, len(names.TASKS)),
    }
    every, lines = entry_points(), list[str]()
    for kind, (shown, count) in known.items():
        offered = plugins.offered(kind, every)  # by installed packages, which somebody wanted: they come first
        lines += _kind(kind, count + len(offered), [*offered, *shown], width)
    lines += _kind("papers", len(SECTIONS), SECTIONS, width)
    lines += _kind("claims", len(frozen()), ["what the papers say, with the verdicts of recorded runs"], width)
    more = (
        f"`fedweave list methods` shows all methods with a line each; so do {', '.join(list(KINDS)[1:-1])}, papers and "
        "claims. Your own are named module:name."
    )
    return "\n".join([*lines, "", *TextWrapper(width).wrap(more)]) + "\n"


def _kind(kind: str, count: int, shown: Sequence[str], width: int) -> list[str]:
    """Return the lines about one kind, with an ellipsis where there are more names."""
    head, more = f"{kind:<10}  {count:>4}  ", " …" if 1 < len(shown) < count else ""
    wrap = TextWrapper(
        max(width, 40), initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False,
        break_on_hyphens=False, max_lines=LINES, placeholder=" …",
    )  # fmt: skip
    return wrap.wrap(" ".join(shown) + more)


def _print_claims(item: str, run: bool, json: bool) -> None:
    """Print the claims of the ledger with the verdicts of their recorded runs."""
    from rich.table import Table

    from fedweave import papers
    from fedweave.cli.output import screen
    from fedweave.papers.common.judge import shown_fidelity
    from fedweave.papers.common.results_page import count_run

    found = papers.list_claims(item=item)
    chosen = [entry for entry in found if entry["verdict"] != "not run" or not run]
    if json:
        print(json_text.dumps(chosen, allow_nan=False))
        return
    table = Table("paper", "claim", "where", "published", "verdict", "evidence", title="claims", title_justify="left")
    for entry in chosen:
        at = f", {shown_fidelity(entry['item'], entry['fidelity'])}" if entry["verdict"] != "not run" else ""
        verdict = entry["verdict"] + at
        mark = " (primary)" if entry["primary"] else " (beyond the paper)" if entry["beyond"] else " (exploratory)"
        cells = (entry["claim"] + mark, entry["where"], entry["published"] or "—", verdict, entry["evidence"] or "—")
        table.add_row(entry["paper"], *cells)
    screen(150).print(table)
    counted = count_run([(entry["beyond"], entry["verdict"]) for entry in found])
    print(f"{counted} `fedweave reproduce ITEM` runs one; docs/reproduce.md explains.")
