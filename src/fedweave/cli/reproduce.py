"""The command ``fedweave reproduce``: reproduce figures and tables of the papers and judge their claims."""

from __future__ import annotations

import json as json_text
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from fedweave import papers
from fedweave.cli.output import check, screen
from fedweave.cli.parameters import NORMAL, Json, Talk, help_text
from fedweave.cli.progress import Count
from fedweave.core.crash_points import crash_point
from fedweave.core.settings import BadInput
from fedweave.tables.files import writable, write_file

if TYPE_CHECKING:
    from fedweave.papers.common.judge import Judged
    from fedweave.papers.common.study import Outcome, Study

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def reproduce(
    *items: Annotated[str, Parameter(metavar="ITEM")],
    scale: Annotated[
        Literal["smoke", "laptop", "paper"] | None,
        help_text("smoke: seconds; laptop: smaller than published, but faithful; paper: as published. [smoke]"),
    ] = None,
    all_: Annotated[
        bool, Parameter("--all", negative="", show_default=False, help="Every item of all papers.")
    ] = False,
    tune: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Also tune every method's learning rate: a column of its own."),
    ] = False,
    budget: Annotated[
        str | None, help_text("Stop after so much time, such as 90m or 2h; finished runs are kept. [none]", "TIME")
    ] = None,
    html: Annotated[Path | None, help_text("Also write a page with figures, tables and verdicts.")] = None,
    record: Annotated[
        Path | None,
        help_text("Also write each outcome as JSON to this folder; finished runs of unfinished items too.", "FOLDER"),
    ] = None,
    accept_earlier_versions: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Continue with seeds of an unfinished item that an earlier version of the code computed.",
        ),
    ] = False,
    page: Annotated[
        Path | None,
        help_text("Write the atlas: pages of all claims, from the outcomes in the --record folder.", "FOLDER"),
    ] = None,
    random: Annotated[
        int | None, help_text("Repeat so many recorded items, of --scale if given; compare with their records.", "N")
    ] = None,
    seed: Annotated[int, help_text("Which items --random chooses. [0]")] = 0,
    talk: Talk = NORMAL,
    json: Json = False,
) -> None:
    """Reproduce figures and tables, with a verdict on each claim.

    ITEM is a name of `fedweave list papers`, or the beginning of one: a paper, or a figure with all its settings. Runs
    are kept in ~/.cache/fedweave/reproduce (FEDWEAVE_CACHE): an interrupted reproduction continues where it was.
    With --page alone nothing is run, and the outcomes are those of the library unless --record names others.
    """
    _check_choice(items, all_, random, page, record)
    check(talk)
    deadline = time.monotonic() + parse_time(budget) if budget else float("inf")
    if random is not None:
        if tune or html or accept_earlier_versions:
            raise BadInput("--random repeats items as they were recorded. Leave out --tune, --html and the like.")
        _repeat(record or papers.RECORDED, random, seed, _How(scale, deadline, json=json, quiet=talk.quiet))
        return
    if not items and not all_:
        _write_pages(record or papers.RECORDED, page)
        return
    if html is not None and (os.path.isdir(html) or not os.access(html.parent, os.W_OK)):
        raise BadInput(f"--html: {str(html)!r} cannot be written. Give a file in a folder that exists.")
    if record is not None and record.exists() and not record.is_dir():
        raise BadInput(f"--record: {str(record)!r} is a file. Give a folder.")
    chosen = papers.select(list(papers.studies()) if all_ else list(items))
    how = _How(scale or "smoke", deadline, tune, record, accept_earlier_versions, json, talk.quiet)
    outcomes, left = _run(chosen, how)
    crash_point("reproduce: judged")
    judged = _judge(outcomes)
    if json:
        found = [{**o.plain(), "claims": [j.plain() for j in judged[o.study.name]]} for o in outcomes]
        single = len(chosen) == 1 and found
        print(json_text.dumps(found[0] if single else {"items": found, "left": left}, allow_nan=False))
    if html is not None and outcomes:
        _write_html(html, outcomes, judged, chosen[0].name if len(chosen) == 1 else f"{len(outcomes)} items")
    if not json:
        for outcome in outcomes if len(outcomes) > 1 else ():
            _print_claims(outcome.study.name, judged[outcome.study.name])
        for name, why in left.items():
            print(f"left: {name}: {why}")
    _write_pages(record, page)


