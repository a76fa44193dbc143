"""A method is a composition: one part for each stage of a round. A paper is one expression of parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from pydantic import Field

from fedweave.aggregate.linear import Mean
from fedweave.core.html import html_table
from fedweave.core.roles import Aggregator, Pacing, Sampler, ServerOptimizer, Solver, Upload
from fedweave.core.settings import BadInput, FileName, brief, is_foreign, settings, shown, undeclared
from fedweave.core.spec import kinds
from fedweave.local.solvers import SGD
from fedweave.pacing import Synchronous, with_draws
from fedweave.schedule import Rate
from fedweave.server import Descent
from fedweave.upload.everything import Everything

ROLES = ("sampler", "solver", "aggregator", "server", "upload", "pacing")


@settings
class Method:
    """Who takes part, how they train and what they send, how the server combines it and steps, and when rounds end."""

    sampler: Sampler
    solver: Solver = Field(default_factory=SGD)
    aggregator: Aggregator = Field(default_factory=Mean)
    server: ServerOptimizer = Field(default_factory=Descent)
    upload: Upload = Field(default_factory=Everything)
    pacing: Pacing = Field(default_factory=Synchronous)
    name: FileName = "custom"  # also of its folder in a comparison
    lr: Rate | None = None  # of its clients, in place of the experiment's

    @property
    def parts(self) -> tuple[Sampler, Solver, Aggregator, ServerOptimizer, Upload, Pacing]:
        """All parts, in the order of a round."""
        return self.sampler, self.solver, self.aggregator, self.server, self.upload, self.pacing

    def __repr__(self) -> str:
        return f"Method({self.name}: {', '.join(shown(part, 200) for part in self.parts)})"

    def _repr_html_(self) -> str:
        rows = list[tuple[str, str, str]]()
        for role in ROLES:
            part: Any = getattr(self, role)
            inner = (f"{field.name} = {shown(getattr(part, field.name), 200)}" for field in fields(part))
            rows.append((role, type(part).__name__, ", ".join(inner)))
        return html_table(rows, title=self.name, head=("part", "class", "settings"))

    @property
    def stateful(self) -> tuple[Sampler, Aggregator, ServerOptimizer, Upload]:
        """The parts that keep a state at the server, in the order in which they are saved."""
        return self.sampler, self.aggregator, self.server, self.upload

    @cached_property
    def foreign(self) -> bool:
        """Whether a part, or one that a part contains, is not the library's: rounds then guard what parts do."""
        return any(is_foreign(part) for part in self.parts)

    @property
    def widened(self) -> Method:
        """This method with a sampler that asks as many clients as the pacing needs."""
        sampler = self.pacing.widen(self.sampler)
        if not isinstance(sampler, Sampler):
            raise BadInput(f"{type(self.pacing).__name__}.widen must return a Sampler. It returned {brief(sampler)}.")
        return self if sampler is self.sampler else replace(self, sampler=sampler)

    def asking(self, draws: int) -> Method:
        """Return this method with a sampler that draws so many times."""
        return replace(self, sampler=with_draws(self.sampler, draws))

    def __post_init__(self) -> None:
        """Refuse parts that do not fit, from the facts they declare."""
        for part in self.parts:
            if why := undeclared(part):
                raise ValueError(why)
        if self.solver.memory_kind != self.aggregator.memory_kind:
            raise ValueError(_misfit(self.solver, self.aggregator))
        if self.upload.masks and not self.aggregator.masks:
            raise ValueError(
                f"{type(self.upload).__name__} leaves parts out, which {type(self.aggregator).__name__} would "
                f"take for zeros. Use {mask_aware()} as aggregator."
            )
        if why := self.aggregator.misfit(self.upload):
            raise ValueError(why)
        if self.solver.sends_last_step and not self.upload.identity:
            raise ValueError(
                f"The clients of {type(self.solver).__name__} remember what they sent, and the server the sum of it: "
                f"they must send it whole, which {type(self.upload).__name__} does not. Give no other upload."
            )
        if self.aggregator.needs_law and not self.sampler.law_known:
            raise ValueError(
                f"{type(self.aggregator).__name__} needs a sampler with a known law, got {self.sampler}: it does not "
                "say how often it draws a client. Use Mean() as aggregator, or a sampler such as Uniform or Weighted."
            )
        if self.aggregator.sends_own_models and self.pacing.overlaps:
            raise ValueError(
                f"{type(self.aggregator).__name__} sends each client a model of its own, which is not kept for clients "
                "that answer in a later round. Use Synchronous() as pacing."
            )
        if why := self.pacing.misfit(self.sampler):
            raise ValueError(why)


def mask_aware() -> str:
    """Return the aggregators that go by what was sent, in words."""
    return " or ".join(f"{name}()" for name, cls in kinds(Aggregator).items() if cls.masks is True)


def _misfit(solver: Solver, aggregator: Aggregator) -> str:
    """Return why clients that remember one thing do not go with a server that expects another, and what would."""

    def names(parts: Mapping[str, type], fact: str, value: str) -> str:
        return " or ".join(f"{name}()" for name, cls in parts.items() if getattr(cls, fact) == value)

    ours, theirs = type(solver).__name__, type(aggregator).__name__
    if solver.memory_kind:
        way = names(kinds(Aggregator), "memory_kind", solver.memory_kind)
        return (
            f"{ours} keeps {solver.memory_kind} at the clients, which {theirs} does not expect. "
            f"Use {way} as aggregator."
        )
    way = names(kinds(Solver), "memory_kind", aggregator.memory_kind)
    return f"{theirs} needs clients that keep {aggregator.memory_kind}, which {ours} does not. Use {way} as solver."
