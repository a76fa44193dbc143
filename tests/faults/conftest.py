"""What the fault suite shares: one program to fork runs from, and the runs as they end undisturbed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fleet import CHOSEN, Zygote


@pytest.fixture(scope="session")
def zygote():
    program = Zygote()
    yield program
    program.close()


@pytest.fixture(scope="session")
def whole(zygote, tmp_path_factory):
    """The undisturbed runs, by name."""
    base = tmp_path_factory.mktemp("whole")
    for name in CHOSEN:
        assert zygote(name, base / name) == 0
    return {name: base / name for name in CHOSEN}
