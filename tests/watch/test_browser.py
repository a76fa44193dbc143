"""The page in a real browser, while a run is under way: list, curves, clients, keyboard; wide, narrow and dark."""

import json
import shutil
from unittest import mock

import pytest

from fedweave.core.settings import BadInput
from fedweave.watch import catalog
from watch.browser import PROGRAM, Browser
from watch.folders import Writer, made, many

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium, chromium-browser or google-chrome on PATH")

MARKUP = "<img src=x onerror=alert(1)>"
NAMES = "[...document.querySelectorAll('#rows tr')].map(r => r.querySelector('label > span').firstChild.data)"
CHOSEN = "[...document.querySelectorAll('#rows input:checked')].length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = Browser(tmp_path_factory.mktemp("profile"))
    yield program
    program.close()


def cell(name, column):
    """Return the expression of the text in a column of a run's row."""
    row = f"[...document.querySelectorAll('#rows tr')].find(r => r.textContent.startsWith({name!r}))"
    return f"({row}?.children[{column}].textContent ?? '')"


def test_a_run_under_way_is_seen_as_it_goes_on(serve, tmp_path, browser):
    made(tmp_path / "done", rounds=40)
    server = serve(tmp_path)
    browser.open(server.url)
    browser.wait(f"{cell('done', 1)}.includes('finished')")
    browser.wait("document.querySelectorAll('#chart path').length === 1")
    with Writer(tmp_path / "live", rounds=6) as writer:
        writer("add 2", "save", "add 1")
        browser.wait(f"{cell('live', 1)}.includes('running') && {cell('live', 2)} === '2 of 6'")
        browser.wait("document.querySelectorAll('#chart path').length === 2")
        assert "1 running, 1 finished" in browser.get("document.getElementById('lede').textContent")
        line = "document.querySelectorAll('#chart path')[1].getAttribute('d').split('L').length"
        assert browser.get(line) == 2
        writer("save")
        browser.wait(f"{cell('live', 2)} === '3 of 6' && {line} === 3")
        writer("add 3", "save", "close")
        browser.wait(f"{cell('live', 1)}.includes('finished') && {line} === 6")
    assert browser.get(f"{cell('live', 3)}") == "60.0 %accuracy"
    assert browser.get(f"{cell('live', 4)}") == "9.0 ssimulated"
    browser.get("document.getElementById('axis-clock').click()")
    browser.wait("[...document.querySelectorAll('#chart text')].some(t => t.textContent === 'simulated time, s')")
    steps = "document.querySelectorAll('#chart path')[1].getAttribute('d')"
    assert browser.get(f"{steps}.split('H').length") == browser.get(f"{steps}.split('V').length") == 6
    assert "L" not in browser.get(steps), "a run keeps its value until the next one"
    browser.get("document.getElementById('axis-bytes_total').click()")
    browser.wait(
        "[...document.querySelectorAll('#chart text')].some(t => t.textContent.startsWith('upload and download'))"
    )
    assert browser.get("document.querySelectorAll('#clients figure svg[role=img]').length") == 2
    assert browser.problems == []
    assert {url.split("?")[0].rsplit("/", 1)[0] + "/" for url in browser.requests} == {server.url}


def test_what_could_not_be_read_for_a_moment_is_read_again(serve, tmp_path, browser, monkeypatch):
    made(tmp_path / "run", rounds=40)
    failures = []

    def fail_at_first(folder, opened=catalog.opened):
        if len(failures) < 2:  # the curve and the clients, once
            failures.append(folder)
            raise BadInput("It cannot be read.")
        return opened(folder)

    monkeypatch.setattr(catalog, "opened", fail_at_first)
    browser.open(serve(tmp_path).url)
    browser.wait("document.querySelectorAll('#chart path').length === 1")
    browser.wait("document.querySelectorAll('#clients figure svg[role=img]').length === 1")
    assert len(failures) == 2


def test_what_cannot_be_read_is_not_asked_for_for_ever(serve, tmp_path, browser, monkeypatch):
    made(tmp_path / "run", rounds=40)
    monkeypatch.setattr(catalog, "opened", mock.Mock(side_effect=BadInput("It cannot be read.")))
    server = serve(tmp_path)
    browser.open(server.url)
    browser.wait("document.body.textContent.includes('It cannot be read.')")
    browser.get("new Promise(done => setTimeout(done, 6 * RETRY))")  # twice as long as all retries take
    assert sum("curves.json" in url for url in browser.requests if url.startswith(server.url)) <= 4


