"""Beyond DELTA: which of its choices matter, and what tames its weights."""

from __future__ import annotations

from dataclasses import replace

from fedweave import methods
from fedweave.aggregate import InverseProbability
from fedweave.core.settings import BadInput
from fedweave.method import Method
from fedweave.papers.common.claims import Claim, Outcome, Scale
from fedweave.papers.common.parallel import Told
from fedweave.papers.common.training import leads
from fedweave.papers.delta import judge
from fedweave.papers.delta.judge import READING
from fedweave.papers.delta.stage import BENCHES, contest, experiment, note, samples
from fedweave.sample import PracticalDelta


def arms(k: int) -> dict[str, Method]:
    """Return practical DELTA with one choice changed at a time, and FedAvg by uniform and by data-size sampling."""
    plain = methods.fedpracdelta(k)
    changed = {
        "starts at ω": PracticalDelta(k, start="weights"),
        "floor 0.1": PracticalDelta(k, floor=0.1),
        "without replacement": PracticalDelta(k, replacement=False),
        "the code's score": PracticalDelta(k, variant="code"),
        "diversity alone": PracticalDelta(k, alpha2=0.0),
        "noise alone": PracticalDelta(k, alpha1=0.0),
    }
    return {
        "fedpracdelta": plain,
        **{name: replace(plain, sampler=sampler) for name, sampler in changed.items()},
        "weights sum to one": replace(plain, aggregator=InverseProbability("weights")),
        "fedavg": methods.fedavg(k),
        "fedavg_md": methods.fedavg_md(k),
    }


def variants(scale: Scale, told: Told | None = None, part: str | None = None) -> Outcome:
    """Practical DELTA with one choice changed at a time, on Fashion-MNIST by data shares."""
    item, bench, text = "delta/variants", BENCHES[part or "fashion"], "another choice is more accurate"
    size = bench.sizes[scale]
    try:
        data = samples(bench, scale)
    except BadInput as missing:
        return Outcome(item, scale, [], [Claim(text, "not run at this scale", str(missing))])
    seeds = min(size.seeds, 3)
    runs = contest({n: experiment(bench, scale, m, data) for n, m in arms(size.per_round).items()}, seeds, told)
    rows = judge.table(runs, size.threshold or bench.threshold, {}, "fedpracdelta")
    plain = {"fedpracdelta": judge.lasts(runs["fedpracdelta"])}
    claims = [
        leads(f"{n} is more accurate at the end than fedpracdelta", judge.lasts(r), plain, scale)
        for n, r in runs.items()
        if n != "fedpracdelta"
    ]
    return Outcome(item, scale, rows, claims, (note(bench, scale, data), f"{seeds} seeds here.", READING))
