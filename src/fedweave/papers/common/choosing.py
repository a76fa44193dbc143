"""Which methods were better or worse than a reference, from recorded outcomes: paired by seed, corrected together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedweave import papers
from fedweave.core.settings import BadInput
from fedweave.papers.common.judge import show_number
from fedweave.papers.common.recorded import Recorded
from fedweave.statistics import LEVEL, Difference, benjamini_hochberg, paired_difference

ROUNDING = 1e-9  # a smaller ratio is that of a value to its rounding errors
Direction = Literal["better", "worse", "open", "same"]


@dataclass(frozen=True)
class Question:
    """A measure of an item by which methods are compared with a reference: all of the item's, or some."""

    item: str
    measure: str
    reference: str
    arms: tuple[str, ...] = ()
    higher: bool = False  # whether more is better

    @property
    def facts(self) -> tuple[str, bool]:
        """The unit of the measure, and whether its ratios are compared."""
        measure = papers.studies()[self.item].measures[self.measure]
        return measure.unit, measure.ratio or measure.end is not None


@dataclass(frozen=True)
class Answer:
    """A method beside the reference of a question."""

    question: Question
    arm: str
    difference: Difference  # ours − the reference, as it is compared; positive is more
    shown: str  # the recorded cell of the method
    reference: str  # and that of the reference
    p: float = 1.0  # corrected

    @property
    def direction(self) -> Direction:
        """Better or worse where the corrected difference is real, the same where no run differs, else open."""
        if self.p > LEVEL:
            nothing = self.difference.mean == 0 == self.difference.deviation
            return "same" if nothing and _all_arrived(self.shown) else "open"
        return "better" if (self.difference.mean > 0) == self.question.higher else "worse"

    @property
    def size(self) -> str:
        """The difference, or the ratio, with its interval; and who arrived, where not all runs did."""
        arrived = f"{_arrivals(self.shown)} against {_arrivals(self.reference)}"
        if "never" in (self.shown, self.reference):  # a factor would be made of the runs' ends
            return arrived
        unit, ratio = self.question.facts
        numbers = [self.difference.mean, *self.difference.interval]
        if ratio and max(numbers) < np.log(ROUNDING):  # a method that settles at the optimum itself
            return f"below {ROUNDING:g} of {self.question.reference}'s value (rounding)"
        if ratio and min(numbers) > -np.log(ROUNDING):
            return f"{self.question.reference}'s value is below {ROUNDING:g} of it (rounding)"
        mean, low, high = (show_number(float(np.exp(n)) if ratio else n, unit, ratio) for n in numbers)
        sign = "+" if not ratio and numbers[0] > 0 else ""
        text = f"{sign}{mean} ({low.split()[0]} to {high.split()[0]})"
        return text if _all_arrived(self.shown) and _all_arrived(self.reference) else f"{text}, {arrived}"

    @property
    def detectable(self) -> str:
        """What these seeds would have shown, before correction."""
        unit, ratio = self.question.facts
        found = self.difference.detectable
        return show_number(float(np.exp(found)) if ratio else found, unit, ratio)


def _all_arrived(cell: str) -> bool:
    return cell != "never" and " of " not in cell


def _arrivals(cell: str) -> str:
    if cell == "never":
        return "never arrives"
    return f"arrives in {cell.split(' seeds')[0]} runs" if " of " in cell else "always arrives"


def answer_all(questions: Iterable[Question], records: Mapping[str, Recorded]) -> dict[Question, list[Answer]]:
    """Return the answers of every question that was run, best first, corrected over all of them together."""
    found = {q: _answers(q, records[q.item]) for q in questions if q.item in records}
    flat = [answer for answers in found.values() for answer in answers]
    corrected = benjamini_hochberg([_p_value(answer.difference) for answer in flat])
    p = {id(answer): q for answer, q in zip(flat, corrected, strict=True)}
    return {q: _in_order(q, [replace(a, p=p[id(a)]) for a in answers]) for q, answers in found.items()}


def _p_value(difference: Difference) -> float:
    """Return the two-sided p value of a difference from zero."""
    return min(1.0, 2 * min(difference.p_above(), difference.p_below()))


def _in_order(question: Question, answers: Sequence[Answer]) -> list[Answer]:
    return sorted(answers, key=lambda a: -a.difference.mean if question.higher else a.difference.mean)


def _answers(question: Question, record: Recorded) -> list[Answer]:
    values = record.measures["paper"][question.measure]
    cells = {row["method"]: row[question.measure] for row in record.rows[: len(values)]}
    ratio, name = question.facts[1], question.reference
    arms = question.arms or tuple(arm for arm in values if arm != name)

    def compared(arm: str) -> list[float]:
        return [float(np.log(v)) if ratio else v for v in values[arm] if v is not None]

    if missing := [arm for arm in (name, *arms) if None in values[arm]]:  # leaving runs out would favour who fails
        raise BadInput(f"{question.item}: some runs of {', '.join(missing)} have no {question.measure!r}.")
    theirs = compared(name)
    return [Answer(question, arm, paired_difference(compared(arm), theirs), cells[arm], cells[name]) for arm in arms]
