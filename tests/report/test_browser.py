"""The page in a real browser: laid out, nothing cut off, tabs that work."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from fedweave import report
from fedweave.runs.sweep import Sweep
from report.fabricate import comparison, realistic, with_scores

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=4000",
]
WIDTHS = (1280, 390)
HEIGHT = 1500

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")

# a window has a least width, a frame has none: the page stands in two frames and the outer page looks in
PROBE = """
const seen = e => { const r = e.getBoundingClientRect();
  return [Math.round(r.width), Math.round(r.height)]; };
onload = () => { const out = {};
  for (const frame of document.querySelectorAll('iframe')) {
    const d = frame.contentDocument, panels = [...d.querySelectorAll('.panel')];
    const figures = [...d.querySelectorAll('svg[role=img]')];
    const first = figures.map(seen);
    const tabs = [...d.querySelectorAll('.tabs input')].map(input => { input.click();
      return panels.filter(p => seen(p)[1] > 100).map(p => p.querySelector('h3').textContent); });
    d.querySelector('.tabs input')?.click();
    out[frame.width] = { tabs, first, inner: frame.contentWindow.innerWidth,
      tables: [...d.querySelectorAll('.scroll')].map(e => [e.clientWidth, e.scrollWidth]),
      lone: [...d.querySelectorAll('.pair.one svg, .small > :only-child svg[role=img]')].map(seen),
      scroll: d.documentElement.scrollWidth, lede: seen(d.querySelector('.lede')),
      copy: [...d.querySelectorAll('.copy')].map(button => { button.click();
        return [...seen(button), frame.contentWindow.getSelection().toString()]; }) };
  }
  document.getElementById('out').textContent = JSON.stringify(out); };
"""


def browse(folder: Path, text: str, *flags: str, widths: tuple[int, ...] = WIDTHS) -> str:
    frames = "".join(f'<iframe width="{w}" height="{HEIGHT}" srcdoc="{escape(text)}"></iframe>' for w in widths)
    style = "<style>body { margin: 0; display: flex } iframe { border: 0; flex: none }</style>"
    outer = folder / "outer.html"
    outer.write_text(f"<!DOCTYPE html>{style}{frames}<pre id=out></pre><script>{PROBE}</script>", encoding="utf-8")
    size = f"--window-size={sum(widths)},{HEIGHT}"
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'profile'}", size, *flags, outer.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.mark.parametrize("runs", ["four methods", "one run"])
def test_tabs_and_figures_are_laid_out_and_nothing_overflows(tmp_path: Path, page: str, runs: str):
    dom = browse(tmp_path, page if runs == "four methods" else report.page([realistic("fedavg")]), "--dump-dom")
    found = re.search(r'<pre id="out">(.*?)</pre>', dom)
    assert found
    probe = json.loads(unescape(found[1]))
    for width in WIDTHS:
        seen = probe[str(width)]
        assert seen["inner"] == width
        assert seen["scroll"] <= width
        assert seen["tabs"] == [["Rounds"], ["Simulated time"], ["Upload"], ["Upload and download"]]
        shown = [size for size in seen["first"] if size[0] > 0]
        assert len(shown) == len(seen["first"]) - 6  # the three hidden tabs hold two figures each
        assert all(w >= 180 and h >= 100 for w, h in shown)
        assert 0 < seen["lede"][0] <= width
        assert seen["copy"]
        assert all(w > 60 and h > 15 and text.startswith("fedweave ") for w, h, text in seen["copy"])


@pytest.mark.parametrize(("media", "width"), [("print", 1400), ("all", 688)])  # a screen; A4 without its margins
def test_no_table_is_cut_off_and_lone_figures_can_be_read(tmp_path: Path, media: str, width: int):
    """With a target and scores of the clients the comparison has 17 columns: the most there are."""
    four = report.page([with_scores(run, np.linspace(0.5, 0.9, 50)) for run in comparison()])
    for text in (four, report.page([realistic("fedavg")])):
        text = text.replace("@media print", f"@media {media}")
        found = re.search(r'<pre id="out">(.*?)</pre>', browse(tmp_path, text, "--dump-dom", widths=(width,)))
        assert found
        seen = json.loads(unescape(found[1]))[str(width)]
        assert seen["tables"]
        assert all(inner <= outer for outer, inner in seen["tables"]), seen["tables"]
        assert seen["lone"]
        assert all(w > 180 for w, _ in seen["lone"])


def test_the_screenshot_is_not_blank(tmp_path: Path, page: str):
    shot = tmp_path / "shot.png"
    browse(tmp_path, page, f"--screenshot={shot}")
    pixels = imread(shot)[..., :3]
    assert pixels.shape[:2] == (HEIGHT, sum(WIDTHS))
    for part in (pixels[:, : WIDTHS[0]], pixels[:, WIDTHS[0] :]):
        background = part[2, 2]
        for third in (part[: HEIGHT // 3], part[HEIGHT // 3 : 2 * HEIGHT // 3], part[2 * HEIGHT // 3 :]):
            ink = (abs(third - background) > 0.2).any(-1).mean()
            assert 0.005 < ink < 0.9


def test_the_page_of_a_sweep_fits_too(tmp_path: Path):
    runs = [realistic(m, s, end=0.6 + lr) for s in range(2) for m in ("fedavg", "fedprox") for lr in (0.01, 0.1, 0.2)]
    points = [{"lr": lr, "method.solver.mu": lr} for _ in range(4) for lr in (0.01, 0.1, 0.2)]
    dom = browse(tmp_path, report.sweep_page(Sweep(runs, points)), "--dump-dom")
    found = re.search(r'<pre id="out">(.*?)</pre>', dom)
    assert found
    for width, seen in json.loads(unescape(found[1])).items():
        assert seen["scroll"] <= int(width)
        assert len(seen["first"]) == 2  # a figure for each field
        assert all(w >= 180 and h >= 100 for w, h in seen["first"])
        assert 0 < seen["lede"][0] <= int(width)
