"use strict";
// Everything that comes from a run folder is put on the page as text (textContent, attributes), never as markup.

const AXES = { round: "Rounds", clock: "Simulated time", bytes_up: "Upload", bytes_total: "Upload and download" };
const SIGNS = { running: "●", finished: "✓", stopped: "■", failed: "✕", waiting: "…" };
const ORDER = Object.keys(SIGNS);
const MOST = PALETTE.length * DASHES.length; // runs in one figure
const CARDS = 12; // runs whose clients are drawn
const FIRST = 6; // runs that are chosen while the user has chosen nothing
const RETRY = 2000; // milliseconds after which what could not be read is tried again
const SVG = "http://www.w3.org/2000/svg";

const $ = (id) => document.getElementById(id);
const runs = new Map(); // key -> its row
const shown = new Map(); // key -> its table row, as it was last drawn
const chosen = new Map(); // key -> the place of its colour
const state = { axis: "round", metric: null, sort: "state", down: false, auto: true, full: false, curves: {}, clients: {}, cursor: null };

// --- small tools

function make(name, attributes = {}, ...children) {
  const drawn = name.startsWith("svg:");
  const element = drawn ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
const isShare = (metric) => metric === "accuracy";

function plain(value) {
  const size = Math.abs(value);
  if (value && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

const score = (metric, value) => (isShare(metric) ? `${(100 * value).toFixed(1)} %` : plain(value));

function unitOf(axis, top) {
  const units = axis === "clock" ? [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]
    : axis === "round" ? [["", 1]] : [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]];
  return units.find(([, size]) => top >= 2 * size) || units.at(-1);
}

function along(axis, value, top) {
  const [unit, size] = unitOf(axis, top);
  return axis === "round" ? `round ${value.toLocaleString("en")}`
    : `${(value / size).toFixed(unit === "s" || unit === "B" ? 1 : 2)} ${unit}${axis === "clock" ? " (simulated)" : ""}`;
}

function ticks(low, high, most) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step);
  return out.map((value) => [value, value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (step / power === 2.5)))]);
}

// --- colours, dashes and marks

const inkOf = (key) => {
  const place = chosen.get(key);
  return { color: PALETTE[place % PALETTE.length], dash: DASHES[Math.floor(place / PALETTE.length)], mark: place % 4 };
};

function mark(ink, x, y) {
  const r = 4, paint = { fill: ink.color, stroke: "#fff", "stroke-width": 1 };
  if (ink.mark === 0) return make("svg:circle", { cx: x, cy: y, r, ...paint });
  const shapes = [null, [[-r, -r], [r, -r], [r, r], [-r, r]], [[0, -r - 1], [r + 1, r], [-r - 1, r]],
    [[0, -r - 1.5], [r + 1.5, 0], [0, r + 1.5], [-r - 1.5, 0]]];
  return make("svg:polygon", { points: shapes[ink.mark].map(([a, b]) => `${x + a},${y + b}`).join(" "), ...paint });
}

function swatch(ink) {
  return make("svg:svg", { class: "swatch", viewBox: "0 0 36 12", "aria-hidden": "true" },
    make("svg:line", { x1: 1, y1: 6, x2: 35, y2: 6, stroke: ink.color, "stroke-width": 3, "stroke-dasharray": ink.dash || null }),
    mark(ink, 18, 6));
}

// --- the choice of runs

function choose(key, on) {
  const taken = new Set(chosen.values());
  state.full = on && taken.size === MOST;
  if (!on) chosen.delete(key);
  else if (!state.full) chosen.set(key, [...Array(MOST).keys()].find((place) => !taken.has(place)));
}

function forgetGone() {
  const gone = [...chosen.keys()].filter((key) => !runs.has(key));
  for (const key of gone) chosen.delete(key);
  if (gone.length) remember();
}

function chooseFirst() {
  if (!state.auto) return;
  const begun = [...runs.values()].filter((run) => run.round > 0), running = begun.filter((run) => run.state === "running");
  const above = (run) => run.folder.slice(0, -run.name.split("/").at(-1).length), near = new Set(running.map(above));
  const beside = begun.filter((run) => near.has(above(run))); // in the same comparison or sweep
  for (const run of running.length ? [...running, ...beside] : begun) if (chosen.size < FIRST && !chosen.has(run.key)) choose(run.key, true);
}

function remember() {
  const words = new URLSearchParams();
  if (!state.auto) words.set("runs", [...chosen.keys()].join(","));
  if (state.axis !== "round") words.set("axis", state.axis);
  if (state.metric) words.set("metric", state.metric);
  history.replaceState(null, "", words.size ? `#${words}` : location.pathname);
}

