"""What is decided before a process group is there."""

from __future__ import annotations

import os
import time

import pytest

from hftune.distributed import launch


def test_who_waits_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "123"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "_PATIENCE", 0.05)
    said: list[str] = []
    monkeypatch.setattr(launch.get_logger(), "warning", said.append)
    with launch.report_waiting():
        time.sleep(0.4)
    assert said == ["rank 0 waits for the other 3 process(es) at node1:123"]
    with launch.report_waiting():
        pass
    time.sleep(0.2)
    assert len(said) == 1


@pytest.mark.parametrize(("given", "then"), [(None, "true"), ("false", "false")])
def test_no_figures_for_the_makers_of_mlflow(given: str | None, then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", given or "")
    if given is None:
        monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")
    launch.prepare_environment()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == then
