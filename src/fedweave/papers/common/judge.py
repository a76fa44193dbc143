"""How a claim is judged: an outcome with its statistics, and how faithful the setting was."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.ledger import BEYOND, PAPERS, SECTIONS, Claim
from fedweave.statistics import LEVEL, Difference, benjamini_hochberg, holm, paired_difference

Verdict = Literal["confirmed", "contradicted", "undecided", "not run"]
Fidelity = Literal["published", "faithful", "toy", "exact"]


@dataclass(frozen=True)
class Values:
    """A measure of every arm: one number per seed, and whether differences or ratios of it are compared."""

    by_arm: Mapping[str, Array]
    ratio: bool = False  # times and other positive quantities are compared by their logarithms
    censored: Collection[str] = ()  # arms of which some run never arrived: it counts as later than those that did
    bounds: Mapping[str, Array] = field(
        default_factory=dict
    )  # of such arms, where such a run counts as soon as it ended

    def compared(self, arm: str, bound: bool = False) -> Array:
        """Return the values of an arm as they are compared; or as lower ``bound``, which a factor has to exceed."""
        values = self.bounds.get(arm, self.by_arm[arm]) if bound else self.by_arm[arm]
        return np.log(values) if self.ratio else values


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict. Two-sided p values: of the claim being right, and of it being wrong."""

    claim: Claim
    fidelity: Fidelity
    verdict: Verdict = "not run"
    evidence: str = ""
    p_right: float = 1.0
    p_wrong: float = 1.0
    difference: float | None = None  # ours − the closest other; where times are compared, the ratio
    interval: tuple[float, float] | None = None
    seeds: int = 0
    detectable: float | None = None  # the smallest difference (ratio) that these seeds would have shown

    @property
    def shown_fidelity(self) -> str:
        """The fidelity in words."""
        return shown_fidelity(self.claim.item, self.fidelity)

    @property
    def family(self) -> str:
        """Which correction the claim is under: a paper's one primary claim, its others, or ours beyond the paper."""
        return "primary" if self.claim.primary else "beyond the paper" if self.claim.beyond else "exploratory"

    def plain(self) -> dict[str, Any]:
        """Return JSON-able data, as ``fedweave list claims --json`` prints it."""
        c = self.claim
        named = {"id": c.id, "paper": c.paper, "item": c.item, "where": c.where, "claim": c.claim}
        facts = {"published": c.published, "primary": c.primary, "column": c.column, "beyond": c.beyond}
        numbers = {n: getattr(self, n) for n in ("evidence", "p_right", "p_wrong", "difference", "seeds", "detectable")}
        interval = list(self.interval) if self.interval else None
        return {
            **named,
            **facts,
            "verdict": self.verdict,
            "fidelity": self.fidelity,
            **numbers,
            "interval": interval,
            "digest": c.digest,
        }


def shown_fidelity(item: str, fidelity: str) -> str:
    """Return a fidelity in words: what no single paper asks has no published setting, only a full size."""
    return "full size" if fidelity == "published" and item.startswith(f"{BEYOND}/") else fidelity


def read_judged(claim: Claim, entry: Mapping[str, Any]) -> Judged:
    """Return what ``Judged.plain`` wrote, before correction."""
    names = ("fidelity", "verdict", "evidence", "p_right", "p_wrong", "difference", "seeds", "detectable")
    interval = tuple(entry["interval"]) if entry["interval"] else None
    return Judged(claim, interval=interval, **{name: entry[name] for name in names})


