"""How to repeat it: command, settings, versions, data, device."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedweave.report.summary import Groups
from fedweave.report.units import NONE
from fedweave.runs.results import Result

_LONG_LIST = 24
# The style sheet shows the button only where scripts run; elsewhere a click selects the whole command.
COPY = (
    '<button type="button" class="copy" onclick="const code = this.previousElementSibling; '
    "getSelection().selectAllChildren(code); const done = () => { this.textContent = 'Copied'; }; "
    "const old = () => { document.execCommand('copy'); done(); }; "
    'navigator.clipboard ? navigator.clipboard.writeText(code.textContent).then(done, old) : old()">'
    "Copy this command</button>"
)


def repeat(groups: Groups) -> str:
    """Return the section's body."""
    runs = [run for members in groups.values() for run in members]
    shared, own = split_settings(groups)
    commands = "".join(f'<div class="command"><pre><code>{escape(c)}</code></pre>{COPY}</div>' for c in _commands(runs))
    commands = commands or '<p class="note">Started from Python, not from a command line.</p>'
    facts = _pairs({name: text for name, text in _facts(runs).items() if text}, "Surroundings", "own")
    parts = [commands, facts, _settings(shared, "Settings of every run" if len(runs) > 1 else "Settings")]
    if len(groups) > 1 and any(own.values()):
        parts.append(_differences(own))
    return "".join(parts)


def flatten(value: Any, path: str = "") -> dict[str, str]:
    """Return nested plain data as ``{"method.sampler.floor": "0.01"}``."""
    if isinstance(value, Mapping) and value:
        flat: dict[str, str] = {}
        for key, inner in value.items():
            flat |= flatten(inner, f"{path}.{key}" if path else str(key))
        return flat
    if isinstance(value, list | tuple) and any(isinstance(v, Mapping | list | tuple) for v in value):
        return flatten({str(i): v for i, v in enumerate(value)}, path)
    return {path: _plain(value)}


def split_settings(groups: Groups) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the settings that all runs share and those specific to each method; seeds are listed in one line."""
    flats = {m: [flatten(run.experiment) for run in runs] for m, runs in groups.items()}
    every = [flat for members in flats.values() for flat in members]
    keys = list(dict.fromkeys(key for flat in every for key in flat))
    seeds = _distinct(flat["seed"] for flat in every if "seed" in flat)
    shared: dict[str, str] = {}
    own: dict[str, dict[str, str]] = {m: {} for m in groups}
    for key in keys:
        if key == "seed":
            shared["seed" if len(seeds) == 1 else "seeds"] = ", ".join(seeds)
        elif len({flat.get(key) for flat in every}) == 1:
            shared[key] = every[0][key]
        else:
            for method, members in flats.items():
                values = _distinct(flat[key] for flat in members if key in flat)
                own[method] |= {key: ", ".join(values)} if values else {}
    return shared, own


def _plain(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        shown = ", ".join(_plain(v) for v in value[:_LONG_LIST])
        return f"{shown}, … ({len(value)} values)" if len(value) > _LONG_LIST else shown or NONE
    if value is None or value == {}:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _commands(runs: Sequence[Result]) -> list[str]:
    """Return the commands of runs; of those that differ in the number of seeds alone, the last one has them all."""
    whole = {re.sub(r"^(fedweave compare\b.*?) --seeds[ =]\S+", r"\1", c): c for c in _distinct(map(_command, runs))}
    return list(whole.values())


def _command(run: Result) -> str:
    command = run.manifest.get("command") or ""
    return command if isinstance(command, str) else shlex.join(str(word) for word in command)


def _facts(runs: Sequence[Result]) -> dict[str, str]:
    manifests = [run.manifest for run in runs]
    dates = sorted(_date(m["started"]) for m in manifests if m.get("started"))
    versions = _distinct(_listed(m.get("versions"), " ") for m in manifests)
    return {
        "started": " to ".join(_distinct([dates[0], dates[-1]])) if dates else "",
        "device": "; ".join(_distinct(_listed(m.get("device"), ": ") for m in manifests)),
        "processor": "; ".join(_distinct(_listed(m.get("processor"), " ") for m in manifests)),
        "trainer": "; ".join(_distinct(str(m.get("trainer") or "") for m in manifests)),
        "data": "; ".join(_distinct(_data(m.get("data")) for m in manifests)),
        "model": "; ".join(_distinct(_model(m.get("model")) for m in manifests)),
        "versions": "; or ".join(versions),
    }


def _data(data: Any) -> str:
    return f"{data.get('name')}, digest {data.get('digest')}" if isinstance(data, Mapping) else str(data or "")


def _model(model: Any) -> str:
    if not isinstance(model, Mapping):
        return str(model or "")
    count = model.get("parameters")
    return f"{model.get('name')}, {count:,} parameters" if isinstance(count, int) else str(model.get("name"))


def _listed(value: Any, between: str) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}{between}{_plain(v)}" for k, v in value.items())
    return str(value or "")


def _date(started: Any) -> str:
    """Return an ISO date to the minute, anything else as it is."""
    text = str(started)
    return text[:16].replace("T", " ") if text[10:11] in ("T", " ") else text


def _settings(shared: Mapping[str, str], caption: str) -> str:
    """Return the settings, in two columns when there are many."""
    half = len(shared) if len(shared) < 8 else -(-len(shared) // 2)
    items = list(shared.items())
    first, second = _pairs(dict(items[:half]), caption), _pairs(dict(items[half:]), "… continued")
    return f'<div class="cards">{first}{second}</div>'


def _pairs(pairs: Mapping[str, str], caption: str, extra: str = "") -> str:
    rows = "".join(f'<tr><th scope="row">{escape(k)}</th><td>{escape(v)}</td></tr>' for k, v in pairs.items())
    head = f'<table class="pairs {extra}"><caption>{escape(caption)}</caption>'
    return f"{head}<tbody>{rows}</tbody></table>" if rows else ""


def _differences(own: Mapping[str, Mapping[str, str]]) -> str:
    rows = ""
    for method, settings in own.items():
        lines = "".join(f"<li>{escape(k)} = {escape(v)}</li>" for k, v in settings.items())
        rows += f'<tr><th scope="row">{escape(method)}</th><td><ul>{lines}</ul></td></tr>'
    caption = "<caption>What differs between methods</caption>"
    return f'<table class="pairs own differ">{caption}<tbody>{rows}</tbody></table>'


def _distinct(values: Iterable[str]) -> list[str]:
    return [value for value in dict.fromkeys(values) if value]
