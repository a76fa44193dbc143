"""docs/results.md, made of the recorded outcomes alone: ``python -m fedweave.papers.common.results_page FILE``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedweave import papers
from fedweave.papers.common.judge import Judged
from fedweave.papers.common.ledger import SECTIONS

HEAD = """# Results

Made by `make results` from the files in [results/](../results), which `fedweave reproduce ITEM --scale SCALE --record
results` wrote; nothing here is typed by hand. How claims are judged: [reproduce.md](reproduce.md). Primary claims are
corrected by Holm's method over the five papers, a paper's other claims by Benjamini and Hochberg's within the paper:
those are exploratory; our own questions beyond a paper are a family of their own. Detectable effects are before
correction. An *undecided* claim shows the difference that its seeds would have found.
"""


def markdown(folder: Path = papers.RECORDED) -> str:
    """Return the page: counts, the primary claims, and every recorded item with its table and claims."""
    judged = papers.judged_claims(folder)
    days = {j.claim.id: day for j, day in judged}
    run = [j for j, _ in judged if j.verdict != "not run"]
    primary = [j for j, _ in judged if j.claim.primary]
    body = [HEAD, "## Counts\n", _counts([j for j, _ in judged]), "## The primary claims\n", _claims(primary, days)]
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        this = _of(content, "item", "fidelity", "date")
        here = [j for j in run if [j.claim.item, j.fidelity, days[j.claim.id]] == this]
        body += _item(content, here, days)
    return "\n".join(body)


def _counts(judged: Sequence[Judged]) -> str:
    outcomes = ("confirmed", "contradicted", "undecided")
    rows = []
    for paper in (p for p in SECTIONS if any(j.claim.paper == p for j in judged)):
        of = [j for j in judged if j.claim.paper == paper]
        cells = [_by_fidelity(j for j in of if j.verdict == outcome) for outcome in outcomes]
        rows.append([paper, len(of), *cells, sum(j.verdict == "not run" for j in of)])
    return _table(["paper", "claims", *outcomes, "not run"], rows)


def _by_fidelity(judged: Iterable[Judged]) -> str:
    found = Counter(j.fidelity for j in judged)
    return ", ".join(f"{n} {fidelity}" for fidelity, n in sorted(found.items())) or "—"


def _claims(judged: Sequence[Judged], days: Mapping[str, str]) -> str:
    rows = [
        [
            f"{j.claim.claim} ({j.family})",
            j.claim.published or "—",
            f"**{j.verdict}**" + (f", {j.fidelity}" if days[j.claim.id] else ""),
            j.evidence or f"`fedweave reproduce {j.claim.item}`",
        ]
        for j in judged
    ]
    return _table(["claim", "published", "verdict", "evidence"], rows)


def _item(content: Mapping[str, Any], judged: Sequence[Judged], days: Mapping[str, str]) -> list[str]:
    where, scale, shows = _of(content, "item", "scale", "shows")
    facts = f"{content['date']}, {content['seeds']} seeds, {content['fidelity']}, {content['processor']['name']}"
    command = f"`fedweave reproduce {where} --scale {scale}`"
    found = [f"## {where}\n", f"{shows[:1].upper()}{shows[1:]}. {command}: {facts}.\n"]
    different = {n: v for n, v in content["settings"].items() if v["used"] != v["published"]}
    if different:
        rows = [[name, values["published"], values["used"]] for name, values in different.items()]
        found += ["Settings that differ from the published ones:\n", _table(["setting", "published", "used"], rows)]
    if content["rows"]:
        found.append(_table(list(content["rows"][0]), [list(row.values()) for row in content["rows"]]))
    return [*found, *([_claims(judged, days)] if judged else []), *(f"{note}\n" for note in content["notes"])]


def _of(content: Mapping[str, Any], *names: str) -> list[Any]:
    return [content[name] for name in names]


def _table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(markdown(), encoding="utf-8")
