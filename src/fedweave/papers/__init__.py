"""Reproduce the papers' figures and tables, one command each: ``fedweave reproduce ITEM``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.core.errors import BadInput, brief, nearest
from fedweave.papers.common.ledger import SECTIONS, claims

if TYPE_CHECKING:
    from fedweave.papers.common.judge import Judged
    from fedweave.papers.common.parallel import Progress
    from fedweave.papers.common.recorded import Recorded
    from fedweave.papers.common.scale import Scale
    from fedweave.papers.common.study import Outcome, Study
    from fedweave.papers.common.unfinished import Unfinished

# Outcomes of runs that count, one file per item and scale: in the repository, or as they were packed.
RECORDED = next(
    (
        p
        for p in (Path(__file__).parents[3] / "results", Path(__file__).parent / "recorded")
        if (p / "README.md").is_file()
    ),
    Path(__file__).parent / "recorded",
)
REFUSE = "Reproducing papers needs {}. Install it with: pip install 'fedweave[papers]'."


@cache
def studies() -> Mapping[str, Study]:
    """Return every figure and table by name, paper by paper."""
    try:
        modules = [import_module(f"fedweave.papers.{section}") for section in SECTIONS]
    except ImportError as e:
        raise BadInput(REFUSE.format(e.name)) from None
    return {study.name: study for module in modules for study in getattr(module, "STUDIES", ())}


def select(names: Sequence[str]) -> list[Study]:
    """Return studies by their names, or by the beginning of their names: a paper, or a figure with all its settings.

    They come in the ledger's order of importance: primary claims first, studies without claims last.
    """
    found, known = dict[str, Any](), studies()
    for name in names:
        chosen = {n: s for n, s in known.items() if n == name or n.startswith(f"{name}/")}
        if not chosen:
            raise BadInput(no_item(name, known))
        found |= chosen
    from fedweave.papers.common.reproduction import in_order

    ledger = sorted(claims().values(), key=lambda c: not c.primary)
    return in_order(list(found.values()), [c.item for c in ledger])


def no_item(name: str, known: Iterable[str], what: str = "item") -> str:
    """Return the sentence for what is neither an item nor the beginning of one."""
    groups = sorted({n.rsplit("/", k)[0] for n in known for k in range(3)})
    return f"There is no {what} {brief(name)!r}.{nearest(name, groups)} `fedweave list papers` shows all items."


def reproduce(
    item: str,
    scale: Scale = "smoke",
    on_progress: Progress | None = None,
    deadline: float = float("inf"),
    tune: bool = False,
    unfinished: Unfinished | None = None,
) -> Outcome:
    """Reproduce one figure or table; smoke takes seconds, laptop is smaller than published, paper is as published.

    ``unfinished`` has runs of earlier sittings, and gets the finished ones if this sitting ends too early.
    """
    from fedweave.papers.common.reproduction import Limits, reproduce_study

    for module in ("joblib", "torch", "cloudpickle"):
        if find_spec(module) is None:
            raise BadInput(REFUSE.format(module))
    if item not in studies():
        raise BadInput(no_item(item, studies()))
    try:
        return reproduce_study(studies()[item], scale, Limits(deadline, on_progress, unfinished), tune)
    except BaseException:
        if unfinished:
            unfinished.save()
        raise


def unfinished(item: str, scale: Scale, folder: Path, accept_earlier: bool = False) -> Unfinished:
    """Return what earlier sittings left of an item in a folder of recorded outcomes."""
    from fedweave.papers.common.recorded import file_name
    from fedweave.papers.common.unfinished import Unfinished

    place = folder / "unfinished" / file_name(item, scale)
    return Unfinished(place, accept_earlier, studies()[item].needs_reports)


def record(outcome: Outcome, folder: Path) -> Path:
    """Write an outcome and its claims, before correction, as JSON; ``fedweave list claims`` reads such files."""
    from fedweave.engine.machine import processor, versions
    from fedweave.papers.common.recorded import file_name, to_json, to_recorded
    from fedweave.tables.files import write_file

    facts = {"date": time.strftime("%Y-%m-%d"), "processor": processor(), "versions": versions()}
    content = {**to_recorded(outcome).model_dump(), **facts}
    path = folder / f"{file_name(outcome.study.name, outcome.scale)}.json"
    folder.mkdir(parents=True, exist_ok=True)
    write_file(path, to_json(content))
    left = unfinished(outcome.study.name, outcome.scale, folder)
    left.remove(() if "tuned" in outcome.records else ("tune", "tuned"))
    return path


def list_claims(folder: Path = RECORDED, item: str = "") -> list[dict[str, Any]]:
    """Return every claim of the ledger with its verdict, as ``fedweave list claims --json`` prints it.

    ``item`` is the beginning of the items of those that are wanted: a paper, or a figure with all its settings.
    """
    found = [{**judged.plain(), "date": (by and by.date) or None} for judged, by in judged_claims(folder)]
    chosen = [entry for entry in found if not item or f"{entry['item']}/".startswith(f"{item}/")]
    if not chosen:
        raise BadInput(no_item(item, [entry["item"] for entry in found], "claim about"))
    return chosen


def judged_claims(folder: Path = RECORDED) -> list[tuple[Judged, Recorded | None]]:
    """Return every claim of the ledger with its verdict and the recorded outcome that it is by, if there is one.

    Of several records of a claim the most faithful with all its seeds counts, and the latest of equals. One recorded
    under another wording of the claim does not.
    """
    from fedweave.papers.common.judge import Judged, read_judged, settle
    from fedweave.papers.common.recorded import all_recorded

    rank = ("toy", "faithful", "published", "exact")
    best: dict[str, tuple[tuple[bool, int, str], Judged, Recorded]] = {}
    for content in all_recorded(folder):
        for entry in content.claims:
            claim = claims().get(entry["id"])
            if claim is None or claim.digest != entry["digest"]:
                continue
            judged = read_judged(claim, entry)
            whole = judged.seeds >= claim.seeds or judged.fidelity == "exact"
            weight = whole, rank.index(judged.fidelity), content.date
            if claim.id not in best or weight >= best[claim.id][0]:
                best[claim.id] = weight, judged, content
    found = [best[c.id][1:] if c.id in best else (Judged(c, "toy"), None) for c in claims().values()]
    return list(zip(settle([judged for judged, _ in found]), (by for _, by in found), strict=True))


def shown() -> dict[str, str]:
    """Return what every item shows, by name."""
    try:
        return {name: study.shows for name, study in studies().items()}
    except BadInput as missing:  # the extra; the ledger of claims needs no more than Python
        return {"…": str(missing)}
