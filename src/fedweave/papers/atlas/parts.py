"""Pieces that the pages of the atlas share."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from fedweave.papers.atlas.contents import RANK, Contents, shown_difference
from fedweave.papers.common.judge import Judged
from fedweave.papers.common.results_page import OUTCOMES, by_section

DIFFERENCE = ("difference or ratio", "95 % interval", "detectable")


class Cell(NamedTuple):
    """A cell of a table: its content, which is HTML, its classes, and what it is called where rows are stacked."""

    content: str
    kind: str = ""
    name: str = ""

    def html(self) -> str:
        """Return the cell."""
        kind = f' class="{self.kind}"' if self.kind else ""
        name = f' data-is="{self.name}"' if self.name and self.content else ""
        return f"<td{kind}{name}>{self.content}</td>"


def table(
    head: Sequence[str], rows: Sequence[Sequence[Cell]], kind: str = "list stack", ids: Sequence[str] = ()
) -> str:
    """Return a table; on a phone its rows are stacked. ``ids`` are those of the rows."""
    titles = "".join(f"<th scope=col>{escape(name)}</th>" for name in head)
    names = [f' id="{escape(name)}"' for name in ids] or [""] * len(rows)
    body = "".join(
        f"<tr{name}>{''.join(cell.html() for cell in row)}</tr>\n" for name, row in zip(names, rows, strict=True)
    )
    table_id = ' id="ledger"' if "ledger" in kind else ""
    return (
        f'<div class="scroll"><table class="{kind}"{table_id}><thead><tr>{titles}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def verdict(judged: Judged) -> Cell:
    """Return the cell of an outcome, with a sign and a colour."""
    return Cell(judged.verdict, f"verdict {judged.verdict.replace(' ', '-')}")


def fidelity(judged: Judged) -> Cell:
    """Return the cell of a fidelity; nothing where a claim was not run."""
    return Cell(judged.shown_fidelity if judged.verdict != "not run" else "", name="fidelity")


def link(judged: Judged) -> str:
    """Return the address of a claim."""
    return f"{judged.claim.paper}.html#{escape(judged.claim.id)}"


def counts(contents: Contents, papers: Sequence[str]) -> str:
    """Return how many claims of each paper, and apart from them of ours, have which outcome at which fidelity."""
    rows = []
    for (paper, ours), claims in by_section([j for name in papers for j in contents.claims(name)]).items():
        found = [[j.shown_fidelity for j in claims if j.verdict == outcome] for outcome in OUTCOMES]
        cells = [
            Cell(", ".join(f"{each.count(f)} {f}" for f in RANK if f in each), name=outcome)
            for outcome, each in zip(OUTCOMES, found, strict=True)
        ]
        left = sum(j.verdict == "not run" for j in claims)
        name = f'<a href="{paper}.html">{escape(contents.about[paper].name)}</a>{", our questions" * ours}'
        rows.append([Cell(name), Cell(str(len(claims)), name="claims"), *cells, Cell(str(left), name="not run")])
    return table(("paper", "claims", *OUTCOMES, "not run"), rows, "list stack counts")


def navigation(contents: Contents, here: str) -> str:
    """Return links to the other pages."""
    pages = {"index": "All claims"} | {paper: contents.about[paper].name for paper in contents.papers()}
    items = [
        f"<b>{escape(name)}</b>" if page == here else f'<a href="{page}.html">{escape(name)}</a>'
        for page, name in pages.items()
    ]
    return f'<nav aria-label="Pages">{"".join(items)}</nav>'


def difference(contents: Contents, judged: Judged) -> list[Cell]:
    """Return the cells of a difference, its interval and what its seeds would have shown."""
    mean, *others = ("" if part == "—" else part for part in shown_difference(judged))
    parts = (mean and mean + escape(contents.remark(judged)), *others)
    return [Cell(part, "number", name=name) for part, name in zip(parts, DIFFERENCE, strict=True)]


def commands(*lines: str) -> str:
    """Return commands as they are typed."""
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
