"""Forked worlds: the exit code is that of their own processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.forks import fork, fork_and_wait


@pytest.mark.parametrize("code", [0, 3])
def test_another_child_that_is_killed_meanwhile_is_none_of_the_world(tmp_path: Path, code: int) -> None:
    other = fork(signal.pause, tmp_path / "other", 0, 1, 0)

    def work() -> None:
        if os.environ["RANK"] == "0":  # for the other it may be gone, and its number another's
            os.kill(other, signal.SIGKILL)
        sys.exit(code)

    assert fork_and_wait(work, tmp_path / "log", 2) == code
