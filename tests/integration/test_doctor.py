"""`hftune doctor` as a user calls it: a process of each GPU, or two, started by DeepSpeed's launcher, meet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import without_launcher

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_meet(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from hftune.cli import main; main()", "doctor", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=without_launcher(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert " processes met by " in done.stdout and " GB/s" in done.stdout
    assert "these load: deepspeed, bitsandbytes" in done.stdout
    assert " private parts of libraries that hftune uses are as it expects" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("nothing is wrong")
    assert list(tmp_path.iterdir()) == []
