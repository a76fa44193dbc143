"""docs/results.md and the counts in README.md, from the recorded outcomes alone.

``python -m fedweave.papers.common.results_page docs/results.md README.md``
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from fedweave import papers
from fedweave.papers.common.judge import Judged
from fedweave.papers.common.ledger import SECTIONS

OUTCOMES = ("confirmed", "contradicted", "undecided")
HEAD = """# Results

Every claim with its difference, interval and figures is in the [atlas](atlas/index.html), which needs no network and
can be read from a clone. This page and the atlas are made by `make results` from the files in [results/](../results),
which `fedweave reproduce ITEM --scale SCALE --record results` wrote; nothing here is typed by hand. How claims are
judged: [reproduce.md](reproduce.md). *Full size* is the largest size of items of ours, which have no published
setting. Primary claims are corrected by Holm's method over the five papers, a paper's
other claims by Benjamini and Hochberg's within the paper: those are exploratory; our own questions beyond a paper are a
family of their own. An *undecided* claim shows the difference that its seeds would have found, before correction.
"""


def markdown(folder: Path = papers.RECORDED) -> str:
    """Return the page: counts and the primary claims."""
    judged = [j for j, _ in papers.judged_claims(folder)]
    primary = [j for j in judged if j.claim.primary]
    counted = ["## Counts\n", f"{count_run([(j.claim.beyond, j.verdict) for j in judged])}\n", _counts(judged)]
    return "\n".join([HEAD, *counted, "## The primary claims\n", _claims(primary)])


def with_counts(readme: str, folder: Path = papers.RECORDED) -> str:
    """Return a README that says, between its two marks, how many claims of the papers have been run."""
    found = [j.verdict for j, _ in papers.judged_claims(folder) if not j.claim.beyond]
    by_outcome = ", ".join(f"{found.count(outcome)} {outcome}" for outcome in OUTCOMES)
    said = f"So far {len(found) - found.count('not run')} of the {len(found)} have been run: {by_outcome}."
    return re.sub(r"(?<=<!-- counts -->).*(?=<!-- end of counts -->)", said, readme)


def count_run(verdicts: Sequence[tuple[bool, str]]) -> str:
    """Return how many claims of the papers were run, with their outcomes, and apart from them those of ours (True)."""
    said = []
    for ours, what in ((False, "claims of the papers"), (True, "questions of our own")):
        of = [verdict for mine, verdict in verdicts if mine == ours]
        if not of:
            continue
        found = ", ".join(f"{of.count(outcome)} {outcome}" for outcome in OUTCOMES)
        said.append(f"{len(of):,} {what}, {len(of) - of.count('not run')} of them run: {found}.")
    return " ".join(said)


def by_section(judged: Sequence[Judged]) -> dict[tuple[str, bool], list[Judged]]:
    """Return the claims of each paper, then the questions of ours in each section."""
    found = {
        (section, ours): [j for j in judged if (j.claim.paper, j.claim.beyond) == (section, ours)]
        for ours, section in product((False, True), SECTIONS)
    }
    return {key: each for key, each in found.items() if each}


def _counts(judged: Sequence[Judged]) -> str:
    rows = []
    for (section, ours), of in by_section(judged).items():
        cells = [_by_fidelity(j for j in of if j.verdict == outcome) for outcome in OUTCOMES]
        name = f"[{section}](atlas/{section}.html){' (ours)' if ours else ''}"
        rows.append([name, len(of), *cells, sum(j.verdict == "not run" for j in of)])
    return table(["paper", "claims", *OUTCOMES, "not run"], rows)


def _by_fidelity(judged: Iterable[Judged]) -> str:
    found = Counter(j.shown_fidelity for j in judged)
    return ", ".join(f"{n} {fidelity}" for fidelity, n in sorted(found.items())) or "—"


def _claims(judged: Sequence[Judged]) -> str:
    rows = [
        [
            j.claim.claim,
            j.claim.published or "—",
            f"**{j.verdict}**" + (f", {j.shown_fidelity}" if j.verdict != "not run" else ""),
            j.evidence or f"`fedweave reproduce {j.claim.item}`",
        ]
        for j in judged
    ]
    return table(["claim", "published", "verdict", "evidence"], rows)


def table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    page, readme = map(Path, sys.argv[1:])
    page.write_text(markdown(), encoding="utf-8")
    readme.write_text(with_counts(readme.read_text(encoding="utf-8")), encoding="utf-8")