def _check_choice(items: Sequence[str], all_: bool, random: int | None, page: Path | None, record: Path | None) -> None:
    """Refuse what does not go together."""
    some = bool(items) or all_
    if random is not None and random < 1:
        raise BadInput(f"--random must be a number of items, at least 1. Got {random}.")
    if (items and all_) or not (some or random or page):
        raise BadInput("Name the items to reproduce, or give --all for every item of all papers.")
    if random and (some or page):
        raise BadInput("--random chooses among the recorded items. Leave out items, --all and --page.")
    if page and some and record is None:
        raise BadInput("--page shows recorded outcomes. Give --record FOLDER too, or leave out the items.")
    if page and page.exists() and not page.is_dir():
        raise BadInput(f"--page: {str(page)!r} is a file. Give a folder.")


def _write_html(html: Path, outcomes: Sequence[Outcome], judged: Mapping[str, list[Judged]], name: str) -> None:
    from fedweave.papers.common.page import page
    from fedweave.papers.common.recorded import to_recorded

    with writable(html):
        made = page([to_recorded(o) for o in outcomes], judged, f"{name}, scale {outcomes[0].scale}")
        write_file(html, made.encode())


def _write_pages(records: Path | None, page: Path | None) -> None:
    if records is None or page is None:
        return
    from fedweave.papers.atlas import write_pages

    with writable(page):
        write_pages(records, page)


def _repeat(folder: Path, count: int, seed: int, how: _How) -> None:
    """Repeat recorded items chosen at random; exit with 1 if one differs from its record."""
    from fedweave.papers.common.recorded import to_recorded
    from fedweave.papers.common.repeat import choose, compare, without_kept_runs
    from fedweave.papers.common.reproduction import OutOfTime

    chosen = {f"{r.item}, {r.scale}": r for r in choose(folder, count, seed, how.scale)}
    if not how.quiet:
        for name, r in chosen.items():
            cost = f"{_duration(r.cost.processor_seconds)} of processor time" if r.cost else "an unknown time"
            print(f"{name}: took {cost} when it was recorded", file=sys.stderr)
    found, left = {}, ""
    try:
        with without_kept_runs(seed):
            for name, r in chosen.items():
                each = how._replace(scale=r.scale, tune=r.tuned)
                again = found[name] = compare(r, to_recorded(_reproduce(papers.studies()[r.item], each)))
                if not how.json:
                    print(f"{name}: {again.agreement}{f' ({again.why})' if again.why else ''}")
    except OutOfTime as e:
        left = f"the budget is used up: {e}, and kept"
    if how.json:
        plain = {name: again._asdict() for name, again in found.items()}
        print(json_text.dumps({name: plain.get(name, {"agreement": "left", "why": left}) for name in chosen}))
    else:
        for name in (name for name in chosen if name not in found):
            print(f"left: {name}: {left}")
    if any(again.agreement == "different" for again in found.values()):
        sys.exit(1)


class _How(NamedTuple):
    """How items are reproduced."""

    scale: Any
    deadline: float = float("inf")
    tune: bool = False
    record: Path | None = None
    accept_earlier: bool = False
    json: bool = False
    quiet: bool = False


def _run(chosen: Sequence[Study], how: _How) -> tuple[list[Outcome], dict[str, str]]:
    """Return what was reproduced, and why the rest was not; everything is printed as soon as it is there."""
    from fedweave.papers.common.reproduction import OutOfTime

    outcomes: list[Outcome] = []
    left: dict[str, str] = {}
    for study in chosen:
        if time.monotonic() >= how.deadline:
            left[study.name] = "the budget is used up"
            continue
        try:
            outcome = _reproduce(study, how)
        except OutOfTime as e:
            left[study.name] = f"the budget is used up: {e}, and kept"
            continue
        except BadInput as missing:
            if len(chosen) == 1:
                raise
            left[study.name] = str(missing)
            continue
        outcomes.append(outcome)
        if how.record is not None:
            with writable(how.record):
                papers.record(outcome, how.record)
        if not how.json:
            _print(outcome, alone=len(chosen) == 1)
    return outcomes, left


