"""A notebook: progress appears in its cell, objects are shown as tables, and nothing is shown twice."""

import atexit
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import fedweave as fw
import worlds
from fedweave.core.html import html_table
from interrupt import StopAfter

NOTEBOOK = Path(__file__).parents[1] / "examples/first_steps.ipynb"
VOID = {"progress", "path", "polyline"}  # they may be closed at once
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:IPython")


class Hook(DisplayHook):
    """Keeps what the last line of a cell is shown as."""

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        self.shell.shown.append(format_dict)


class Kernel(InteractiveShell):
    """The shell of a notebook's kernel, without the kernel: what would be sent to a browser is kept."""

    kernel = "a kernel"
    displayhook_class = Hook
    display_pub_class = CapturingDisplayPublisher

    def enable_gui(self, gui=None):
        pass

    def cell(self, code):
        """Run a cell and return what it shows: the displays by id, each with all its contents, and the last value."""
        self.display_pub.outputs.clear()
        self.shown = []
        self.run_cell(code).raise_error()
        displays = {}
        for sent in self.display_pub.outputs:
            key = sent["transient"]["display_id"]
            assert sent["update"] == (key in displays), "shown once, and then updated"
            displays.setdefault(key, []).append(sent["data"])
        return list(displays.values()), self.shown


@pytest.fixture
def kernel(tmp_path, monkeypatch, digits):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    before = sys.displayhook, sys.excepthook
    made = Kernel.instance(config=Config(HistoryManager={"enabled": False}), user_module=ModuleType("notebook"))
    yield made
    atexit.unregister(made.atexit_operations)
    made.atexit_operations()
    made.restore_sys_module_state()
    Kernel.clear_instance()
    sys.displayhook, sys.excepthook = before


class Page(HTMLParser):
    """The texts of a piece of HTML; tags that are not closed, scripts and links to elsewhere are errors."""

    def __init__(self, html):
        super().__init__()
        self.texts, self._open, self.tags = [], [], set()
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "style", "link", "img", "iframe")
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("href", "src", "class", "id")]
        self.tags.add(tag)
        self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_first_hour(kernel, capfd):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code"), "they are not kept"
    seen = {}
    for code in codes:
        code = code.replace("rounds=20", "rounds=3, workers=1").replace("seeds=3", "seeds=2")
        displays, shown = kernel.cell(code)
        assert len(shown) == 1, "the value of the last line, once"
        trains = re.search(r"fw\.(run|compare)\(", code)
        assert len(displays) == (1 if trains else 0), code
        seen[re.split(r"[ (=]", code)[0]] = (displays, shown[0])
    assert capfd.readouterr() == ("", ""), "what is shown is shown in the cells"

    (progress,), result = seen["result"]
    assert Page(progress[-1]["text/html"]).texts[0] == "fedavg"
    assert re.search(r"^fedavg  3/3 rounds  accuracy 0\.\d+  clock", progress[-1]["text/plain"])
    made = kernel.user_ns["result"]
    texts = Page(result["text/html"]).texts
    assert "fedavg, seed 0" in texts
    assert f"{100 * made.summary['accuracy']:.1f} % (best {100 * made.summary['best']:.1f} %)" in texts
    assert result["text/plain"] == repr(made)

    (progress,), comparison = seen["comparison"]
    assert re.fullmatch(r"all runs  6/6 runs  took [\d.:]+( s)?", progress[-1]["text/plain"]), (
        "one line stays of six runs"
    )
    texts = Page(comparison["text/html"]).texts
    for row in kernel.user_ns["comparison"].summary:
        assert texts.count(row["method"]) == (1 if row["paired"] is None else 2)
        assert f"{100 * row['value']:.1f} % ± {100 * row['value_std']:.1f}" in texts
        assert row["paired"] is None or row["paired"]["verdict"] in texts

    _, population = seen["state,"]
    assert "20 clients" in Page(population["text/html"]).texts
    assert "polyline" in Page(result["text/html"]).tags
    _, same = seen["import"]  # the last cell
    assert same["text/plain"] in ("True", "np.True_")


def test_an_interrupted_cell_keeps_the_bar_where_it_was(kernel, tiny):
    kernel.display_pub.outputs.clear()
    with pytest.raises(fw.Interrupted):
        fw.run(tiny(rounds=5), callbacks=StopAfter(2))
    with pytest.raises(fw.Interrupted):
        fw.compare(["fedavg", "fedprox"], tiny(rounds=3), callbacks=StopAfter(2, run=2))
    first, second = dict.fromkeys(sent["transient"]["display_id"] for sent in kernel.display_pub.outputs)
    last = {sent["transient"]["display_id"]: sent["data"] for sent in kernel.display_pub.outputs}
    assert last[first]["text/plain"].startswith("fedavg  2/5 rounds")
    stopped, rest = last[second]["text/plain"].splitlines()
    assert stopped.startswith("[2/2] fedprox-seed0  2/3 rounds")
    assert rest.startswith("all runs  1/2 runs")


