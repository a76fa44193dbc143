"""What the tests of engines share."""

import pytest
import torch


@pytest.fixture
def threads():
    """Two threads for torch in this process, as users have them; a worker has one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
