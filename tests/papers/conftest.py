"""Papers' runs go one after another here: tests already fill the cores, and other processes take seconds to start."""

import pytest

from fedweave.papers import parallel


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    monkeypatch.setattr(parallel, "PROCESSES", 1)
