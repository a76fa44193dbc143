"""Papers' runs go one after another here: tests already fill the cores, and other processes take seconds to start."""

import cloudpickle
import pytest

from fedweave.papers import earlier
from fedweave.papers.common import parallel


@pytest.fixture(autouse=True)
def told_beforehand(monkeypatch):
    """Check of every item that is reproduced here that it has runs to draw where it was said to have some."""
    real = earlier.reproduce

    def reproduce(item, *arguments):
        outcome = real(item, *arguments)
        ran = any(claim.verdict != "not run at this scale" for claim in outcome.claims) or outcome.notes
        assert bool(outcome.runs) == earlier.has_runs(item) or not ran
        return outcome

    monkeypatch.setattr(earlier, "reproduce", reproduce)


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Run in this process, but only what could be sent to another."""
    real = parallel._keyed

    def as_sent(work, *rest):
        if hasattr(work, "shared"):  # what a test keeps for others stays here
            return real(work, *rest)
        return real(*cloudpickle.loads(cloudpickle.dumps((work, *rest))))

    monkeypatch.setattr(parallel, "PROCESSES", 1)
    monkeypatch.setattr(parallel, "_keyed", as_sent)
