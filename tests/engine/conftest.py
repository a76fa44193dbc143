"""What the tests of engines share."""

import pytest
import torch

from fedweave.engine.pool import ray


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Wait for Ray's actors as long as it takes: they start slowly, and the machine may be busy."""
    monkeypatch.setattr(ray, "START_SECONDS", 600.0)


@pytest.fixture
def threads():
    """Two threads for torch in this process, as users have them; a worker has one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
