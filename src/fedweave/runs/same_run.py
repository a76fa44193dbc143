"""Whether a run may be continued: with the same experiment, start values and release, and what to warn of otherwise."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

from fedweave.core.plugins import is_plugin
from fedweave.core.settings import BadInput, brief
from fedweave.core.spec import describe
from fedweave.runs.experiment import Experiment
from fedweave.runs.plain import refuse_old_fields, to_plain
from fedweave.schedule import Schedule

FREE = {"pool", "workers", "device", "tables"}  # settings that change no bit


def refuse_edited(began: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse to continue a run whose experiment.json is not what the run began with."""
    before, now = ({k: v for k, v in plain.items() if k not in FREE} for plain in (began, stored))
    if other := different(before, now):
        raise BadInput(
            f"experiment.json has been changed since this run began: {'; '.join(other)}. "
            "Put it back, or start a new run."
        )


def refuse_another(stored: Mapping[str, Any], given: Experiment) -> None:
    """Refuse to continue a run with other settings.

    Data and start values have digests in the manifest, own models have no name, and the rest has no effect.
    """
    refuse_old_fields(stored)
    plain = json.loads(json.dumps(to_plain(given)))
    free = {"data", "start"} | FREE | (set() if isinstance(plain["model"], str) else {"model"})
    fixed = {k: v for k, v in plain.items() if k not in free}
    if other := different({k: stored.get(k) for k in fixed}, fixed):
        raise BadInput(
            f"The experiment differs from the one this run began with in {'; '.join(other)}. "
            "Give the same one, or start a new run."
        )


def refuse_length(stored: Mapping[str, Any], experiment: Experiment, done: int) -> bool:
    """Return whether the experiment has another number of rounds than its run; refuse one that this cannot have."""
    rounds, before = experiment.rounds, stored["rounds"]
    if rounds == before:
        return False
    if rounds <= done:
        raise BadInput(f"This run has done {done} of its {before} rounds, so 'rounds' must be more. Got {rounds}.")
    if isinstance(rate := experiment.rate, Schedule) and rate.needs_rounds:
        raise BadInput(
            f"The learning rate {describe(rate)} depends on the number of rounds: in a run of {rounds} instead of "
            f"{before} it would have differed in the rounds that are done. Start a new run."
        )
    return True


def different(before: Any, now: Any, path: str = "") -> list[str]:
    """Return a phrase for every field in which two plain descriptions differ."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = [*before, *(k for k in now if k not in before)]
        return [d for k in keys for d in different(before.get(k), now.get(k), f"{path}.{k}" if path else str(k))]
    if before == now or (path.endswith("type") and _is_class_name(before, now)):
        return []
    texts = [brief(json.dumps(value), 200) for value in (before, now)]
    return [f"{brief(path)} ({texts[0]} then, {texts[1]} now)"]


def _is_class_name(name: Any, plugin: Any) -> bool:
    """Return whether a class is named without its module, as older runs have it, and ``module:Class`` may be it."""
    return isinstance(name, str) and is_plugin(plugin) and re.split("[:.]", plugin)[-1] == name


def refuse_another_start(began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue a run whose model began with other values, wherever they are kept now."""
    before, ours = ((manifest.get("start") or {}).get("sha256") for manifest in (began, now))
    if before != ours:
        raise BadInput(
            f"The start values are not those that this run began with: {different(before, ours, 'SHA-256')[0]}."
        )


def mind_machine(began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare the manifests of a run and of what continues it: refuse another fedweave, warn of other last bits."""
    before, ours = began["versions"].get("fedweave", ""), now["versions"].get("fedweave", "")
    if before.split(".")[:2] != ours.split(".")[:2]:
        raise BadInput(f"This run began with fedweave {before}, and this is {ours}. Continue it with that version.")
    if other := different(began["versions"], now["versions"]):
        warnings.warn(f"Resuming with other versions, the last bits may differ: {'; '.join(other)}.", stacklevel=2)
    if other := different(began.get("plugins"), now.get("plugins")) if "plugins" in began else []:
        warnings.warn(f"Resuming with changed plug-ins, the results may differ: {'; '.join(other)}.", stacklevel=2)
    facts = [fact for fact in ("processor", "trainer") if fact in began]
    if other := [difference for fact in facts for difference in different(began[fact], now[fact], fact)]:
        warnings.warn(
            "Resuming on another kind of processor or with another trainer, the last bits may differ: "
            f"{'; '.join(other)}.",
            stacklevel=2,
        )
