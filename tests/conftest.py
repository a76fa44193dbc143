"""What several test files share: the digits, and an experiment so small that it takes a tenth of a second."""

import signal

import pytest

import fedweave as fw

# Whoever starts the tests in the background may have Ctrl-C ignored, and programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Begin with what takes longest, and mostly waits: so all processes of a test run end at about the same time."""
    items.sort(key=lambda item: "flower/test_processes.py" not in item.nodeid)


@pytest.fixture(scope="session")
def digits():
    return fw.data.load("digits")


@pytest.fixture
def tiny(digits):
    """Return a maker of small experiments on the digits: six uneven clients, half of them slow and lossy."""

    def make(method=None, **changes):
        settings = {
            "data": digits,
            "partition": fw.partition.Dirichlet(clients=6, alpha=0.5),
            "system": fw.system.Dynamic(slow_work=(1, 2), fast_work=(4, 6)),
            "rounds": 6,
            "workers": 1,
        }
        return fw.Experiment(method=method or fw.methods.fedavg(3), **(settings | changes))

    return make
