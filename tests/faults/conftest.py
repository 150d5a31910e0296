"""What tests of interrupted and damaged runs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.stages_at_terminal import Terminal
from tests.warm import WarmStarter


@pytest.fixture
def terminal(tiny_model: Path, tiny_data: Path, tmp_path: Path, workspace: Path, starter: WarmStarter) -> Terminal:
    """For one output folder."""
    return Terminal(tiny_model, tiny_data, tmp_path, starter)
