"""docs/choosing.md, from recorded outcomes alone: ``python -m fedweave.papers.common.choosing_page FILE``.

What is asked is declared here; every number, and whether a method is called better, comes from the files of results/.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedweave import papers
from fedweave.papers.common.choosing import Answer, Direction, Question, answer_all
from fedweave.papers.common.judge import shown_fidelity
from fedweave.papers.common.recorded import Recorded, all_recorded
from fedweave.papers.common.results_page import table

HEAD = """# Which method when

This page is made by `make results` from the files in [results/](../results) and says only what was measured there.
Methods are compared with plain FedAvg seed by seed. A method is called better or worse where its difference is real at
5 % after Benjamini and Hochberg's correction over all {count} comparisons of this page; else no difference is shown,
and *detectable* is what the seeds would have found before correction. Intervals are 95 % intervals, each for itself.
Ratios are a method's value divided by FedAvg's. A run that never reaches the target counts as later than all that do.
Names with a number are variants that an item compares: `fedbuff, 40` has 40 clients under way at any time, and
`synchronous, 5` is FedAvg with five clients a round instead of ten.
These are small networks and simulated clients: look for the case that is most like your fleet, then
[compare on your own data](tutorials/first-comparison.md).
"""
WORDS: Mapping[Direction, str] = {
    "better": "**better**",
    "worse": "worse",
    "same": "the same in every run",
    "open": "no difference shown",
}
FEDAVG = {"beyond/async": "synchronous", "latency": "uniform"}  # what an item calls plain FedAvg, if not fedavg
HIGHER = ("accuracy", "worst")  # words of measures of which more is better
PARENTS = {
    "feddd_acs": ("fedacs", "feddd"),
    "latency_dropout": ("latency_optimal", "feddd"),
    "fedaware_acs": ("fedaware", "fedacs"),
    "fedbuff_topk": ("fedbuff", "fedavg_topk"),
}
WORLDS = ("lossy", "latency", "wireless")
PRINTED = (
    "data",
    "training images",
    "clients",
    "client sizes",
    "labels",
    "participation",
    "network",
    "tuning",
    "target",
)
LABELS = {
    "MB": "MB in the same time",
    "T2A, 88 %": "time to 88 %",
    **{
        f"settles, {world}": f"distance from the optimum, {world} clients"
        for world in ("even", "static", "dynamic", "absent")
    },
}
TO_TARGET = ("seconds to the target", "MB to the target")
COMBINED = ("final accuracy", *TO_TARGET)
ALL = ("final accuracy", "worst tenth of clients", *TO_TARGET, "device seconds to the target")


# What is uneven, and the items and measures that say something about it.
CASES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "Lossy links: answers are lost and work differs, and the data go with it": {
        "beyond/methods/lossy": ALL,
        "beyond/demo": ("final accuracy", "worst tenth of clients", "seconds to the target", "MB"),
    },
    "Latency: some clients take much longer": {
        "beyond/methods/latency": ALL,
        "beyond/async/lognormal": (*TO_TARGET, "final accuracy"),
        "latency/table1/fashion_mnist/dir": ("seconds to the target",),
    },
    "Links are slow: sending takes longer than computing": {
        "beyond/methods/wireless": ALL,
        "beyond/async/wireless": (*TO_TARGET, "final accuracy"),
        "feddd/fig7/mnist/iid": ("T2A, 88 %", "final accuracy"),
    },
    "Participation: some clients answer more often or do more work, and the optimum must be exact": {
        "beyond/participation": ("settles, static", "settles, dynamic", "settles, absent"),
        "beyond/async/dynamic": (*TO_TARGET, "final accuracy"),
    },
    "Data alone: labels differ, clients are equally fast": {
        "beyond/async/even": (*TO_TARGET, "final accuracy"),
        "beyond/participation": ("settles, even",),
    },
    "Nothing: shuffled data, equal clients": {
        "beyond/demo-plain": ("final accuracy", "worst tenth of clients", "seconds to the target", "MB")
    },
}


def question(item: str, measure: str, reference: str = "", arms: tuple[str, ...] = ()) -> Question:
    """Return a question, by default about all methods beside plain FedAvg."""
    plain = next((name for start, name in FEDAVG.items() if item.startswith(start)), "fedavg")
    return Question(item, measure, reference or plain, arms, any(word in measure for word in HIGHER))


def combinations() -> list[Question]:
    """Return the combined methods beside the methods that they are made of."""
    return [
        question(f"beyond/methods/{world}", measure, parent, (arm,))
        for world in WORLDS
        for arm, parents in PARENTS.items()
        for measure in COMBINED
        for parent in parents
    ]


def markdown(folder: Path = papers.RECORDED) -> str:
    """Return the page."""
    records = {record.item: record for record in all_recorded(folder) if record.fidelity != "toy"}
    asked = {case: [question(i, m) for i, ms in items.items() for m in ms] for case, items in CASES.items()}
    questions = [q for qs in asked.values() for q in qs]
    found = answer_all([*questions, *combinations()], records)
    parts = [
        HEAD.format(count=sum(map(len, found.values()))),
        "## At a glance\n",
        _glance(asked, found),
        "## Where no method was shown to be better than plain FedAvg\n",
        _plain_best(questions, found),
        "## Do combinations pay?\n",
        _combined(found),
    ]
    parts += [_case(case, found, records) for case in CASES]
    return "\n".join(parts)


Found = Mapping[Question, Sequence[Answer]]


def _of(answers: Sequence[Answer], direction: Direction) -> list[Answer]:
    return [answer for answer in answers if answer.direction == direction]


def _glance(asked: Mapping[str, Sequence[Question]], found: Found) -> str:
    rows = [
        [f"{case.split(':')[0]} (`{q.item}`)", LABELS.get(q.measure, q.measure), *_best(q, found)]
        for case, questions in asked.items()
        for q in questions
    ]
    head = ["what is uneven", "measured by", "best", "beside plain FedAvg", "methods"]
    return table(head, rows)


def _best(q: Question, found: Found) -> tuple[str, str, str]:
    """Return the best method that is shown to be better, by how much, and how many are better or worse."""
    if q not in found:
        return "not run", "—", "—"
    better, worse = _of(found[q], "better"), _of(found[q], "worse")
    counts = f"{len(better)} better, {len(worse)} worse, {len(found[q]) - len(better) - len(worse)} not shown"
    if better:
        return f"`{better[0].arm}`", better[0].size, counts
    if len(worse) == len(found[q]):
        return "**plain FedAvg**", "every other method is worse", counts
    return "none shown", "no difference could be shown in favour of another method", counts


def _plain_best(questions: Sequence[Question], found: Found) -> str:
    """Return where nothing was shown to be better: who is worse, and what the seeds could not have found."""
    lines = []
    for q in questions:
        if q not in found or _of(found[q], "better"):
            continue
        worse = ", ".join(f"`{a.arm}` {a.size}" for a in _of(found[q], "worse")) or "none"
        rest = [a for a in found[q] if a.direction == "open"]
        least = max(rest, key=lambda a: a.difference.detectable).detectable if rest else ""
        more = (
            f" Not shown: {len(rest)}, with differences of up to {least} that might have been missed." if rest else ""
        )
        lines.append(f"- `{q.item}`, {LABELS.get(q.measure, q.measure)}. Worse: {worse}.{more}")
    return "\n".join(lines or ["- Nowhere: in every row above some method was shown to be better."]) + "\n"


def _combined(found: Found) -> str:
    rows = dict[tuple[str, str, str], list[str]]()
    for q in combinations():
        for a in found.get(q, ()):
            rows.setdefault((f"`{a.arm}`", f"`{q.reference}`", q.item.split("/")[-1]), []).append(_cell(a))
    head = ["combined", "beside", "world", *COMBINED]
    found_rows = [[*names, *cells] for names, cells in rows.items()]
    return table(head, found_rows) if rows else "Not run yet: `fedweave reproduce beyond/methods --scale laptop`.\n"


def _case(case: str, found: Found, records: Mapping[str, Recorded]) -> str:
    parts = [f"## {case}\n"]
    for item, measures in CASES[case].items():
        parts.append(f"### `{item}`\n")
        if item not in records:
            parts.append(f"Not run yet: `fedweave reproduce {item} --scale laptop --record results`.\n")
            continue
        parts.append(_setting(records[item]))
        parts.append(_methods(item, measures, found))
    return "\n".join(parts)


def _setting(record: Recorded) -> str:
    """Return what was run, in a few lines, and where more about it is."""
    paper = record.item.split("/")[0]
    words = [f"{name}: {used['used']}" for name, used in record.settings.items() if name in PRINTED]
    arms = [note for note in record.notes if note.startswith("Arms: ")]
    facts = (
        f"{record.seeds} seeds, fidelity {shown_fidelity(record.item, record.fidelity)}, [atlas](atlas/{paper}.html)"
    )
    return "\n".join([f"{record.shows[:1].upper()}{record.shows[1:]}. {'; '.join([*words, facts])}.", *arms, ""])


def _methods(item: str, measures: Sequence[str], found: Found) -> str:
    """Return the table of an item: the reference's values, and every method beside it."""
    questions = [question(item, measure) for measure in measures]
    reference = [f"{found[q][0].reference} {q.facts[0]}".strip() for q in questions]
    rows = [[f"`{questions[0].reference}`", *reference]]
    by_arm = [{answer.arm: answer for answer in found[q]} for q in questions]
    rows += [[f"`{arm}`", *(_cell(answers[arm]) for answers in by_arm)] for arm in by_arm[0]]
    return table(["method", *(LABELS.get(measure, measure) for measure in measures)], rows)


def _cell(answer: Answer) -> str:
    direction, size = answer.direction, answer.size
    if direction == "same":
        return WORDS[direction]
    more = f"; detectable {answer.detectable}" if direction == "open" and "(" in size else ""
    return f"{WORDS[direction]}: {size}{more}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(markdown(), encoding="utf-8")
