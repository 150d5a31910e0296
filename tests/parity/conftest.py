"""What tests of several modules here share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parity.shared_models import Runs


@pytest.fixture(scope="session")
def runs(run: Callable, workspace: Path, tiny_data: Path) -> Runs:
    """Runs whose model is shared, and those beside them, each made once a session."""
    return Runs(run, workspace / "shared", tiny_data)
