"""Style and script of the atlas: a table that sorts and filters, rows that stack on a phone, words beside colours."""

from __future__ import annotations

# Okabe and Ito's colours, dark enough for text; every verdict has a sign and a word of its own as well.
STYLE = """
h1.title { font-size: 1.9rem; line-height: 1.2; color: var(--ink); letter-spacing: -.015em; margin: 0 0 .5rem; }
h2 { margin-top: 2.5rem; scroll-margin-top: 1rem; } h3 { margin: 1.6rem 0 .3rem; scroll-margin-top: 1rem; }
nav { font-size: .9375rem; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 0 0 1.6rem; }
a { color: var(--accent); text-underline-offset: .15em; }
p, li { max-width: 56rem; overflow-wrap: anywhere; } p code { overflow-wrap: anywhere; }
.verdict { font-weight: 600; white-space: nowrap; }
.verdict::before { display: inline-block; width: 1.25em; }
.confirmed::before { content: "✓"; } .contradicted::before { content: "✕"; }
.undecided::before { content: "?"; } .not-run::before { content: "–"; }
.confirmed { color: #00603f; } .contradicted { color: #a63c00; } .undecided { color: #00568a; }
.not-run { color: var(--muted); font-weight: 400; }
@media (prefers-color-scheme: dark) {
  .confirmed { color: #4fd0a5; } .contradicted { color: #ff9a5c; } .undecided { color: #7cc4f5; } }
.primary { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .9rem 1rem; }
.primary p { margin: .2rem 0; } .primary .note { margin: .2rem 0 0; }
.list { width: 100%; font-size: .875rem; }
.list th, .list td { padding: .45rem .6rem; text-align: left; vertical-align: top; }
.list thead th { color: var(--muted); font-weight: 500; vertical-align: bottom; white-space: nowrap; }
.list tbody td { border-top: 1px solid var(--line); }
.list .number { white-space: nowrap; }
.list :target, li:target, section:target > h3:first-child {
  background: color-mix(in srgb, var(--accent) 14%, transparent); }
.list th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
  text-decoration: underline dotted; text-underline-offset: .25em; }
.list th[aria-sort=ascending] button::after { content: " ↑"; }
.list th[aria-sort=descending] button::after { content: " ↓"; }
.counts td + td, .counts th + th { text-align: right; }
.filters { display: flex; flex-wrap: wrap; gap: .6rem .9rem; margin: .8rem 0 .3rem; align-items: end; }
.filters[hidden] { display: none; }
.filters label { font-size: .8125rem; color: var(--muted); display: grid; gap: .15rem; }
.filters select, .filters input { font: inherit; font-size: .9375rem; color: var(--ink); background: var(--card);
  border: 1px solid var(--line); border-radius: .4rem; padding: .3rem .5rem; min-height: 2.2rem; }
.filters input { width: 16rem; max-width: 100%; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--accent); }
.claims-left { padding-left: 1.2rem; font-size: .875rem; margin: .3rem 0 .9rem; }
.claims-left li { margin: .15rem 0; scroll-margin-top: 1rem; }
.list a { text-decoration: none; } .list a:hover, .list a:focus-visible { text-decoration: underline; }
.compare thead th { white-space: normal; } .texts td { white-space: normal; } .texts td, .texts th { text-align: left; }
.compare td:first-child, .compare th:first-child { text-align: left; }
@media screen and (max-width: 48rem) {
  h1.title { font-size: 1.5rem; }
  .stack thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .scroll:has(> .stack)::before { content: none; }
  .stack, .stack tbody, .stack tr, .stack td { display: block; }
  .stack tr { border-top: 1px solid var(--line); padding: .5rem .2rem; } .stack tr:first-child { border-top: 0; }
  .stack tbody td { border: 0; padding: .12rem .6rem; } .stack td:empty { display: none; }
  .stack td[data-is]::before { content: attr(data-is) ": "; color: var(--muted); font-weight: 400; }
  .stack .verdict[data-is]::before { width: auto; }
  .stack .number { white-space: normal; } .stack.counts td + td { text-align: left; }
  .filters label { flex: 1 1 8rem; } .filters input { width: 100%; } }
@media print {
  .filters, nav { display: none; } details > * { display: block; } a { color: inherit; text-decoration: none; }
  .list { font-size: .8rem; } .list th, .list td { padding: .2rem .4rem; } .list thead { display: table-header-group; }
  .list .number { white-space: normal; } .scroll { border: 0; } h1.title { font-size: 1.6rem; }
  .confirmed, .contradicted, .undecided { color: #000; } }
"""
SCRIPT = """
(function () {
  var table = document.getElementById("ledger"), body = table.tBodies[0], rows = Array.from(body.rows);
  var form = document.getElementById("filters"), shown = document.getElementById("shown");
  form.hidden = false;
  function text(row, i) { return row.cells[i].textContent.trim(); }
  form.querySelectorAll("select").forEach(function (select) {
    var values = Array.from(new Set(rows.map(function (row) { return text(row, +select.dataset.column); })));
    values.filter(Boolean).forEach(function (value) { select.add(new Option(value, value)); });
  });
  function filter() {
    var words = form.elements.words.value.toLowerCase().split(/\\s+/).filter(Boolean), n = 0;
    var chosen = Array.from(form.querySelectorAll("select")).filter(function (s) { return s.value; });
    rows.forEach(function (row) {
      var all = row.textContent.toLowerCase();
      var ok = chosen.every(function (s) { return text(row, +s.dataset.column) === s.value; }) &&
        words.every(function (word) { return all.indexOf(word) >= 0; });
      row.hidden = !ok; n += ok;
    });
    shown.textContent = n + " of " + rows.length + " claims";
  }
  form.addEventListener("input", filter);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  Array.from(table.tHead.rows[0].cells).forEach(function (head, i) {
    var button = document.createElement("button");
    button.type = "button"; button.textContent = head.textContent; head.textContent = ""; head.append(button);
    button.addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") === "ascending";
      Array.from(head.parentNode.cells).forEach(function (cell) { cell.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      var order = rows.slice().sort(function (a, b) {
        return (down ? -1 : 1) * text(a, i).localeCompare(text(b, i), "en", { numeric: true });
      });
      body.append.apply(body, order);
    });
  });
  filter();
})();
"""
