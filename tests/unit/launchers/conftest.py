"""What several tests of the launchers need."""

from __future__ import annotations

import pytest
from support.command_line import free_port


@pytest.fixture
def port() -> int:
    """Return a port that nothing listens at."""
    return free_port()