def _reproduce(study: Study, how: _How) -> Outcome:
    """Return one item's outcome, with the runs of earlier sittings where outcomes are recorded."""
    before = papers.unfinished(study.name, how.scale, how.record, how.accept_earlier) if how.record else None
    if how.scale != "smoke" and not how.quiet:
        _announce(study, how.scale)
    with nullcontext() if how.quiet else Count(f"{study.name}, scale {how.scale}") as on_progress:
        said = set[str]()

        def hear(done: int, total: int) -> None:  # first before anything is run
            if before and (new := before.ignored - said):
                said.update(new)
                what = f"{study.name}: {len(new)} runs of an earlier version of the code are not used"
                print(f"{what} (--accept-earlier-versions).", file=sys.stderr)
            if on_progress:
                on_progress(done, total)

        return papers.reproduce(study.name, how.scale, hear, how.deadline, how.tune, before)


def _announce(study: Study, scale: Any) -> None:
    """Print the settings side by side and the cost, before anything begins."""
    from fedweave.papers.common.reproduction import estimate_seconds
    from fedweave.papers.common.study import compare_settings, count_runs

    console = Console(stderr=True)
    table = Table("setting", "published", "laptop", "used", title=f"{study.name}, scale {scale}", title_justify="left")
    for name, values in compare_settings(study, scale).items():
        table.add_row(name, *(str(values[column]) for column in ("published", "laptop", "used")))
    console.print(table)
    seconds, cores = estimate_seconds(study, scale), os.cpu_count() or 1
    cost = "unknown time" if seconds is None else f"about {_duration(seconds / cores)} on {cores} cores"
    console.print(f"{count_runs(study, scale)} runs, {cost}, fidelity {study.fidelity(scale)}", highlight=False)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 100 else f"{seconds / 3600:.1f} h"


def parse_time(text: str) -> float:
    """Return the seconds of a time such as 90m, 2h or 1h30m; a plain number is seconds."""
    number = r"\d+(?:\.\d+)?"
    found = re.fullmatch(rf"(?:{number}[smhd])*(?:{number})?", text.strip())
    parts = re.findall(rf"({number})([smhd]?)", text) if found else []
    seconds = sum(float(number) * UNITS[unit or "s"] for number, unit in parts)
    if not seconds:
        raise BadInput(f"--budget must be a time such as 90m, 2h or 1h30m. Got {text!r} instead.")
    return seconds


def _judge(outcomes: Sequence[Outcome]) -> Mapping[str, list[Judged]]:
    """Return the claims of every item, corrected for all claims that were run here."""
    from fedweave.papers.common.judge import settle

    settled = settle([judged for outcome in outcomes for judged in outcome.judged()])
    return {o.study.name: [j for j in settled if j.claim.item == o.study.name] for o in outcomes}


def _print(outcome: Outcome, alone: bool) -> None:
    from fedweave.papers.common.scale import caution

    rows, study = outcome.rows(), outcome.study
    if rows:
        table = Table(*rows[0], title=f"{study.name}, scale {outcome.scale}", title_justify="left")
        for row in rows:
            table.add_row(*row.values())
        screen(150).print(table)
    if alone:
        _print_claims(study.name, _judge([outcome])[study.name])
    print("\n".join([*outcome.notes, *filter(None, [caution(outcome.scale, study.fidelity(outcome.scale))])]))


def _print_claims(item: str, judged: Sequence[Judged]) -> None:
    for j in judged:
        print(f"{j.verdict}, {j.shown_fidelity}: {item}: {j.claim.claim} ({j.family}; {j.evidence or 'no evidence'})")
