"""Pages that several tests look at, each drawn once."""

import pytest

from fedweave import report
from report.fabricate import comparison


@pytest.fixture(scope="session")
def page() -> str:
    return report.page(comparison())
