"""Papers' runs go one after another here: tests already fill the cores, and other processes take seconds to start."""

import os

import cloudpickle
import pytest

from fedweave.papers.common import parallel


@pytest.fixture(scope="session", autouse=True)
def kept_runs(tmp_path_factory):
    """Items share runs here as they do for a user, between the processes of a test run too, but none of an earlier."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDWEAVE_CACHE", str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kept"))
        yield


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
