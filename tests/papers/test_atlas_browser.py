"""The atlas in a real browser: its table filters and sorts, and nothing is cut off on a phone."""

import json
import re
import subprocess
from html import escape, unescape

import pytest

from fedweave import papers
from fedweave.papers.atlas.contents import read_contents
from fedweave.papers.atlas.front import front_page
from report.test_browser import BROWSER, FLAGS

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")

PROBE = """
onload = () => {
  const [d, phone] = [...document.querySelectorAll('iframe')].map(f => f.contentDocument);
  const rows = () => [...d.querySelectorAll('#ledger tbody tr')].filter(r => !r.hidden);
  const text = i => rows().map(r => r.cells[i].textContent);
  const set = (e, value) => { e.value = value; e.dispatchEvent(new Event('input', { bubbles: true })); };
  const out = { all: rows().length, visible: !d.getElementById('filters').hidden };
  set(d.querySelector('select[data-column="2"]'), 'confirmed');
  out.confirmed = text(2);
  set(d.querySelector('[name=words]'), 'FEDDYN  settles');
  out.words = text(1);
  set(d.querySelector('[name=words]'), '');
  set(d.querySelector('select[data-column="2"]'), '');
  const button = d.querySelectorAll('#ledger th button')[1];
  button.click(); out.rising = text(1); button.click(); out.falling = text(1);
  out.shown = d.getElementById('shown').textContent;
  out.phone = [phone.documentElement.scrollWidth, phone.documentElement.clientWidth];
  const hint = e => phone.defaultView.getComputedStyle(e, '::before').content;
  out.hints = [...phone.querySelectorAll('.scroll')].filter(e => e.scrollWidth <= e.clientWidth).map(hint);
  document.getElementById('out').textContent = JSON.stringify(out); };
"""


def test_the_table_filters_and_sorts_and_fits_a_phone(tmp_path):
    front = front_page(read_contents(papers.RECORDED))
    frames = "".join(f'<iframe width="{w}" height="900" srcdoc="{escape(front)}"></iframe>' for w in (1400, 390))
    outer = tmp_path / "outer.html"
    outer.write_text(f"<!DOCTYPE html>{frames}<pre id=out></pre><script>{PROBE}</script>", encoding="utf-8")
    done = subprocess.run(
        [str(BROWSER), *FLAGS, "--dump-dom", f"--user-data-dir={tmp_path / 'profile'}", outer.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    out = json.loads(unescape(re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.DOTALL)[1]))
    ledger = papers.list_claims()
    assert (out["all"], out["visible"]) == (len(ledger), True)
    confirmed = [entry for entry in ledger if entry["verdict"] == "confirmed"]
    assert out["confirmed"] == ["confirmed"] * len(confirmed)
    found = [e["claim"] for e in confirmed if "feddyn" in e["claim"].lower() and "settles" in e["claim"].lower()]
    assert sorted(out["words"]) == sorted(found)
    assert found
    assert sorted(out["rising"]) == sorted(entry["claim"] for entry in ledger)
    assert out["rising"][0] == out["falling"][-1]
    assert out["shown"] == f"{len(ledger)} of {len(ledger)} claims"
    assert out["phone"][0] == out["phone"][1], "nothing is wider than a phone"
    assert {*out["hints"]} == {"none"}, "nothing to scroll, and no hint to do so"
