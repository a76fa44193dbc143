"""The ledger: every quantitative or ordinal claim of the papers, written down before it is tried.

One file per paper in ``papers/ledger``, and one for questions that no single paper asks. ``frozen.json`` holds the
digest of each claim and the day it was frozen. A claim that changes afterwards is a new claim, with a reason.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal

LEDGER = Path(__file__).parents[1] / "ledger"
PAPERS = ("fedacs", "fedaware", "latency", "delta", "feddd")
BEYOND = "beyond"  # what no single paper asks: without published settings and a primary claim
SECTIONS = (*PAPERS, BEYOND)  # of the ledger and of the items
Kind = Literal["greater", "less", "equal", "rising", "falling", "value", "above", "below", "holds"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of a paper, in our words, and how it is judged.

    ``kind`` says what is claimed of ``measure``: that of ``ours`` is greater or less than that of each of ``others``
    (by more than the factor ``factor`` where ratios are compared, by more than ``value`` where differences are, if
    given), equal to each within ``margin``; that it rises or falls along ``others``, in order; that it has the value
    ``value`` within ``margin``, or lies above or below it; or that it holds, being 1 and not 0.
    A claim of superiority is contradicted also where equality within ``margin`` is shown.
    """

    id: str  # such as fedaware/top-hybrid+
    item: str  # what must be run, such as fedaware/table1/hybrid+
    where: str  # page and sentence, figure or table
    claim: str
    measure: str
    kind: Kind
    ours: str
    others: tuple[str, ...] = ()
    margin: float = 0.0
    factor: float = 1.0
    value: float | None = None
    published: str = ""  # the paper's own numbers
    primary: bool = False
    seeds: int = 5
    column: Literal["paper", "calibrated", "tuned"] = "paper"  # how learning rates were set
    beyond: bool = False  # ours, not the paper's
    replaces: str = ""  # the claim that this one replaces, and why

    @property
    def paper(self) -> str:
        """The paper's short name."""
        return self.id.split("/")[0]

    @property
    def digest(self) -> str:
        """SHA-256 of the whole entry."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@cache
def claims() -> Mapping[str, Claim]:
    """Return all claims by id, paper by paper, in order of importance."""
    found: dict[str, Claim] = {}
    for paper in SECTIONS:
        for entry in _entries(paper):
            claim = Claim(**{**entry, "others": tuple(entry.get("others", ()))})
            if claim.id in found or claim.paper != paper:
                raise ValueError(f"The ledger of {paper} has a second or foreign claim {claim.id!r}.")
            found[claim.id] = claim
    return found


def _entries(paper: str) -> list[dict[str, Any]]:
    path = LEDGER / f"{paper}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")).get("claim", []) if path.is_file() else []


def claims_of(item: str) -> list[Claim]:
    """Return the claims that an item decides."""
    return [claim for claim in claims().values() if claim.item == item]


def frozen() -> dict[str, list[str]]:
    """Return digest and day of every frozen claim."""
    path = LEDGER / "frozen.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def freeze() -> list[str]:
    """Freeze the claims that are not yet frozen and return their ids; refuse those that changed since."""
    known, today = frozen(), date.today().isoformat()
    if changed := [c.id for c in claims().values() if c.id in known and known[c.id][0] != c.digest]:
        raise ValueError(f"These claims changed after they were frozen: {', '.join(changed)}. Add new ones instead.")
    new = {c.id: [c.digest, today] for c in claims().values() if c.id not in known}
    if new:
        text = json.dumps(known | new, indent=1, sort_keys=True)
        (LEDGER / "frozen.json").write_text(text + "\n", encoding="utf-8")
    return list(new)
