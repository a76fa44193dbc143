"""One thing that a check found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["critical", "warning", "unknown", "ok"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: how it stands, and how to mend it."""

    level: Level
    check: str
    address: str
    what: str
    mend: str = ""

    @property
    def serious(self) -> bool:
        """Whether somebody has to do something about it."""
        return self.level in ("critical", "warning")

    def as_dict(self) -> dict[str, str]:
        """Return the finding as data."""
        return asdict(self)