def test_a_silent_cell_shows_nothing(kernel, tiny, capfd):
    kernel.display_pub.outputs.clear()
    fw.run(tiny(rounds=1), progress=False)
    with pytest.raises(fw.BadInput):
        fw.run(tiny(rounds=1, target=7))
    assert kernel.display_pub.outputs == []
    assert capfd.readouterr() == ("", "")


def test_what_is_said_of_a_run_is_below_its_bar(kernel):
    from fedweave.runs.progress import Cell

    show = Cell(1)
    facts = {"experiment": worlds.experiment(), "name": "x<y", "rounds_done": 0, "manifest": {"device": "a <b>"}}
    kernel.display_pub.outputs.clear()
    show.begin(type("Run", (), facts)())
    html = kernel.display_pub.outputs[-1]["data"]["text/html"]
    assert {"x<y", "device: a <b>"} <= {*Page(html).texts}, "escaped"


def test_reprs_are_short_and_escaped():
    many = worlds.equal_clients(10**6, latency=np.linspace(0.5, 2, 10**6), available=np.arange(10**6) % 4 > 0)
    assert repr(many) == (
        "Population(1,000,000 clients: available 750,000 of 1,000,000, weight 1e-06, samples 10, steps 3, "
        "batch size 1, loss rate 0, latency 0.5 to 2)"
    )
    texts = Page(many._repr_html_()).texts
    assert texts[texts.index("latency") + 1] == "0.5 to 2"
    method = fw.methods.fedacs(7)
    assert repr(method).startswith("Method(fedacs: ACS(per_round=7, ")
    rows = Page(method._repr_html_()).texts
    assert rows[rows.index("sampler") + 1] == "ACS"
    assert rows[rows.index("sampler") + 2].startswith("per_round = 7, ")
    fixed = fw.Method(fw.sample.Fixed((0.001,) * 1000, 5), name="<i>")
    assert max(len(repr(fixed)), len("".join(Page(fixed._repr_html_()).texts))) < 500, "not a thousand numbers"
    assert "<i>" in Page(fixed._repr_html_()).texts
    assert Page(html_table([["<script>", "&amp;"]], title="<", note=">", head=["'", '"'])).texts == [
        "<", "'", '"', "<script>", "&amp;", ">",
    ]  # fmt: skip


def test_a_run_that_was_never_evaluated_and_one_that_diverged_are_shown_too(tiny):
    with pytest.raises(fw.Interrupted) as stopped:
        fw.run(tiny(rounds=3, evaluate_every=3, target=0.5), callbacks=StopAfter(2))
    never = stopped.value.result
    page = Page(never._repr_html_())
    assert {"2 of 3", "never 50 %", "train_loss, rounds 1 to 2"} <= {*page.texts}, "another curve in its place"
    assert "accuracy" not in page.texts
    with np.errstate(all="ignore"):
        e = fw.Experiment("fedavg", data="quadratics", model="quadratic", rounds=3, lr=1e30, workers=1)
        diverged = fw.run(e)
    assert diverged.summary["value"] is None or diverged.summary["value"] > 1e20
    for shown in (diverged, fw.Comparison([never]), fw.Comparison([diverged, never])):
        Page(shown._repr_html_())


def test_a_sweep_shows_its_points_and_the_best_of_each_method(kernel, tiny):
    kernel.push({"fw": fw, "e": tiny(rounds=1)})
    cell = "sweep = fw.sweep(['fedavg', 'fedprox'], e, {'lr': [0.001, 0.1]}, seeds=2); sweep"
    ((progress,), (shown,)), sweep = kernel.cell(cell), kernel.user_ns["sweep"]
    assert progress[-1]["text/plain"].startswith("all runs  12/12 runs"), "eight of the grid, four of the best points"
    assert shown["text/html"] == sweep._repr_html_()
    texts = Page(shown["text/html"]).texts
    assert [text for text in texts if text.startswith("lr = ")].count("lr = 0.1") == 2 + 2, (
        "in the grid and as the best"
    )
    assert "best points on the test set" in texts
    assert any("<b>lr = 0.1</b>" in part for part in sweep._repr_html_().split("</td>"))
