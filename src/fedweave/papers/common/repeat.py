"""Repeat recorded items and compare: to the bit where software and processor are the same, else by verdicts."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedweave import papers
from fedweave.core.errors import BadInput
from fedweave.engine.machine import SOFTWARE, processor, versions
from fedweave.papers.common.cache import cache_folder, code_digest
from fedweave.papers.common.judge import read_judged, settle
from fedweave.papers.common.ledger import claims
from fedweave.papers.common.recorded import Recorded, all_recorded

Agreement = Literal["to the bit", "verdicts", "different"]


class Repeated(NamedTuple):
    """How a repeated item compares with its record."""

    agreement: Agreement
    why: str  # what differs


def choose(folder: Path, count: int, seed: int, scale: str | None = None) -> list[Recorded]:
    """Return so many recorded outcomes, of one scale if it is given; the same for the same records and seed."""
    known = [record for record in all_recorded(folder) if record.item in papers.studies()]
    known = [record for record in known if scale in (None, record.scale)]
    if len(known) < count:
        at = f" at scale {scale}" if scale else ""
        raise BadInput(f"--random {count}: {str(folder)!r} has {len(known)} recorded outcomes{at}.")
    return random.Random(seed).sample(known, count)


@contextmanager
def without_kept_runs(seed: int) -> Generator[None]:
    """Keep runs in a folder of their own, removed at the end: an interrupted repetition continues, others are new."""
    before, folder = os.environ.get("FEDWEAVE_CACHE"), cache_folder() / f"repeated-{seed}"
    os.environ["FEDWEAVE_CACHE"] = str(folder)
    try:
        yield
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        if before is None:
            del os.environ["FEDWEAVE_CACHE"]
        else:
            os.environ["FEDWEAVE_CACHE"] = before


def compare(recorded: Recorded, again: Recorded) -> Repeated:
    """Compare an outcome with its record.

    Every number must be the same where every seed was computed with this software on this kind of processor.
    Elsewhere, or by another version of the code, the verdicts must be.
    """
    if again.measures == recorded.measures:
        return Repeated("to the bit", "")
    elsewhere = _elsewhere(recorded)
    first = _first_difference(recorded.measures, again.measures)
    changed = [name for name, verdict in _verdicts(recorded).items() if _verdicts(again).get(name) != verdict]
    if changed:
        return Repeated("different", f"other verdicts: {', '.join(changed)}; {first}")
    return Repeated("verdicts" if elsewhere else "different", f"{elsewhere or 'on the same machine'}; {first}")


def _elsewhere(recorded: Recorded) -> str:
    """Return what was other than here when the record was made."""
    here = {name: number for name, number in versions().items() if name in SOFTWARE}
    software = [{n: o.versions[n] for n in SOFTWARE if n in o.versions} for o in recorded.origins or ()]
    software = software or [{name: recorded.versions[name] for name in SOFTWARE if name in recorded.versions}]
    machines = [o.processor for o in recorded.origins or ()] or [recorded.processor]
    codes = {o.code for o in recorded.origins or ()} or {""}
    other = {
        "another processor": any(machine != processor() for machine in machines),
        "other software": any({**here, **each} != here for each in software),
        "another version of the code": codes != {code_digest()},
    }
    return ", ".join(name for name, differs in other.items() if differs)


def _verdicts(recorded: Recorded) -> dict[str, str]:
    known = [entry for entry in recorded.claims if entry["id"] in claims()]
    return {j.claim.id: j.verdict for j in settle([read_judged(claims()[entry["id"]], entry) for entry in known])}


def _first_difference(before: Mapping[str, Any], after: Mapping[str, Any], where: Sequence[str] = ()) -> str:
    for name in before:
        here = (*where, name)
        if name not in after:
            return f"{', '.join(here)} is missing"
        if isinstance(before[name], dict):
            if before[name] != after[name]:
                return _first_difference(before[name], after[name], here)
        elif before[name] != after[name]:
            return f"{', '.join(here)}: {before[name]} before, {after[name]} now"
    return "there is more than before"
