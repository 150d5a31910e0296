"""Every rule that a test here runs by `check_run` leaves arguments and facts as they were."""

from __future__ import annotations

import pytest

from hftune.preflight import check_run as module
from tests.unit.preflight.account import watched


@pytest.fixture(autouse=True)
def _rules_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rules_of = module.rules_of
    monkeypatch.setattr(module, "rules_of", lambda stage: watched(rules_of(stage)))
