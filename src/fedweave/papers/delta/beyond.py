"""Beyond DELTA: which of its choices matter, and what limits its weights."""

from __future__ import annotations

from dataclasses import replace

from fedweave import methods
from fedweave.aggregate import InverseProbability
from fedweave.core.settings import BadInput
from fedweave.method import Method
from fedweave.papers.common.claims import Outcome, judge_lead
from fedweave.papers.common.parallel import Progress
from fedweave.papers.common.scale import Scale
from fedweave.papers.delta.claims import READING, final_accuracies, table_rows
from fedweave.papers.delta.setup import BENCHMARKS, describe, experiment, run_experiments, samples
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


def variants(scale: Scale, on_progress: Progress | None = None, part: str | None = None) -> Outcome:
    """Practical DELTA with one choice changed at a time, on Fashion-MNIST by data shares."""
    item, benchmark, text = "delta/variants", BENCHMARKS[part or "fashion"], "another choice is more accurate"
    size = benchmark.sizes[scale]
    try:
        data = samples(benchmark, scale)
    except BadInput as missing:
        return Outcome.not_run(item, scale, text, missing)
    seeds = min(size.seeds, 3)
    runs = run_experiments(
        {n: experiment(benchmark, scale, m, data) for n, m in arms(size.per_round).items()}, seeds, on_progress
    )
    rows = table_rows(runs, size.threshold or benchmark.threshold, {}, "fedpracdelta")
    plain = {"fedpracdelta": final_accuracies(runs["fedpracdelta"])}
    claims = [
        judge_lead(f"{n} is more accurate at the end than fedpracdelta", final_accuracies(r), plain, scale)
        for n, r in runs.items()
        if n != "fedpracdelta"
    ]
    return Outcome(item, scale, rows, claims, (describe(benchmark, scale, data), f"{seeds} seeds here.", READING))
