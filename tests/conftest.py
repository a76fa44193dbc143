"""What several test files share: the digits, and experiments on them."""

import gc
import signal
from functools import partial

import hypothesis
import pytest

import fedweave as fw
import worlds
from fedweave.local.torch import trainer

# Whoever starts the tests in the background may have Ctrl-C ignored, and programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The rounds of the tests are small; those that have workers are to use them.
trainer.WORTHWHILE = 2**10
# A busy machine or a rare draw must not fail a test: the same examples each time, however long one takes.
hypothesis.settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("steady")


def pytest_collection_modifyitems(items):
    """Begin with what takes longest, and mostly waits: so all processes of a test run end at about the same time."""
    items.sort(key=lambda item: "flower/test_processes.py" not in item.nodeid)


def pytest_collection_finish():
    """Keep what was imported out of garbage collection: searching it again and again takes a seventh of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def digits():
    return fw.data.load("digits")


@pytest.fixture
def tiny(digits):
    """Return a maker of small experiments, on digits that are read once."""
    return partial(worlds.experiment, data=digits)