def judge(claim: Claim, values: Values | None, fidelity: Fidelity, unit: str = "") -> Judged:
    """Judge one claim, before the correction for many claims (``settle``)."""
    plain = Judged(claim, fidelity)
    needed = [claim.ours, *claim.others] if claim.kind not in ("rising", "falling") else list(claim.others)
    if values is None:
        return replace(plain, evidence=f"the measure {claim.measure!r}, {claim.column}, was not part of this run")
    if missing := [arm for arm in needed if arm not in values.by_arm]:
        return replace(plain, evidence=f"{', '.join(missing)} was not part of this run")
    if lost := sum(int((~np.isfinite(values.by_arm[arm])).sum()) for arm in needed):
        seeds = values.by_arm[needed[0]].size  # leaving runs out would favour whoever fails
        return replace(plain, verdict="undecided", evidence=f"{lost} of the runs gave no number", seeds=seeds)
    if fidelity == "exact":
        return _exact(plain, values, unit)
    found = [paired_difference(a, b) for a, b in _pairs(claim, values)]
    never = not set(values.censored).isdisjoint(needed)
    right, wrong = _p_values(claim, found, never)
    closest = found[int(np.argmax([d.p_above() if claim.kind != "equal" else d.p_equal(claim.margin) for d in found]))]
    sign = -1 if claim.kind in ("less", "falling", "below") else 1
    if claim.kind in ("greater", "less", "equal"):  # show the difference itself, not what is left after the lead
        lead = np.log(claim.factor) if values.ratio else float(claim.value or 0.0)
        closest = replace(closest, mean=closest.mean + lead)
    judged = replace(plain, p_right=right, p_wrong=wrong, seeds=closest.seeds)
    return _with_difference(judged, closest, sign, values.ratio, never, unit)


def _pairs(claim: Claim, values: Values) -> list[tuple[Array, Array]]:
    """Return what is compared with what: a positive difference speaks for the claim."""
    if claim.kind in ("rising", "falling"):
        along = np.array([values.compared(arm) for arm in claim.others])
        rank = np.arange(len(along)) - (len(along) - 1) / 2
        slope = rank @ along / (rank @ rank)  # of each seed, by least squares over the order of the arms
        return [(slope if claim.kind == "rising" else -slope, 0 * slope)]
    ours = values.compared(claim.ours)
    if claim.kind in ("value", "above", "below", "holds"):
        target = 1.0 if claim.kind == "holds" else float(claim.value or 0.0)
        given = np.full(ours.shape, np.log(target) if values.ratio else target)
        return [(given, ours) if claim.kind == "below" else (ours, given)]
    step = np.log(claim.factor) if values.ratio else float(claim.value or 0.0)
    far = claim.factor > 1
    if claim.kind == "less":
        return [(values.compared(arm, far), ours + step) for arm in claim.others]
    ours = values.compared(claim.ours, far)
    return [(ours, values.compared(arm) + step) for arm in claim.others]


def _p_values(claim: Claim, found: Sequence[Difference], censored: bool) -> tuple[float, float]:
    """Return two-sided p values for and against. All comparisons must hold (an intersection–union test), one must fail.

    Of several others the claim must hold against each, so the largest p counts, without correction; that it fails
    against one is tested with Bonferroni's correction. Equality within the margin speaks against superiority only where
    superiority, however small, is not shown.
    """
    n, margin = len(found), claim.margin
    if claim.kind in ("equal", "value"):
        if censored:
            return 1.0, 1.0  # a lower bound says neither that a time is equal nor that it is not
        return max(d.p_equal(margin) for d in found), min(1.0, n * min(d.p_unequal(margin) for d in found))
    right = min(1.0, 2 * max(d.p_above() for d in found))
    wrong = min(1.0, 2 * n * min(d.p_below() for d in found))
    if margin and not censored:  # equality of times that nobody reached shows nothing
        wrong = min([wrong, *(n * d.p_equal(margin) for d in found if 2 * d.p_above() > LEVEL)])
    if censored and (claim.factor > 1 or claim.kind == "above"):  # it may be any multiple of the time that was observed
        wrong = 1.0
    if censored and (claim.factor < 1 or claim.kind == "below"):
        right = 1.0
    return right, wrong


def _exact(plain: Judged, values: Values, unit: str) -> Judged:
    """Judge what arithmetic decides: every value is the same for every seed, or holds for every instance."""
    claim, gaps = plain.claim, np.array([a - b for a, b in _pairs(plain.claim, values)])
    if claim.kind in ("equal", "value", "holds"):
        held = np.abs(gaps) <= claim.margin
    elif claim.kind in ("rising", "falling"):  # at every step, not only on the whole
        steps = np.diff([values.compared(arm) for arm in claim.others], axis=0)
        held = steps > 0 if claim.kind == "rising" else steps < 0
    else:
        held = gaps > 0
    instances = held.all(0)
    holds = bool(instances.all())
    arms = [arm for arm in (claim.ours, *claim.others) if arm]
    text = ", ".join(f"{arm} {_range(values.by_arm[arm], unit)}" for arm in arms)
    if not holds and len({v.tobytes() for v in np.column_stack([values.by_arm[arm] for arm in arms])}) > 1:
        text += f"; holds in {instances.sum() or 'none'} of {instances.size} instances"
    p = (0.0, 1.0) if holds else (1.0, 0.0)
    verdict: Verdict = "confirmed" if holds else "contradicted"
    return replace(plain, verdict=verdict, evidence=text, p_right=p[0], p_wrong=p[1], seeds=instances.size)


