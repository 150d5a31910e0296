"""Last by name: what all scripts of this session tried to reach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def test_nothing_reached_for_the_network(stage_run: Callable, netguard_log: Path) -> None:
    stage_run("sft", "full", "zero2")
    attempts = netguard_log.read_text() if netguard_log.exists() else ""
    assert not attempts, attempts
