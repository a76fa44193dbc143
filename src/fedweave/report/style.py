"""The page's style sheet: light, dark, narrow and on paper; and the colours and dashes of lines."""

# Okabe and Ito's palette for all kinds of colour vision, without the yellow that is invisible on white
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b6b6b")
DASHES = ("", "5 2", "1.5 1.5", "6 2 1.5 2")

CSS = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1d2127; --muted: #5c6470;
  --line: #dfe3e8;
  --soft: #eef1f4; --accent: #0b62a8; --figure: #ffffff; --shade: rgba(0, 0, 0, .22); }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --card: #1d2127; --ink: #e7eaee;
  --muted: #a2abb7;
  --line: #333a43; --soft: #272d35; --accent: #6db5ee; --figure: #f4f5f7; --shade: rgba(0, 0, 0, .55); } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 74rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
header { margin-bottom: 2.5rem; }
h1 { font-size: 1rem; font-weight: 600; color: var(--muted); margin: 0 0 .9rem; overflow-wrap: anywhere; }
h1 span { font-weight: 400; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 .3rem; }
h3 { font-size: .9375rem; margin: 0; display: flex; align-items: center; gap: .5rem;
  overflow-wrap: anywhere; }
.lede { font-size: 1.5rem; line-height: 1.35; font-weight: 600; letter-spacing: -.01em; margin: 0 0 .8rem;
  max-width: 56rem; overflow-wrap: anywhere; text-wrap: pretty; }
.more { margin: 0 0 .35rem; max-width: 56rem; overflow-wrap: anywhere; }
section { margin: 0 0 2.75rem; }
.note { color: var(--muted); font-size: .875rem; margin: .3rem 0 .9rem; max-width: 52rem;
  overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin-top: .6rem; background-color: var(--card); border: 1px solid var(--line);
  border-radius: .6rem; --ground: var(--card); }
.figure.wide { --ground: var(--figure); }
.scroll, .figure.wide { background-image: linear-gradient(to right, var(--ground) 40%, transparent),
  linear-gradient(to left, var(--ground) 40%, transparent),
  linear-gradient(to right, var(--shade), transparent), linear-gradient(to left, var(--shade), transparent);
  background-position: left, right, left, right; background-repeat: no-repeat;
  background-size: 3rem 100%, 3rem 100%, .9rem 100%, .9rem 100%;
  background-attachment: local, local, scroll, scroll; }
.broad { --beyond: calc((min(100vw - 3rem, 86rem) - 100%) / -2); margin-inline: min(0px, var(--beyond)); }
.broad .compare { font-size: .8125rem; } .broad .spread { font-size: .75rem; }
.broad .compare th, .broad .compare td { padding-inline: .34rem; }
.broad .compare .group, .broad .compare .first, .broad .compare .name { padding-left: .6rem; }
.scroll + .note { margin-top: .6rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.compare { width: 100%; font-size: .875rem; white-space: nowrap; }
.compare th, .compare td { padding: .5rem .5rem; text-align: right; vertical-align: top; }
.compare thead th { color: var(--muted); font-weight: 500; padding-bottom: .3rem; vertical-align: bottom; }
.compare thead tr + tr th { padding-top: 0; font-size: .8125rem; white-space: normal; line-height: 1.25; }
.compare .group { text-align: left; color: var(--ink); font-weight: 600; padding-bottom: .2rem; }
.compare .group, .compare .first { border-left: 1px solid var(--line); padding-left: .9rem; }
.compare tbody th, .compare tbody td { border-top: 1px solid var(--line); }
.compare .name { text-align: left; font-weight: 600; position: sticky; left: 0; background: var(--card);
  padding-left: .9rem; }
.compare b { font-weight: 700; }
.spread { color: var(--muted); font-size: .8125rem; display: block; line-height: 1.3; }
.swatch { width: 1.375rem; height: .625rem; vertical-align: .05em; margin-right: .5rem; flex: none; }
h3 .swatch { margin: 0; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: 0 0 .9rem; padding: 0;
  font-size: .9375rem; }
.legend li { overflow-wrap: anywhere; }
.tabs { border: 0; margin: 0; padding: 0; min-width: 0; }
.tabs input { position: absolute; opacity: 0; pointer-events: none; }
.tabs label { display: inline-block; padding: .4rem .9rem; margin: 0 .35rem .8rem 0;
  border: 1px solid var(--line);
  border-radius: 2rem; background: var(--card); font-size: .9375rem; cursor: pointer; }
.tabs label:hover { border-color: var(--accent); }
.tabs input:checked + label { background: var(--accent); border-color: var(--accent); color: var(--page);
  font-weight: 600; }
.tabs input:focus-visible + label { outline: 3px solid var(--accent); outline-offset: 2px; }
.panel { display: none; }
.panel > h3 { display: none; }
#axis-round:checked ~ .panel-round, #axis-clock:checked ~ .panel-clock,
#axis-bytes-up:checked ~ .panel-bytes-up, #axis-bytes-total:checked ~ .panel-bytes-total { display: block; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
.pair.one { max-width: 36rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem;
  align-items: start; }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 16.5rem), 1fr)); gap: 1rem;
  }
