"""Models that speak, made once for all tests of the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.speaking import speaking_models


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return speaking_models(tmp_path_factory.mktemp("speaking"))
