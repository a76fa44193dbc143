"""Rounds that do not wait for the slowest client. Run: python examples/asynchronous.py"""

from dataclasses import replace

import fedweave as fw

experiment = fw.Experiment(
    "fedavg",
    data="digits",
    partition="dirichlet:0.3",
    system="lognormal",  # a few clients are many times slower than the others
    rounds=40,
    target=0.8,
)
semi = fw.Method(
    fw.sample.Uniform(6), pacing=fw.pacing.Synchronous(deadline=2.0, late="discount"), name="semi-synchronous"
)
methods = [
    fw.methods.fedavg(6),  # waits for all six
    semi,  # closes after two simulated seconds; late answers count later, for less
    fw.methods.fedbuff(6),  # six train at any time; whenever three have answered the model moves on
]

if __name__ == "__main__":
    for method in methods:
        summary = fw.run(replace(experiment, method=method)).summary
        seconds = summary["seconds_to_target"]
        print(f"{method.name:<17} {f'{seconds:.0f}' if seconds else 'never'} simulated seconds to 80 %")