.figure { margin: 0; background: var(--figure); border: 1px solid var(--line); border-radius: .6rem;
  padding: .8rem;
  min-width: 0; color: #24292f; }
.figure svg:not(.swatch) { display: block; width: 100%; height: auto; }
.figure svg * { stroke-linejoin: round; }
.figure text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans",
  sans-serif !important; }
.figure p { margin: .1rem 0 .5rem; font-size: .8125rem; color: #5c6470; }
.compare th:last-child, .compare td:last-child { padding-right: .9rem; }
.small svg:not(.swatch) { max-width: 20rem; }
.figure.wide { overflow-x: auto; }
.figure.wide svg { min-width: 44rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .9rem 1rem;
  margin: .6rem 0 1rem;
  font-size: .875rem; line-height: 1.55; white-space: pre-wrap; overflow-wrap: anywhere; user-select: all; }
pre, code, .pairs td, .pairs li { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
.pairs { width: 100%; background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  font-size: .8125rem;
  border-collapse: separate; border-spacing: 0; table-layout: fixed; }
.pairs caption { text-align: left; font-weight: 600; font-size: .9375rem; padding: 0 0 .45rem; }
.pairs th { text-align: left; font-weight: 500; color: var(--muted); width: 38%; }
.pairs th, .pairs td { padding: .3rem .9rem; vertical-align: top; overflow-wrap: anywhere; }
.pairs tr + tr th, .pairs tr + tr td { border-top: 1px solid var(--line); }
.pairs ul { list-style: none; margin: 0; padding: 0; columns: 22rem; }
.own { margin: 1.25rem 0; }
.own th { width: 22%; }
.differ th { color: var(--ink); font-weight: 600; }
.command { position: relative; }
.copy { position: absolute; right: .6rem; bottom: .6rem; font: inherit; font-size: .8125rem; padding: .25rem .8rem;
  border: 1px solid var(--line); border-radius: 2rem; background: var(--soft); color: var(--ink); cursor: pointer; }
.copy:hover { border-color: var(--accent); }
@media not (scripting: enabled) { .copy { display: none; } }
@media (scripting: enabled) { .command pre { padding-bottom: 3rem; } }
footer { color: var(--muted); font-size: .8125rem; }
@media (max-width: 40rem) { main { padding: 1.5rem 1rem 3rem; } .lede { font-size: 1.25rem; }
  .figure { padding: .5rem; } .pairs th, .pairs td { padding: .38rem .6rem; }
  .tabs label { padding: .4rem .75rem; }
  .scroll::before, .figure.wide::before { content: "scroll sideways →"; display: block; position: sticky; left: 0;
    width: max-content; color: #5c6470; font-size: .75rem; padding: .2rem .6rem; }
  .scroll::before { color: var(--muted); }
  .compare .name { min-width: 8rem; max-width: 9.5rem; white-space: normal; overflow-wrap: break-word; } }
@media print { :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000; --muted: #444;
  --line: #ccc;
  --figure: #fff; }
  @page { margin: 14mm; }
  html { font-size: 10.5px; } main { max-width: none; padding: 0; } section { margin-bottom: 2rem; }
  .tabs label { display: none; } .panel { display: block; margin-bottom: 1rem; }
  .panel > h3 { display: block; margin: .4rem 0; }
  .pair { grid-template-columns: 1fr 1fr; } .small { grid-template-columns: repeat(4, 1fr); }
  .scroll, .figure.wide { overflow: visible; background-image: none; }
  .scroll::before, .figure.wide::before { content: none; } .copy { display: none; }
  .command pre { padding-bottom: .9rem; } .figure.wide svg { min-width: 0; }
  .pair.one { grid-template-columns: 1fr; } .small:has(> :only-child) { grid-template-columns: 20rem; }
  .compare th, .compare td { padding: .35rem .4rem; } .compare .name { position: static; }
  .broad { margin-inline: 0; } .broad .compare { font-size: .72rem; }
  .broad .compare th { white-space: normal; font-size: .68rem; } .broad .spread { font-size: .65rem; }
  .broad .compare th, .broad .compare td { padding-inline: .15rem; }
  .figure, pre, tr, .panel { break-inside: avoid; } h2, h3, .note, .legend { break-after: avoid; } }
"""
