"""A fault at every change of the disk that a command makes: afterwards there is the old result or the new one, whole.

`tests/faults/injection/fail_at.c` counts calls (write, fsync, rename, mkdir, new files, and for kills also removals) on
files below a folder, and fails or kills at the N-th. After each fault: the target is as it was, or is the new result to
the byte, or, where a stage writes, the same command goes on from it; files of other people are untouched; what was said
is one message without a traceback; and the same command started again succeeds and leaves nothing else.

`FAULTS_SHARE=2/5` tries every fifth of a command's calls, beginning with the second: minutes of what takes an hour.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, without_launcher
from tests.faults.injection.bench import Bench, Command
from tests.faults.injection.commands import RESULTS, STARTS, table
from tests.faults.injection.server import KILL, Injector

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="builds a library that is preloaded"),
    pytest.mark.timeout(3000),
]

FAULTS = {
    "killed": (KILL, False),
    "full disk": (errno.ENOSPC, True),
    "one write without room": (errno.ENOSPC, False),
    "faulty disk": (errno.EIO, False),
    "read-only from here on": (errno.EROFS, True),
    "over quota": (errno.EDQUOT, True),
}


@pytest.fixture(scope="session")
def injector(workspace: Path) -> Iterator[Injector]:
    folder = workspace / "injector"
    folder.mkdir()
    environment = without_launcher(dict(os.environ)) | {
        "HFTUNE_CACHE": str(workspace / "cache"),
        "HF_HOME": str(workspace / "hf"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "CUDA_VISIBLE_DEVICES": "",
    }
    found = Injector(folder, environment)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def commands(tiny_model: Path, tiny_data: Path, workspace: Path) -> dict[str, Command]:
    (workspace / "read").mkdir()
    return table(tiny_model, tiny_data, workspace / "read")


@pytest.fixture
def bench(injector: Injector, commands: dict[str, Command], tmp_path: Path) -> Callable[[str], Bench]:
    return lambda name: (commands[name].kind or Bench)(injector, commands[name], tmp_path)


# All that publish go one way (`hftune/publishing`): one command each that makes a folder, a file or a run. Each meets
# every fault in the slow test.
SOME = {
    "consolidate": ("full disk",),
    "score": ("killed",),
    "sft": ("killed",),  # a stage takes seconds to start again; see also test_kills.py
}


@pytest.mark.parametrize("name", SOME)
def test_some_faults(bench: Callable[[str], Bench], name: str) -> None:
    """A few of each kind: one anywhere, and one near the end, where results are exchanged; in seconds."""
    bench, starts = bench(name), STARTS[name]
    points = random.Random(name)
    for fault in SOME[name]:
        how, lasting = FAULTS[fault]
        start = starts[-1] if fault in ("killed", "full disk") else starts[0]
        calls = len(bench.calls(how, start))
        for number in {points.randint(1, calls), calls - points.randint(0, min(8, calls - 1))}:
            bench.attempt(number, how, lasting, start)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, fault, start", [(name, f, start) for name in STARTS for f in FAULTS for start in STARTS[name]]
)
def test_a_fault_at_every_change_of_the_disk(bench: Callable[[str], Bench], name: str, fault: str, start: str) -> None:
    bench = bench(name)
    calls = bench.calls(FAULTS[fault][0], start)
    share, of = map(int, os.environ.get("FAULTS_SHARE", "1/1").split("/"))
    points = bench.points(calls)[share - 1 :: of]
    seen = {bench.attempt(number, *FAULTS[fault], start) for number in points}
    assert "new" in seen or fault != "killed" or name not in RESULTS or of > 1
    print(f"FAULTS {name} | {fault} | {start} | {len(calls)} | {len(points)} | {sorted(seen)} | {share}/{of}")
