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
    "pdf.fonttype": 42,  # TrueType: publishers refuse the default, Type 3
    "ps.fonttype": 42,
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


def compact(svg: str) -> str:
    """Return a figure in a third of the bytes: tenths of a point, relative coordinates, nothing that has no effect."""
    svg = re.sub(r' transform="rotate\(-0 [^"]*"|; font-family: [^;"]*', "", svg)
    svg = re.sub(r' d="([^"]*)"', _relative_path, svg)
    svg = re.sub(r' (x|y|width|height)="(-?[\d.]+)"', lambda m: f' {m[1]}="{_tenths(round(10 * float(m[2])))}"', svg)
    svg = re.sub(r' style="[^"]*"', lambda m: m[0][:1] + re.sub(r"([;:]) ", r"\1", m[0][1:]), svg)
    svg = re.sub(r">\s+<", "><", svg)
    for _ in range(4):  # groups of nothing, also nested ones
        svg = re.sub(r"<g>\s*</g>|<g/>|<defs>\s*</defs>|<g>(<(?:path|text|use|rect)[^>]*/>)</g>", r"\1", svg)
    return svg


def _relative_path(found: re.Match[str]) -> str:
    """Return a path of straight lines with relative coordinates; any other one as it is."""
    steps = found[1].split()
    if not set(re.findall("[A-Za-z]", found[1])) <= {"M", "L", "z"}:
        return f' d="{" ".join(steps)}"'
    parts, here, start, i = list[str](), (0, 0), (0, 0), 0
    while i < len(steps):
        if steps[i] == "z":
            parts.append("z")
            here, i = start, i + 1
            continue
        there = round(10 * float(steps[i + 1])), round(10 * float(steps[i + 2]))
        x, y = _tenths(there[0] - here[0]), _tenths(there[1] - here[1])
        parts.append(f"{'m' if steps[i] == 'M' else 'l'}{x}{'' if y.startswith('-') else ' '}{y}")
        here, start, i = there, there if steps[i] == "M" else start, i + 3
    return f' d="{"".join(parts)}"'


def _tenths(number: int) -> str:
    """Return a number of tenths as a decimal without what may be left out."""
    text = f"{number / 10:.1f}".removesuffix(".0")
    return re.sub(r"^(-?)0\.", r"\1.", text)


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