def _range(values: Array, unit: str) -> str:
    low, high = (show_number(float(value), unit) for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def _with_difference(judged: Judged, d: Difference, sign: int, ratio: bool, never: bool, unit: str) -> Judged:
    """Add the difference to the closest other with its interval, in the measure's own direction and unit."""
    low, high = sorted(sign * end for end in d.interval)
    numbers = sign * d.mean, low, high, d.detectable
    if ratio:
        with np.errstate(over="ignore"):
            numbers = tuple(np.exp(np.array(numbers)).tolist())
    mean, low, high, detectable = numbers
    what = "ratio" if ratio else "difference"
    shown = [show_number(number, unit, ratio) for number in numbers]
    known = np.isfinite(numbers)  # with one or two seeds an interval may be infinite
    around = f" ({shown[1]} to {shown[2]})" if known[:3].all() else ""
    text = f"{what} {shown[0]}{around}, {d.seeds} seed{'s' * (d.seeds != 1)}"
    text += f"; detectable before correction {shown[3]}" if known[3] else ""
    text += "; some never arrived" if never else ""
    interval = (low, high) if known.all() else None
    return replace(
        judged,
        evidence=text,
        difference=mean if np.isfinite(mean) else None,
        interval=interval,
        detectable=detectable if np.isfinite(detectable) else None,
    )


def show_number(value: float, unit: str, ratio: bool = False) -> str:
    """Return a difference, or a ratio, in the unit of its measure."""
    if ratio:
        return f"{value:.3g}×"
    return f"{100 * value:.2f} points" if unit == "%" else f"{value:.4g}{' ' + unit if unit else ''}"


def settle(judged: Sequence[Judged]) -> list[Judged]:
    """Return the verdicts after correction: Holm over primary claims, Benjamini–Hochberg over a paper's other claims.

    A primary claim that was not run counts as one with p = 1, so that verdicts do not depend on what was run. Claims of
    ours are a family of their own, and claims without their seeds are in none: neither may ease a paper's own claims.
    """
    open_ = [j for j in judged if j.fidelity != "exact" and j.seeds]
    short = {id(j): _decide(j, 1.0) for j in open_ if j.seeds < j.claim.seeds}
    tested = [j for j in open_ if id(j) not in short]
    primary = [j for j in tested if j.claim.primary]
    p = [min(j.p_right, j.p_wrong) for j in primary]
    padded = holm(p + [1.0] * (len(PAPERS) - len(p)))
    settled = short | {id(j): _decide(j, q) for j, q in zip(primary, padded, strict=False)}
    for paper, beyond in product(SECTIONS, (False, True)):
        others = [j for j in tested if not j.claim.primary and (j.claim.paper, j.claim.beyond) == (paper, beyond)]
        adjusted = benjamini_hochberg([min(j.p_right, j.p_wrong) for j in others])
        settled |= {id(j): _decide(j, q) for j, q in zip(others, adjusted, strict=True)}
    return [settled.get(id(j), j) for j in judged]


def _decide(judged: Judged, p: float) -> Judged:
    """Return the claim with the verdict of its corrected p value, or why there is none."""
    claim, evidence = judged.claim, judged.evidence
    if judged.seeds < claim.seeds:
        why = f"{judged.seeds} of the {claim.seeds} seeds that were fixed beforehand; {evidence}"
        return replace(judged, verdict="undecided", evidence=why)
    tested = f"{evidence}; corrected p = {p:.2g}" if p else f"{evidence}; the same in every run"
    if p > LEVEL:
        return replace(judged, verdict="undecided", evidence=tested)
    if judged.p_right <= judged.p_wrong:
        return replace(judged, verdict="confirmed", evidence=tested)
    if judged.fidelity == "toy":
        return replace(judged, verdict="undecided", evidence=f"does not hold at toy scale; {evidence}")
    return replace(judged, verdict="contradicted", evidence=tested)
