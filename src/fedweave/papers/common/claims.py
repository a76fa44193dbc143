"""What a reproduction says: a table, the paper's claims with a verdict each, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from fedweave.runs.results import Result

Scale = Literal["smoke", "laptop", "paper"]
Verdict = Literal["confirmed", "not confirmed", "not run at this scale"]


@dataclass(frozen=True)
class Claim:
    """One thing the paper says, and what we found."""

    text: str
    verdict: Verdict
    evidence: str

    @classmethod
    def judged(cls, text: str, holds: bool, evidence: str) -> Claim:
        """Return the claim with the verdict that the evidence gives."""
        return cls(text, "confirmed" if holds else "not confirmed", evidence)


@dataclass(frozen=True)
class Outcome:
    """A figure or table of a paper, made again."""

    item: str
    scale: Scale
    rows: Sequence[Mapping[str, Any]]  # one mapping per line of the table, same keys
    claims: Sequence[Claim]
    notes: Sequence[str] = field(default=())
    runs: Sequence[Result] = field(default=())  # what can be drawn as a report

    def plain(self) -> dict[str, Any]:
        """Return everything but the runs as JSON-able data."""
        return {name: value for name, value in asdict(replace(self, runs=())).items() if name != "runs"}