function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  if (words.has("runs")) {
    state.auto = false;
    for (const key of words.get("runs").split(",").filter(Boolean)) choose(key, true);
  }
  if (words.get("axis") in AXES) state.axis = words.get("axis");
  state.metric = words.get("metric");
}

// --- the list

function cells(run) {
  const on = chosen.has(run.key), box = make("input", { type: "checkbox", id: `box-${run.key}` });
  box.checked = on;
  box.addEventListener("change", () => {
    state.auto = false;
    choose(run.key, box.checked);
    box.checked = chosen.has(run.key);
    remember();
    drawAll();
    fetchChosen();
  });
  const about = [run.method, run.data, run.seed === undefined ? null : `seed ${run.seed}`].filter(Boolean).join(" · ");
  const text = make("span", {}, run.name, make("span", { class: "sub" }, about));
  if (run.note) text.append(make("span", { class: run.state === "failed" ? "problem" : "sub" }, run.note));
  const label = make("label", { title: run.folder }, box, ...(on ? [swatch(inkOf(run.key))] : []), text);
  const told = run.text || {}, of = run.rounds === undefined ? "" : `${run.round.toLocaleString("en")} of ${run.rounds.toLocaleString("en")}`;
  const share = run.state === "finished" ? 100 : Math.min(100, run.rounds ? (100 * run.round) / run.rounds : 0);
  const bar = make("svg:svg", { class: "bar", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" },
    make("svg:rect", { width: share, height: 1 }));
  return [
    make("th", { class: "name", scope: "row" }, label),
    make("td", { class: `state state-${run.state}` }, `${SIGNS[run.state]} ${run.state}`),
    make("td", {}, of || "–", ...(of ? [bar] : [])),
    make("td", {}, told.value || "–", make("span", { class: "spread" }, run.value === null || !run.metric ? "" : run.metric)),
    make("td", {}, told.seconds || "–", make("span", { class: "spread" }, run.text ? (run.simulated ? "simulated" : "real") : "")),
    make("td", {}, told.bytes || "–"),
  ];
}

function compareRows(a, b) {
  const [x, y] = [a, b].map((run) => (state.sort === "state" ? ORDER.indexOf(run.state) : run[state.sort]));
  if (x === y) return 0;
  if (x === undefined || x === null) return 1; // what is not known comes last, either way
  if (y === undefined || y === null) return -1;
  const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
  return state.down ? -order : order;
}

function drawList() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (run) => {
    const text = [run.name, run.method, run.data, run.state].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  const rows = [...runs.values()].filter(fits);
  if (state.sort) rows.sort(compareRows);
  const body = $("rows"), focused = document.activeElement?.id;
  for (const run of rows) {
    const drawn = `${run.version} ${chosen.get(run.key)} ${run.name}`, old = shown.get(run.key);
    if (old?.drawn === drawn) continue;
    const row = old?.row || make("tr");
    row.replaceChildren(...cells(run));
    shown.set(run.key, { row, drawn });
  }
  for (const key of shown.keys()) if (!runs.has(key)) shown.delete(key);
  const wanted = rows.map((run) => shown.get(run.key).row);
  if (wanted.length !== body.children.length || wanted.some((row, i) => row !== body.children[i])) body.replaceChildren(...wanted);
  if (focused?.startsWith("box-") && document.activeElement?.id !== focused) $(focused)?.focus();
  const hidden = runs.size - rows.length;
  $("count").textContent = `${count(chosen.size, "run")} chosen${hidden ? `, ${hidden} filtered out` : ""}${state.full ? `; more than ${MOST} do not fit into one figure` : ""}`;
  for (const head of document.querySelectorAll("thead th")) {
    const now = head.firstElementChild.dataset.sort === state.sort;
    if (now) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

function drawLede() {
  const counts = ORDER.map((name) => [name, [...runs.values()].filter((run) => run.state === name).length]);
  const parts = counts.filter(([, n]) => n).map(([name, n]) => `${n} ${name}`);
  $("lede").textContent = runs.size ? `${count(runs.size, "run")}: ${parts.join(", ")}.` : "No runs yet. They appear here as soon as they begin.";
  const running = counts[0][1];
  document.title = running ? `(${running}) fedweave watch` : "fedweave watch";
}

// --- the curves

const listed = () => [...chosen.keys()].filter((key) => runs.has(key));
const metricNow = () => state.metric || runs.get(listed()[0])?.metric || "accuracy";

function drawMetrics() {
  const names = [...new Set(listed().flatMap((key) => runs.get(key).metrics || []))], now = metricNow();
  if (!names.includes(now)) names.push(now);
  const select = $("metric");
  if (names.join("\n") !== [...select.options].map((option) => option.value).join("\n"))
    select.replaceChildren(...names.map((name) => make("option", { value: name }, name.replaceAll("_", " "))));
  select.value = now;
}

function nearest(xs, x) { // the last point that is not behind x, as a run keeps its last value until the next one
  let low = 0, high = xs.length;
  while (low < high) { const middle = (low + high) >> 1; if (xs[middle] <= x) low = middle + 1; else high = middle; }
  return low - 1;
}

function series() {
  return listed().map((key) => ({ key, ...state.curves[key] })).filter((curve) => curve.x?.length);
}

function drawLegend(lines, top) {
  const metric = metricNow(), x = state.cursor;
  $("legend").replaceChildren(...listed().map((key) => {
    const line = lines.find((each) => each.key === key);
    const at = !line ? -1 : x === null ? line.x.length - 1 : nearest(line.x, x);
    const value = at < 0 ? "–" : score(metric, line.y[at]);
    const note = state.curves[key]?.problem ? ` ${state.curves[key].problem}` : "";
    return make("li", {}, swatch(inkOf(key)), `${runs.get(key).name} `, make("b", {}, value), note);
  }));
  $("reading").textContent = !lines.length ? "" : x === null
    ? "Values above: the last ones. Point at the figure, or use the arrow keys on it, to read others."
    : `Values above: at ${along(state.axis, x, top)}.`;
}

function frame(holder, label) {
  const width = Math.max(240, holder.clientWidth - 2 * parseFloat(getComputedStyle(holder).paddingLeft));
  return { width, svg: (height) => make("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }) };
}

function path(points, steps) { // against time and bytes a run keeps its last value until the next one
  const [first, ...rest] = points.map((point) => point.map((at) => at.toFixed(1)));
  return `M${first}${rest.map(([x, y]) => (steps ? `H${x}V${y}` : `L${x},${y}`)).join("")}`;
}

function drawChart() {
  const lines = series(), holder = $("chart"), metric = metricNow();
  const axis = state.axis, top = Math.max(1e-9, ...lines.map((line) => line.x.at(-1)));
  drawLegend(lines, top);
  if (!lines.length) {
    holder.replaceChildren(make("p", { class: "empty" }, chosen.size ? "Nothing to draw yet: no values of this metric." : "Choose runs in the list."));
    state.plot = null;
    return;
  }
  let low = Infinity, high = -Infinity;
  for (const line of lines) for (const y of line.y) { low = Math.min(low, y); high = Math.max(high, y); }
  const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
  [low, high] = [low - room, high + room];
  if (isShare(metric)) [low, high] = [Math.max(0, low), Math.min(1, high)];
  const { width, svg } = frame(holder, `${metric} against ${AXES[axis].toLowerCase()}`);
  const height = Math.round(Math.min(400, Math.max(260, width * 0.42))), left = 52, right = 16, above = 28, below = 42;
  const [unit, size] = unitOf(axis, top), scale = isShare(metric) ? 100 : 1;
  const px = (x) => left + (x / top) * (width - left - right), py = (y) => above + ((high - y) / (high - low)) * (height - above - below);
  const image = svg(height), real = listed().some((key) => runs.get(key).simulated === false);
  const title = `${metric.replaceAll("_", " ")}${isShare(metric) ? ", %" : ""}`;
  image.append(make("svg:text", { class: "title", x: 4, y: 14 }, title[0].toUpperCase() + title.slice(1)));
  for (const [value, text] of ticks(low * scale, high * scale, Math.max(3, height / 60))) {
    const y = py(value / scale);
    image.append(make("svg:line", { x1: left, x2: width - right, y1: y, y2: y, stroke: "#e4e6ea" }),
      make("svg:text", { x: left - 8, y: y + 4, "text-anchor": "end" }, text));
  }
  image.append(make("svg:line", { x1: left, x2: width - right, y1: height - below, y2: height - below, stroke: "#b4b9c1" }));
  for (const [value, text] of ticks(0, top / size, Math.max(3, width / 110)))
    image.append(make("svg:text", { x: px(value * size), y: height - below + 17, "text-anchor": "middle" }, text));
  const name = `${AXES[axis].toLowerCase()}${axis === "clock" && real ? " (real time for runs marked as real)" : ""}${unit ? `, ${unit}` : ""}`;
  image.append(make("svg:text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, name));
  for (const line of lines) {
    const ink = inkOf(line.key), points = line.x.map((x, i) => [px(x), py(line.y[i])]), place = lines.indexOf(line);
    const hides = lines.slice(0, place).some((other) => `${other.x}` === `${line.x}` && `${other.y}` === `${line.y}`);
    image.append(make("svg:path", { d: path(points, axis !== "round"), fill: "none",
      stroke: ink.color, "stroke-width": 2, "stroke-dasharray": ink.dash || (hides ? "9 9" : null), "stroke-dashoffset": hides ? 5 * place : null, "stroke-linejoin": "round", "data-run": line.key }));
    const marks = [0, 1, 2, 3].map((n) => ((n + (place + 1) / lines.length) * (points.length - 1)) / 4); // where others have none
    for (const i of new Set(marks.map(Math.round))) image.append(mark(ink, ...points[i]));
  }
  const cross = make("svg:line", { y1: above, y2: height - below, stroke: "#24292f", "stroke-dasharray": "3 3", visibility: "hidden" });
  image.append(cross);
  holder.replaceChildren(image);
  state.plot = { lines, top, px, cross, width, left, right };
  moveCursor(state.cursor);
}

function moveCursor(x) {
  const plot = state.plot;
  if (!plot) return;
  state.cursor = x === null ? null : Math.min(plot.top, Math.max(0, state.axis === "round" ? Math.round(x) : x));
  if (state.cursor === null) plot.cross.setAttribute("visibility", "hidden");
  else {
    plot.cross.setAttribute("visibility", "visible");
    for (const side of ["x1", "x2"]) plot.cross.setAttribute(side, plot.px(state.cursor));
  }
  drawLegend(plot.lines, plot.top);
}

function pointed(event) {
  const plot = state.plot, box = $("chart").querySelector("svg")?.getBoundingClientRect();
  if (!plot || !box) return;
  const x = ((event.clientX - box.left) / box.width) * plot.width;
  moveCursor(((x - plot.left) / (plot.width - plot.left - plot.right)) * plot.top);
}

function pressed(event) {
  const plot = state.plot, steps = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 };
  if (!plot) return;
  if (event.key in steps) {
    const step = state.axis === "round" ? Math.max(1, Math.round(plot.top / 100)) : plot.top / 100;
    moveCursor((state.cursor ?? plot.top) + steps[event.key] * step);
  } else if (event.key === "Home") moveCursor(0);
  else if (event.key === "End") moveCursor(plot.top);
  else if (event.key === "Escape") moveCursor(null);
  else return;
  event.preventDefault();
}

// --- who takes part

function drawClients() {
  const keys = listed().slice(0, CARDS), holder = $("clients");
  const top = Math.max(1e-9, ...keys.flatMap((key) => state.clients[key]?.asked || []));
  const cards = keys.map((key) => {
    const part = state.clients[key], run = runs.get(key);
    const head = make("h3", {}, swatch(inkOf(key)), run.name);
    if (!part || part.problem || !part.clients)
      return make("figure", { class: "figure" }, head, make("p", {}, part?.problem || "Nobody was asked yet."));
    const never = part.never_asked ? `; ${part.never_asked.toLocaleString("en")} never asked` : "";
    const card = make("figure", { class: "figure" }, head,
      make("p", {}, `answered ${(100 * part.answer_rate).toFixed(1)} % of the requests${never}`));
    return { card, part, run, key };
  });
  holder.replaceChildren(...cards.map((each) => each.card || each));
  for (const { card, part, run, key } of cards) if (card) card.append(bars(card, part, run, inkOf(key), top));
  if (!keys.length) holder.replaceChildren(make("p", { class: "note" }, "Choose runs in the list."));
  else if (chosen.size > CARDS) holder.append(make("p", { class: "note" }, `Shown: the first ${CARDS} of the runs that are chosen.`));
}

function bars(card, part, run, ink, top) {
  const label = `${run.name}: share of rounds in which each client was asked (light) and answered (dark)`;
  const { width, svg } = frame(card, label), height = 170, left = 34, right = 6, above = 22, below = 36;
  const image = svg(height), n = part.asked.length, wide = (width - left - right) / n;
  const py = (share) => above + (1 - share / (top * 1.04)) * (height - above - below);
  image.append(make("svg:text", { x: 2, y: 13 }, "% of rounds"));
  for (const [value, text] of ticks(0, top * 104, 4)) {
    const y = py(value / 100);
    image.append(make("svg:line", { x1: left, x2: width - right, y1: y, y2: y, stroke: "#e4e6ea" }),
      make("svg:text", { x: left - 6, y: y + 4, "text-anchor": "end" }, text));
  }
  for (let i = 0; i < n; i++) {
    const who = part.ids ? `client ${part.ids[i]}` : "clients of this rank";
    const title = make("svg:title", {}, `${who}: asked in ${(100 * part.asked[i]).toFixed(1)} % of the rounds, answered in ${(100 * part.answered[i]).toFixed(1)} %`);
    const bar = (share, opacity) => make("svg:rect", { x: left + i * wide, y: py(share), width: Math.max(0.5, wide - (wide > 4 ? 1 : 0)),
      height: Math.max(0, height - below - py(share)), fill: ink.color, "fill-opacity": opacity });
    image.append(make("svg:g", {}, title, bar(part.asked[i], 0.28), bar(part.answered[i], 0.85)));
  }
  const text = `${part.clients.toLocaleString("en")} clients, most asked first`;
  image.append(make("svg:text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, text));
  return image;
}

// --- what comes from the server

let busy = false, again = false, retry = 0;

async function fetchChosen(retries = 3) {
  if (busy) { again = true; return; }
  busy = true;
  do {
    again = false;
    const keys = listed(), words = new URLSearchParams(keys.map((key) => ["run", key]));
    const few = new URLSearchParams(keys.slice(0, CARDS).map((key) => ["run", key]));
    words.set("metric", metricNow());
    words.set("axis", state.axis);
    try {
      const [curves, clients] = await Promise.all([`curves.json?${words}`, `clients.json?${few}`].map(
        async (path) => (keys.length ? (await fetch(path)).json() : {})));
      [state.curves, state.clients] = [curves, clients];
      drawChart();
      drawClients();
      clearTimeout(retry); // a run that was just being closed can be read a moment later
      const unread = [curves, clients].some((found) => Object.values(found).some((run) => run.problem));
      if (unread && retries) retry = setTimeout(() => fetchChosen(retries - 1), RETRY);
    } catch { /* the stream of events says that the connection is lost, and comes back by itself */ }
  } while (again);
  busy = false;
}

function drawAll() {
  drawLede();
  drawList();
  drawMetrics();
  drawChart();
  drawClients();
}

function heard(event) {
  const news = JSON.parse(event.data), before = new Map([...chosen.keys()].map((key) => [key, runs.get(key)?.version]));
  if (news.all) runs.clear();
  for (const key of news.gone) runs.delete(key);
  for (const run of news.runs) runs.set(run.key, { round: 0, ...run });
  $("more").hidden = !news.more;
  live(true);
  forgetGone();
  chooseFirst();
  drawLede();
  drawList();
  drawMetrics();
  if (chosen.size !== before.size || [...chosen.keys()].some((key) => runs.get(key)?.version !== before.get(key))) fetchChosen();
}

function live(yes) {
  $("live").textContent = yes ? "live" : "connection lost; trying again";
  $("live").classList.toggle("lost", !yes);
}

let events = null;

function listen() { // only where the page is seen: a browser has few connections to one host, for all its tabs
  if (document.hidden) {
    events?.close();
    events = null;
  } else if (!events) {
    events = new EventSource("events");
    events.addEventListener("message", heard);
    events.addEventListener("error", () => live(false));
  }
}

function start() {
  recall();
  for (const [axis, text] of Object.entries(AXES)) {
    const input = make("input", { type: "radio", name: "axis", id: `axis-${axis}`, value: axis });
    input.checked = axis === state.axis;
    input.addEventListener("change", () => { state.axis = axis; state.cursor = null; state.curves = {}; remember(); fetchChosen(); });
    $("axes").append(input, make("label", { for: `axis-${axis}` }, text));
  }
  $("metric").addEventListener("change", (event) => { state.metric = event.target.value; state.curves = {}; remember(); fetchChosen(); });
  $("filter").addEventListener("input", drawList);
  $("clear").addEventListener("click", () => { state.auto = state.full = false; chosen.clear(); remember(); drawAll(); fetchChosen(); });
  for (const button of document.querySelectorAll("[data-sort]")) button.addEventListener("click", () => {
    const name = button.dataset.sort;
    state.down = state.sort === name ? !state.down : ["value", "round"].includes(name);
    state.sort = name;
    drawList();
  });
  $("chart").addEventListener("pointermove", pointed);
  $("chart").addEventListener("pointerleave", () => moveCursor(null));
  $("chart").addEventListener("keydown", pressed);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawChart(); drawClients(); } });
  document.addEventListener("visibilitychange", listen);
  listen();
  drawMetrics();
}

start();
