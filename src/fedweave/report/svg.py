"""Convert matplotlib figures to SVGs that can share a page, and define their common colours."""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedweave.report.style import DASHES
from fedweave.report.style import PALETTE as PALETTE

INK, MUTED, GRID = "#24292f", "#5f6670", "#e4e6ea"

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, selectable, in the page's font
    "svg.hashsalt": "fedweave",
    "font.family": "DejaVu Sans",  # ships with matplotlib, so the layout is the same everywhere
    "font.size": 8.5,
    "text.color": INK,
    "text.parse_math": False,  # a method or class may be called anything, "$" included
    "axes.edgecolor": "#b4b9c1",
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "xtick.color": "#b4b9c1",
    "ytick.color": "#b4b9c1",
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
}
_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True)
class Ink:
    """The colour and dash of one method in all figures."""

    color: str
    dash: str  # as in SVG's stroke-dasharray; empty is solid

    @property
    def line(self) -> str | tuple[float, tuple[float, ...]]:
        """Return the dash as matplotlib writes it."""
        return (0, tuple(float(d) for d in self.dash.split())) if self.dash else "-"


def inks(methods: Iterable[str]) -> dict[str, Ink]:
    """Return colour and dash per method; past the end of the palette the colours repeat, dashed."""
    n = len(PALETTE)
    return {m: Ink(PALETTE[i % n], DASHES[i // n % len(DASHES)]) for i, m in enumerate(dict.fromkeys(methods))}


@contextmanager
def canvas(width: float, height: float) -> Generator[Figure]:
    """Yield an empty figure in the page's style, in inches; save it inside the block."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_alpha(0)
        yield figure


def simplify(axes: Axes, grid: str = "y") -> Axes:
    """Reduce the axes to a faint grid and one axis line, without tick marks."""
    axes.grid(axis="y" if grid == "y" else "both")
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0, pad=4)
    axes.patch.set_alpha(0)
    return axes


def to_svg(figure: Figure, key: str, label: str) -> str:
    """Return the figure as an inline ``<svg>``; ``key`` is unique on its page and prefixes every id."""
    text = io.StringIO()
    FigureCanvasSVG(figure).print_svg(text, metadata=_METADATA)
    body = text.getvalue()
    body = body[body.index("<svg") :]
    # matplotlib's style sheet selects "*", which would affect the whole page when inline
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    # a hundredth of a point is finer than any screen, and the page is half as large
    body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"\d+\.\d{3,}", _short, path[0]), body)
    head, _, body = body.partition(">")
    box = re.search(r'viewBox="([^"]*)"', head)
    name = escape(label, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box[1] if box else ""}" role="img" aria-label="{name}"><title>{name}</title>'
        f"{_own_ids(body, key)}"
    ).strip()


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}"


def _own_ids(body: str, key: str) -> str:
    """Prefix the ids that something refers to with the figure's key, and drop the others."""
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', body))
    names = {name for pair in used for name in pair if name}

    def rename(match: re.Match[str]) -> str:
        return f' id="{key}-{match[1]}"' if match[1] in names else ""

    body = re.sub(r' id="([^"]+)"', rename, body)
    body = re.sub(r"url\(#", f"url(#{key}-", body)
    return re.sub(r'href="#', f'href="#{key}-', body)