@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_fits_and_can_be_used_with_the_keyboard_alone(serve, tmp_path, browser, width):
    for name in ("a", "b", "c"):
        made(tmp_path / name, rounds=30)
    browser.open(f"{serve(tmp_path).url}?{width}", width, dark=width == 390)
    browser.wait(
        "document.querySelectorAll('#chart path').length === 3 && document.querySelectorAll('#clients svg').length > 3"
    )
    assert browser.get("document.documentElement.scrollWidth") <= width
    hint = "getComputedStyle(document.querySelector('.runs'), '::before').content"
    assert browser.get(hint) == "none", "there is nothing to scroll sideways"
    sizes = browser.get("[...document.querySelectorAll('svg[role=img]')].map(s => [s.clientWidth, s.clientHeight])")
    assert all(w >= 180 and h >= 100 for w, h in sizes), sizes
    seen, here = (
        set(),
        "document.activeElement.id || document.activeElement.dataset?.sort || document.activeElement.className",
    )
    while (name := browser.get(here)) not in seen or name == "":
        seen.add(name)
        if name.startswith("box-") and browser.get(CHOSEN) == 3:
            browser.press(" ")
            browser.wait("document.querySelectorAll('#chart path').length === 2")
            assert browser.get(here) == name, "a box keeps the focus when it is drawn again"
        if name == "chart":
            browser.press("ArrowLeft")
            assert "round 29" in browser.get("document.getElementById('reading').textContent")
            browser.press("Escape")
        browser.press("Tab")
    assert {"filter", "clear", "name", "state", "scroll runs", "metric", "axis-round", "chart"} <= seen
    browser.get("document.querySelector('[data-sort=name]').click()")
    browser.get("document.querySelector('[data-sort=name]').click()")
    assert browser.get(NAMES) == ["c", "b", "a"]
    assert browser.get("document.querySelector('[aria-sort]').getAttribute('aria-sort')") == "descending"


def test_what_a_folder_says_is_text(serve, tmp_path, browser):
    made(tmp_path / MARKUP, rounds=3, method=MARKUP)
    broken = made(tmp_path / "broken")
    (broken / "experiment.json").write_text(json.dumps({"method": MARKUP}))
    browser.open(serve(tmp_path).url)
    browser.wait(
        "document.querySelectorAll('#rows tr').length === 2 && document.querySelectorAll('#clients figure').length"
    )
    assert MARKUP in browser.get(NAMES)
    assert MARKUP in browser.get("document.querySelector('.problem').textContent")
    assert browser.get("document.images.length") == 0
    assert browser.problems == []


def test_runs_beside_one_under_way_are_chosen_too(serve, tmp_path, browser):
    for name in ("c/a", "elsewhere/b"):
        made(tmp_path / name, rounds=3)
    with Writer(tmp_path / "c/live", rounds=6) as writer:
        writer("add 2", "save")
        browser.open(serve(tmp_path).url)
        browser.wait("document.querySelectorAll('#chart path').length === 2")
        assert browser.get("[...chosen.keys()].map(key => runs.get(key).name)") == ["c/live", "c/a"]


def test_two_hundred_runs_are_listed_filtered_and_chosen(serve, tmp_path, browser):
    many(tmp_path, 200)
    browser.open(serve(tmp_path).url)
    browser.wait("document.querySelectorAll('#rows tr').length === 200")
    browser.get("document.getElementById('filter').value = 'run-11'")
    browser.get("document.getElementById('filter').dispatchEvent(new Event('input'))")
    assert browser.get(NAMES) == [f"run-{i}" for i in range(110, 120)]
    browser.get("document.getElementById('clear').click()")
    browser.wait("document.getElementById('chart').textContent === 'Choose runs in the list.'")
    browser.get("document.querySelectorAll('#rows input').forEach(box => box.click())")
    browser.wait("document.querySelectorAll('#chart path').length === 10")
    ink = "p => `${p.getAttribute('stroke')} ${p.getAttribute('stroke-dasharray')}`"
    inks = f"[...document.querySelectorAll('#chart path')].map({ink})"
    assert len(set(browser.get(inks))) == 10, "no two look alike, though all have the same values"
    assert "#runs=" in browser.get("location.href"), "the choice survives a reload"
    browser.get("document.getElementById('filter').value = ''")
    browser.get("document.getElementById('filter').dispatchEvent(new Event('input'))")
    browser.get("[...document.querySelectorAll('#rows input:not(:checked)')].slice(0, 21).forEach(box => box.click())")
    assert browser.get(CHOSEN) == 28
    said = "document.getElementById('count').textContent"
    assert browser.get(said) == "28 runs chosen; more than 28 do not fit into one figure"
    browser.get("document.querySelector('#rows input:checked').click()")
    assert browser.get(said) == "27 runs chosen"
    for name in ("run-110", "run-111"):
        shutil.rmtree(tmp_path / name)
    browser.wait(f"{said} === '25 runs chosen'")
    assert browser.problems == []


def test_a_page_that_is_not_seen_holds_no_connection(serve, tmp_path, browser):
    made(tmp_path / "a", rounds=3)
    server = serve(tmp_path)
    browser.open(server.url)
    browser.wait("document.querySelectorAll('#rows tr').length === 1")
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
    changed = "document.dispatchEvent(new Event('visibilitychange'))"
    before = browser.requests.count(f"{server.url}events")
    browser.get(hide % "true")
    browser.get(changed)
    assert browser.get("events") is None
    made(tmp_path / "b", rounds=3)
    browser.get(hide % "false")
    browser.get(changed)
    browser.wait("document.querySelectorAll('#rows tr').length === 2")
    assert browser.requests.count(f"{server.url}events") == before + 1
    assert browser.problems == []
