"""Solvers of one's own: what they return is checked wherever they are called, by trainers and by other solvers."""

import numpy as np
import pytest
import torch

from fedweave.core.roles import Solver
from fedweave.core.settings import BadInput, settings
from fedweave.local.solvers import Dyn, Prox
from jobs import jobs_of
from local.plain_loop import trainer_of
from local.test_trainer import Own, logistic
from worlds import image_data

JOBS = jobs_of((0, 3, 5), (1, 4, 5))
WRONG = {
    "None": lambda d: None,
    "a text": lambda d: "x",
    "a number": lambda d: 3,
    "one value": lambda d: d[:1],
    "one value too many": lambda d: torch.cat([d, d[:1]]),
    "a row": lambda d: d[None],
    "NumPy": lambda d: d.numpy(),
    "whole numbers": lambda d: d.long(),
    "complex numbers": lambda d: d + 0j,
}


@settings
class Odd(Solver):
    """Plain descent that a test spoils."""

    verb: str = ""
    wrong: str = "None"

    def _spoiled(self, verb, right):
        return WRONG[self.wrong](right) if verb == self.verb else right

    def begin(self, y):
        return self._spoiled("begin", (0 * y,))

    def direction(self, state, g, y, x, lr, t):
        return self._spoiled("pair", (self._spoiled("direction", g), self._spoiled("state", state)))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("around", [None, Prox, Dyn])
@pytest.mark.parametrize("model", [logistic, Own])
def test_a_wrong_direction_is_named_in_one_sentence(model, around, wrong):
    own = Odd("direction", wrong)
    trainer, x = trainer_of(model, image_data(), around(inner=own) if around else own)
    with pytest.raises(BadInput, match=r"^Odd\.direction must return .*\d+.*\. It returned \S+.*\.$"):
        trainer.train(x, JOBS)


@pytest.mark.parametrize(("verb", "wrong"), [(v, w) for v in ("begin", "pair", "state") for w in list(WRONG)[:3]])
@pytest.mark.parametrize("model", [logistic, Own])
def test_a_wrong_state_is_named_in_one_sentence(model, verb, wrong):
    trainer, x = trainer_of(model, image_data(), Odd(verb, wrong))
    with pytest.raises(
        BadInput, match=rf"^Odd\.{verb if verb == 'begin' else 'direction'} must return .* It returned "
    ):
        trainer.train(x, JOBS)


@pytest.mark.parametrize("model", [logistic, Own])
def test_a_solver_may_compute_in_double(model):
    @settings
    class Double(Odd):
        def direction(self, state, g, y, x, lr, t):
            return g.double(), state

    updates = []
    for solver in (Odd(), Double()):
        trainer, x = trainer_of(model, image_data(), solver)
        updates.append(trainer.train(x, JOBS).updates)
    assert np.allclose(*updates, atol=1e-6)


@pytest.mark.parametrize("wrong", ["None", "a text", "a number"])
def test_effort_of_a_wrong_solver_is_named_too(wrong):
    with pytest.raises(BadInput, match=r"^Odd\.direction must return"):
        Odd("direction", wrong).effort(np.array([1, 3]), 0.1)
