"""FedDD's figures 4 to 10 and 21, the methods under one budget; ``variants`` and ``single`` have the others.

Figure 1 is an illustration, tables 1 to 6 list symbols, networks and settings. What figures 8 and 14 measured on ten
rented machines (table 5) is simulated here; ``testbed`` has them on real nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedweave.aggregate import Anonymous
from fedweave.method import Method
from fedweave.papers.common.panels import Make, bars
from fedweave.papers.common.record import best
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.feddd.measures import (
    BEHIND,
    CLASSES,
    COST,
    FINAL,
    JITTER,
    OVER_ROUNDS,
    OVER_TIME,
    READING,
    accuracy_of_classes,
    shown_times,
    time_over,
    times_to,
)
from fedweave.papers.feddd.setup import MODELS, PRIMARY, SEEDS, SIZES, SPLITS, WIDE, Rare, Setting, dropout, rivals
from fedweave.papers.feddd.single import STUDIES as SINGLE
from fedweave.papers.feddd.testbed import STUDIES as TESTBEDS
from fedweave.papers.feddd.variants import STUDIES as VARIANTS
from fedweave.runs.experiment import Experiment
from fedweave.sample import ACS, Oort

# Points of final accuracy behind FedDD, as far as the text says (sections 6.3 and 6.4); nothing is printed otherwise.
EQUAL = "about equal"
PUBLISHED_BEHIND: dict[str, dict[str, float | str]] = {
    "mnist/iid": {"fedavg": EQUAL, "fedcs": EQUAL, "oort": EQUAL},
    "mnist/non-iid-a": {"fedavg": EQUAL, "fedcs": 0.015, "oort": EQUAL},
    "mnist/non-iid-b": {"fedcs": 0.055, "oort": 0.015},
    "fashion_mnist/iid": {"fedavg": EQUAL, "fedcs": EQUAL, "oort": EQUAL},
    "fashion_mnist/non-iid-a": {"fedcs": 0.022, "oort": 0.017},
    "fashion_mnist/non-iid-b": {"fedcs": 0.047, "oort": 0.025},
    "cifar10/iid": {"fedcs": EQUAL, "oort": 0.036},
    "cifar10/non-iid-a": {"fedcs": 0.038, "oort": EQUAL},
    "cifar10/non-iid-b": {"fedcs": 0.083, "oort": 0.021},
    "cifar10/a/iid": {"fedavg": EQUAL, "fedcs": EQUAL, "oort": EQUAL},
    "cifar10/a/non-iid-a": {"fedcs": 0.175, "oort": EQUAL},
    "cifar10/a/non-iid-b": {"fedavg": -0.036, "fedcs": 0.172, "oort": 0.209},
    "cifar10/b/non-iid-a": {"fedcs": 0.306, "oort": 0.049},
    "cifar10/b/non-iid-b": {"fedcs": 0.336, "oort": 0.262},
}
# Targets that the text prints. Their times are stored as printed: reductions against FedAvg, FedCS and Oort.
TARGETS = {"mnist/iid": (0.88,), "cifar10/non-iid-b": (0.56,), "cifar10/a/non-iid-b": (0.4, 0.5)}
REDUCED = {"feddd": 0.0, "fedavg": 0.735, "fedcs": 0.515, "oort": 0.415}  # MNIST, IID, 88 %
PUBLISHED_TIMES: dict[str, dict[str, dict[str, float | str]]] = {
    "mnist/iid": {"T2A, 88 %": {name: (1 - REDUCED["fedavg"]) / (1 - cut) for name, cut in REDUCED.items()}},
    "cifar10/non-iid-b": {"T2A, 56 %": {"fedavg": 1, "feddd": 1 - 0.599, "fedcs": "never", "oort": "never"}},
    "cifar10/a/non-iid-b": {
        "T2A, 40 %": {"fedavg": 1, "fedcs": "more than 1"},
        "T2A, 50 %": {"fedavg": 1, "fedcs": "more than 1", "oort": "never"},
    },
}
WITHIN = {"a": "0.20 to 0.24, over FedCS 0.17 to 0.53, over Oort 0.21 to 0.44"}
WITHIN["b"] = "0.18 to 0.34, over FedCS 0.40 to 0.49, over Oort 0.37 to 0.77"


def arrived(target: float) -> Measure:
    """Return whether a run reached an accuracy: 1 or 0."""
    return Measure(lambda record: float(best()(record) >= target))


def compared(item: str, shows: str, setting: Setting, panels: tuple[Make, ...], notes: tuple[str, ...] = ()) -> Study:
    """Return the study of the four methods under one budget in a setting."""
    targets, times = TARGETS.get(setting.name, ()), PUBLISHED_TIMES.get(setting.name, {})
    behind = PUBLISHED_BEHIND.get(setting.name)
    never = {f"reached {100 * t:.0f} %": arrived(t) for t in targets}
    return Study(
        name=f"feddd/{item}",
        shows=f"{shows}: {setting.name.replace('/', ', ')}",
        arms=lambda scale: setting.arms(scale, rivals()),
        seeds=PRIMARY if item == "fig7/mnist/iid" else SEEDS,
        measures={
            "final accuracy": FINAL,
            "behind FedDD": BEHIND,
            **times_to(targets),
            **never,
            "rounds, 0.9 FedAvg": time_over("fedavg", 0.9, share=True, time="round"),
            **COST,
            "jitter": JITTER,
        },
        panels=panels,
        settings=setting.settings,
        published={**({"behind FedDD": behind} if behind else {}), **times},
        notes=(READING, *notes),
    )


def _times(item: str, shows: str, setting: Setting, notes: tuple[str, ...] = ()) -> Study:
    published = PUBLISHED_TIMES.get(setting.name, {})
    return compared(item, shows, setting, shown_times(TARGETS.get(setting.name, ()), published), notes)


CURVES = (OVER_ROUNDS, OVER_TIME)
HOMOGENEOUS = [
    study
    for data in MODELS
    for figure, split in zip((4, 5, 6), SPLITS, strict=True)
    for at in (Setting(data, split),)
    for study in (
        compared(f"fig{figure}/{data}", "accuracy under one budget", at, CURVES),
        _times(f"fig7/{at.name}", "time to targets over FedAvg's", at),
    )
]
SUBMODELS = [Setting(data, split, widths) for data, widths in WIDE for split in SPLITS]
PUBLISHED_WIDTHS = [at for at in SUBMODELS if at.data == "cifar10"]
HETEROGENEOUS = [
    *(compared(f"fig9/{at.name}", "accuracy with sub-models of five widths", at, CURVES) for at in PUBLISHED_WIDTHS),
    *(
        _times(
            f"fig10/{at.name}",
            "time to targets with sub-models of five widths",
            at,
            (f"The paper's FedDD over FedAvg, CIFAR-10, all splits and targets: {WITHIN[at.widths]}.",),
        )
        for at in SUBMODELS
    ),
]


def _degree(scale: Scale) -> Mapping[str, Experiment]:
    each = {at.widths: at.arms(scale, rivals()) for at in PUBLISHED_WIDTHS if at.split == HARD}
    return {f"{name}, {widths}": arm for widths, arms in each.items() for name, arm in arms.items()}


HARD = "non-iid-b"
DEGREE = Study(
    name="feddd/fig9/degree",
    shows="sub-models a beside b: FedDD's lead and the others' jitter, CIFAR-10, non-IID-b",
    arms=_degree,
    seeds=SEEDS,
    measures={
        "final accuracy": FINAL,
        "behind FedDD": replace(BEHIND, against=lambda arm: f"feddd, {arm[-1]}"),
        "jitter": JITTER,
    },
    panels=(bars("Final accuracy", FINAL.of, "Test accuracy"),),
    settings=Setting("cifar10", HARD, "b").settings,
    notes=(READING,),
)

TESTBED_TARGETS = {"iid": 0.71, "non-iid-a": 0.69, "non-iid-b": 0.60}  # section 6.3
TESTBED_SECONDS: dict[str, dict[str, float | str]] = {
    "iid": {"feddd": 2000, "fedavg": 3500, "oort": 3500},
    "non-iid-a": {"feddd": 3000, "fedavg": "over 3500", "fedcs": "over 3500", "oort": "over 3500"},
    "non-iid-b": {"feddd": 2300, "fedavg": "over 3500", "fedcs": "over 3500", "oort": "over 3500"},
}


def _fig8(split: str) -> Study:
    setting, target = Setting("cifar10", split, testbed=True), TESTBED_TARGETS[split]
    return Study(
        name=f"feddd/fig8/{split}",
        shows=f"accuracy over time, ten clients as on the testbed, simulated: {split}",
        arms=lambda scale: setting.arms(scale, rivals(refresh=1)),
        seeds=SEEDS,
        measures={"final accuracy": FINAL, **times_to((target,)), **COST},
        panels=(OVER_TIME,),
        settings=setting.settings,
        notes=(
            READING,
            f"The paper's seconds to {target:.0%}, about: "
            + ", ".join(f"{name} {seconds}" for name, seconds in TESTBED_SECONDS[split].items())
            + ". Its links are not published, so that only ratios of times can be compared.",
        ),
    )


# Accuracy of the rare classes, as far as the text says (section 6.7).
PUBLISHED_RARE: dict[str, dict[str, dict[str, float | str]]] = {
    "mnist": {
        "class 0": {"fedcs": 0.0},
        "class 1": {"fedcs": 0.0, "oort": 0.367},
        "class 2": {"fedcs": 0.0, "oort": 0.12},
        "worst class": {"feddd": 0.85},
        "best class": {"feddd": 0.962},
    },
    "fashion_mnist": {
        "class 0": {"feddd": 0.831, "oort": 0.018},
        "class 1": {"feddd": 0.949, "fedcs": 0.0, "oort": 0.278},
        "class 2": {"feddd": 0.593, "fedcs": 0.01},
    },
    "cifar10": {
        "rare classes": {"fedcs": "close to 0", "oort": "close to 0"},
        "worst rare class": {"feddd": 0.236},
        "best rare class": {"feddd": 0.572},
    },
}
RARE_READING = (
    "Means of the last 10 rounds. Rare classes have two fifths of the others' samples, here with {} (the paper can be "
    "read either way); owners heard is the share of their owners that answered after the first round."
)
READINGS: dict[Rare, str] = {"samples": "fewer samples", "owners": "fewer owners"}


def _fig21(data: str, rare: Rare) -> Study:
    setting = Setting(data, HARD, rare=rare, rounds=1.25)
    return Study(
        name=f"feddd/fig21/{data}/{rare}",
        shows=f"accuracy class by class at a budget of 20 %, three rare classes with {READINGS[rare]}: {data}",
        arms=lambda scale: setting.arms(scale, rivals(0.2)),
        seeds=SEEDS,
        measures={"final accuracy": FINAL, **CLASSES, "sent": COST["sent"]},
        panels=(accuracy_of_classes,),
        settings=setting.settings,
        published=PUBLISHED_RARE[data],
        notes=(RARE_READING.format(READINGS[rare]),),
    )


def _beyond(data: str) -> Study:
    setting = Setting(data, HARD)

    def arms(scale: Scale) -> Mapping[str, Experiment]:
        draws = ACS(SIZES[scale].clients)  # with replacement, so that it sends less than the budget
        on_acs: dict[str, Any] = {"aggregator": Anonymous(), "upload": dropout().upload, "name": "feddd_acs"}
        more = {"oort, exploring": Method(Oort(keep=0.6), name="oort"), "feddd_acs": Method(draws, **on_acs)}
        return setting.arms(scale, rivals() | more)

    return Study(
        name=f"feddd/beyond/{data}",
        shows=f"beyond the paper: Oort as its authors have it, and dropout on FedACS's cohort: {data}, non-iid-b",
        arms=arms,
        seeds=SEEDS,
        measures={"final accuracy": FINAL, **times_to(()), **COST},
        panels=(OVER_TIME,),
        settings=setting.settings,
        notes=(READING,),
    )


STUDIES: tuple[Study, ...] = (
    *HOMOGENEOUS,
    *HETEROGENEOUS,
    DEGREE,
    *(_fig8(split) for split in SPLITS),
    *(_fig21(data, rare) for data in MODELS for rare in READINGS),
    *VARIANTS,
    *SINGLE,
    *TESTBEDS,
    *(_beyond(data) for data in MODELS),
)
