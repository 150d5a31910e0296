"""The benchmarks for GPUs, as far as a CPU shows: nothing finished is lost, and refusals that are expected come."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.distributed import launch, ranks
from hftune.errors import UserError
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def found_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def children() -> ModuleType:
    import children

    return children


@pytest.fixture
def gpu_runs() -> ModuleType:
    import gpu_runs

    return gpu_runs


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_process_is_stopped_with_all_below_it(children: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "extensions" / "op").mkdir(parents=True)
    (tmp_path / "extensions" / "op" / "lock").touch()
    code = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']);"
        "print(child.pid, flush=True); time.sleep(99)"
    )
    ended = children.Clock(9).run(python(code), children.environment(tmp_path), 2)
    assert ended.code is None and not ended.cut
    assert ended.failure["failed"].startswith("stopped after 2 s")
    assert is_gone(int(ended.out))
    assert not (tmp_path / "extensions" / "op" / "lock").exists(), "a later build would wait for it"


def is_gone(process: int) -> bool:
    """Within a moment: a killed process is there until it has been waited for."""
    for _ in range(100):
        try:
            os.kill(process, 0)
            if "\nState:\tZ" in Path(f"/proc/{process}/status").read_text():
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.long
@pytest.mark.parametrize(
    "has_files", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["async-files", "no-async-files"]
)
def test_what_must_be_refused_is_what_preflight_refuses(
    gpu_runs: ModuleType, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_files: bool
) -> None:
    """Planned runs (all of them in the slow test), their arguments parsed as for a GPU that has everything else."""
    monkeypatch.setattr(launch, "has_async_io", lambda: has_files)
    shorter = {"--max_length": "256", "--block_size": "256"}
    for run in gpu_runs.plan()[:: 5 if has_files else 1]:
        given = run.flags(tmp_path, str(tiny_model))
        flags = [shorter.get(before, flag) if flag == "1024" else flag for before, flag in pairs(given)]
        flags += ["--output_dir", str(tmp_path / "out"), "--max_steps", "2"]
        flags += ["--dummy_data", "8", "--per_device_train_batch_size", "16", "--report_to", "none"]
        expected = gpu_runs.refusal(run, gpu_runs.Machine(gpu=True, async_files=has_files))
        said = refusal_of(run.stage, [str(flag) for flag in flags])
        assert (expected is None) == (said is None), (run.name, said)
        assert expected is None or expected in said, (run.name, said)


def pairs(flags: list[str]) -> list[tuple[str, str]]:
    """Each with the one before it."""
    return list(zip(["", *flags], flags, strict=False))


def refusal_of(stage: str, flags: list[str]) -> str | None:
    """What hftune says of arguments before a model is loaded; None for nothing."""
    try:
        with ranks.planning_for(ranks.PlannedWorld(1, 1)):
            check_run(resolve(stage, parse_arguments(stage, flags)))
    except UserError as error:
        return str(error)
    return None


def test_what_a_machine_lacks(gpu_runs: ModuleType) -> None:
    run = gpu_runs.Run("sft", "full", "zero3_superoffload")
    assert gpu_runs.refusal(run, gpu_runs.Machine(gpu=False)) == "SuperOffload"
    assert gpu_runs.refusal(run, gpu_runs.Machine(gpu=True)) is None
    fewer = gpu_runs.plan(compiler=False)
    assert {run.engine for run in gpu_runs.plan() if run not in fewer} == {*gpu_runs.BUILT}


@pytest.mark.parametrize(
    ("code", "said", "method", "good"),
    [
        (2, "8-bit weights\nunder ZeRO-3 train", "qlora8", True),
        (2, "there is no flag --max_stops", "qlora8", False),
        (0, "trained", "qlora8", False),
        (1, "Traceback", "lora", False),
        (None, "step 3", "lora", False),
    ],
)
def test_a_refusal_must_be_the_right_one(
    children: ModuleType, gpu_runs: ModuleType, tmp_path: Path, code: int | None, said: str, method: str, good: bool
) -> None:
    import gpu_suite

    ended = children.Ended(code, said, said, 1.0)
    result = gpu_suite.judged(gpu_runs.Run("sft", method, "zero3"), ended, tmp_path)
    assert children.is_good(result) == good
    assert good or said.splitlines()[-1] in result["failed"]
