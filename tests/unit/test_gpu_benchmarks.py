"""The benchmarks for GPUs, as far as a CPU shows: nothing finished is lost, and refusals that are expected come."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.distributed import launch, ranks
from hftune.errors import UserError
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve
from tests.conftest import without_launcher

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


def test_a_process_finds_what_this_one_finds(
    children: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `pip install --target FOLDER`, with its programs."""
    (tmp_path / "site" / "bin").mkdir(parents=True)
    (tmp_path / "site" / "of_a_wheel.py").write_text("here = True\n")
    (tmp_path / "site" / "bin" / "of-a-wheel").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "site" / "bin" / "of-a-wheel").chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    code = "import of_a_wheel, hftune, subprocess; subprocess.run('of-a-wheel'); print(hftune.__file__)"
    ended = children.run(python(code), children.environment(tmp_path), 60)
    assert ended.code == 0, ended.words
    assert ended.out.splitlines() == ["ran", str(BENCHMARKS.parent / "hftune" / "__init__.py")]


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


def test_the_end_of_the_time_is_no_fault_of_what_runs(
    children: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "GRACE", 0.5)
    ended = children.Clock(0).run(python("import time; time.sleep(99)"), children.environment(tmp_path), 60)
    assert ended.code is None and ended.failure["cut"]


def test_a_process_ends_with_a_killed_parent(children: ModuleType, tmp_path: Path) -> None:
    sleeper = "import os, time; print(os.getpid(), flush=True); time.sleep(99)"
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import children, os\n"
    code += f"children.run([sys.executable, '-c', {sleeper!r}], dict(os.environ), 60, show=True)"
    with subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    assert is_gone(child)


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_folders_of_stopped_benchmarks_do_not_stay(
    children: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import children, time\nchildren.begin()\n"
    code += "with children.work_folder() as folder: print(folder, flush=True); time.sleep(99)"
    with subprocess.Popen(
        python(code), stdout=subprocess.PIPE, text=True, env=without_launcher(os.environ) | {"TMPDIR": str(tmp_path)}
    ) as killed:
        assert killed.stdout is not None
        folder = Path(killed.stdout.readline().strip())
        os.utime(folder, (0, 0))
        with children.work_folder():
            assert folder.is_dir(), "it is in use"
        killed.send_signal(number)
    with children.work_folder() as own:
        assert [*tmp_path.iterdir()] == [own]


def test_results_are_gone_on_with(children: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    found = children.Found(file, "some", "this machine", quick=True)
    found.cases("runs").update(good={"exit": 0}, bad={"failed": "so"})
    found.keep()
    again = children.Found(file, "some", "this machine", quick=True)
    assert children.to_do(["bad", "good", "new"], again.cases("runs")) == ["new", "bad"]
    assert children.to_do(["bad", "good", "new"], again.cases("runs"), ["b*"]) == ["bad"]
    assert json.loads(file.read_text())["complete"] is False
    with pytest.raises(SystemExit, match="another --output"):
        children.Found(file, "some", "that machine", quick=True)


def test_no_two_runs_share_a_name(gpu_runs: ModuleType) -> None:
    names = [run.name for run in gpu_runs.plan()]
    assert len({*names}) == len(names) == 73
    assert names[:4] == [f"sft-{method}-plain" for method in ("full", "lora", "qlora4", "qlora8")]


@pytest.mark.long
@pytest.mark.parametrize("has_files", [True, False], ids=["async-files", "no-async-files"])
def test_what_must_be_refused_is_what_preflight_refuses(
    gpu_runs: ModuleType, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_files: bool
) -> None:
    """All planned runs, their arguments parsed as for a GPU that has everything else."""
    monkeypatch.setattr(launch, "has_async_io", lambda: has_files)
    shorter = {"--max_length": "256", "--block_size": "256"}
    for run in gpu_runs.plan():
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


@pytest.mark.parametrize(
    ("changes", "engine", "reason"),
    [
        ({}, "zero3_zeropp", None),
        ({"cuda_compiler": False}, "zero3_zeropp", "CUDA"),
        ({"cuda_compiler": False}, "zero3_nvme", "CUDA"),
        ({"cuda_compiler": False}, "zero3_hpz", None),
        ({"gpu": False}, "zero3_superoffload", "SuperOffload"),
    ],
)
def test_what_a_machine_lacks(gpu_runs: ModuleType, changes: dict[str, Any], engine: str, reason: str | None) -> None:
    machine = gpu_runs.Machine(gpu=True)._replace(**changes)
    assert gpu_runs.refusal(gpu_runs.Run("sft", "full", engine), machine) == reason


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


def test_figures_are_the_peak_and_the_median_after_the_first_steps(children: ModuleType, tmp_path: Path) -> None:
    steps = [
        {"loss": 3.0 - number, "tokens_per_second": speed} for number, speed in enumerate((1.0, 2.0, 9.0, 7.0, 8.0))
    ]
    history = [*steps, {"train_runtime": 3.0, "train_peak_memory_gb": 1.5}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    found = children.figures_of(tmp_path)
    assert (found["tokens_per_second"], found["peak_gigabytes"], len(found["losses"])) == (8.0, 1.5, 5)
    history = [{"loss": 1.0}, {"train_runtime": 3.0}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert children.figures_of(tmp_path) == {"losses": [1.0]}, "RL logs no speed"
    (tmp_path / "trainer_state.json").unlink()
    with pytest.raises(children.NO_FIGURES):
        children.figures_of(tmp_path)


def test_speed_is_kept_case_by_case_and_judged(
    children: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case of ours that fails is a bar that does not hold, a peer's is none, and a full disk ends one case."""
    import gpu_speed
    import gpu_suite

    def full(*_: Any) -> dict[str, Any]:
        raise OSError("no space")

    speeds = {
        "1b-full": 9000.0,
        "1b-full-compiled": 10000.0,
        "1b-fp8": 13000.0,
        "lora-hftune": 600.0,
        "lora-trl": 400.0,
    }
    jobs = {name: lambda *_, one=one: {"tokens_per_second": one, "peak_gigabytes": 9.0} for name, one in speeds.items()}
    jobs |= {"4b-full": full, "qlora-trl": full}
    monkeypatch.setattr(gpu_speed, "jobs_of", lambda options: jobs)
    monkeypatch.setattr(gpu_speed, "rate_here", lambda *_: None)
    found = children.Found(tmp_path / "all.json", "gpu_suite", "m", quick=False)
    options = SimpleNamespace(quick=False, only=None)
    gpu_suite.run_speed(gpu_suite.Suite(options, children.Clock(5), found, tmp_path))
    kept = json.loads((tmp_path / "all.json").read_text())
    assert [*kept["figures"]["speed"]] == [*jobs]
    assert {name: (bar["value"], bar["holds"]) for name, bar in kept["bars"].items()} == {
        "speed-4b-full": ("failed", False),
        "speed-1b: FP8 over bf16": (1.3, True),
        "speed-lora: speed over the best of the others": (1.5, True),
    }


def test_memory_is_kept_case_by_case_judged_and_published(
    children: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned within the bar, beyond it, and a case that said nothing."""
    import gpu_suite
    import memory

    took = {"near": 110.0, "far": 200.0, "mute": None}
    for name in took:
        monkeypatch.setitem(memory.EVERY, name, memory.Case(name, "sft", "tiny", 8, 1))

    def run(command: list[str], *_: Any) -> Any:
        measured = {"device": "cpu", "planned": 100.0, "measured": took[command[2]], "when": "step"}
        return children.Ended(0, json.dumps(measured) if took[command[2]] else "", "", 1.0)

    monkeypatch.setattr(memory, "cases", lambda **_: [*took])
    monkeypatch.setattr(memory, "accelerator", lambda: "cpu")
    monkeypatch.setattr(memory, "PAGE", tmp_path / "page.md")
    memory.PAGE.write_text("<!-- measured: cpu -->\nold\n<!-- /measured: cpu -->\n")
    found = children.Found(tmp_path / "all.json", "gpu_suite", "m", quick=False)
    clock = SimpleNamespace(left=99.0, run=run)
    gpu_suite.run_memory(gpu_suite.Suite(SimpleNamespace(only=None, quick=False), clock, found, tmp_path))
    holds = {name: bar["holds"] for name, bar in found.bars.items()}
    assert holds == {"memory-near": True, "memory-far": False, "memory-mute": False}
    memory.write_docs(found.figures["memory"], "1 x GPU")
    page = memory.PAGE.read_text()
    assert "On 1 x GPU, by" in page and "-50.0%" in page and "mute                     failed" in page


@pytest.mark.parametrize("at_once", [1, 2])
def test_runs_beside_each_other_until_the_time_is_up(children: ModuleType, tmp_path: Path, at_once: int) -> None:
    """Two that wait for each other end where both run; what would begin too late is named."""
    import gpu_suite

    meeting = threading.Barrier(at_once)
    clock = SimpleNamespace(left=99.0)
    found = children.Found(tmp_path / "all.json", "gpu_suite", "m", quick=True)
    suite = gpu_suite.Suite(SimpleNamespace(only=None), clock, found, tmp_path)

    def run(name: str) -> dict[str, Any]:
        meeting.wait(20)
        if name == "bad":
            clock.left = 1.0
        return {"exit": 1, "failed": "so"} if name == "bad" else {"exit": 0}

    names = ["good", "bad", "late"] if at_once == 2 else ["bad", "late"]
    suite.each("runs", names, run, at_once)
    kept = json.loads((tmp_path / "all.json").read_text())
    assert set(kept["figures"]["runs"]) == {*names} - {"late"} and not kept["bars"]["bad"]["holds"]
    assert found.figures["skipped"]["runs"] == ["late"]


def test_after_a_signal_no_other_run_begins(
    children: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_suite

    def end(*_: Any) -> None:
        raise SystemExit(143)

    begun: list[str] = []
    again = threading.Event()

    def run(name: str) -> dict[str, Any]:
        begun.append(name)
        return {"exit": 0} if name == "first" or again.wait(1) else {"exit": 1}

    monkeypatch.setattr(children, "say", end)
    found = children.Found(tmp_path / "all.json", "gpu_suite", "m", quick=True)
    suite = gpu_suite.Suite(SimpleNamespace(only=None), SimpleNamespace(left=99.0), found, tmp_path)
    with pytest.raises(SystemExit):
        suite.each("runs", ["first", "second", "third", "fourth"], run)
    assert begun in (["first"], ["first", "second"]), "the second may have begun before the signal"


def test_what_was_found_elsewhere_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_suite
    import publish

    monkeypatch.setattr(publish, "PAGE", tmp_path / "page.md")
    publish.PAGE.write_text("# Benchmarks\n")
    runs = {
        "sft-full-plain": {"exit": 0, "expected": 0, "peak_gigabytes": 7.5, "first_loss": 9.0, "last_loss": 8.5},
        "sft-cut": {"exit": None, "cut": True, "failed": "stopped"},
    }
    speed = {"1b": {"failed": "so"}, "lora-trl": {"tokens_per_second": 4619.5, "peak_gigabytes": 22.2}}
    file = tmp_path / "gpu.json"
    found = {"machine": "1 x GPU", "figures": {"runs": runs, "speed": speed}, "bars": {}}
    file.write_text(json.dumps(found))
    monkeypatch.setattr(sys, "argv", ["gpu_suite.py", "--publish", str(file)])
    assert gpu_suite.main() == 0
    page = publish.PAGE.read_text()
    lines = [line.split() for line in page.splitlines()]
    assert ["sft-full-plain", "0", "0", "7.50", "9", "8.5"] in lines
    assert "trl (recomputes all)" in page and "4,620 tokens/s, 22.2 GB" in page
    assert "cut" not in page and "1b" not in page and "on 1 x GPU:" in page


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_suite_leaves_what_was_finished(tmp_path: Path) -> None:
    """SIGKILL between two runs: the first is in the file, and the same command goes on with the second."""
    file = tmp_path / "gpu.json"
    command = [sys.executable, "benchmarks/gpu_suite.py", "--quick", "--parts", "runs", "--output", str(file)]
    command += ["--only", "sft-*"]
    with subprocess.Popen(
        command, cwd=BENCHMARKS.parent, env=without_launcher(os.environ) | {"TMPDIR": str(tmp_path)}
    ) as killed:
        for _ in range(1200):
            if file.is_file() or killed.poll() is not None:
                break
            time.sleep(0.1)
        killed.kill()
    assert [*json.loads(file.read_text())["figures"]["runs"]] == ["sft-lora-plain-packing"]
    again = subprocess.run(
        command, cwd=BENCHMARKS.parent, env=without_launcher(os.environ) | {"TMPDIR": str(tmp_path)}, check=False
    )
    kept = json.loads(file.read_text())
    assert again.returncode == 0 and kept["complete"]
    assert [*kept["figures"]["runs"]] == ["sft-lora-plain-packing", "sft-qlora8-zero3"]


def test_memory_is_compared_where_all_recompute() -> None:
    """What hftune has room for it keeps, which is its speed; what peers compute again it computes again beside them."""
    import gpu_speed

    beside = {
        "hftune": {"tokens_per_second": 9000.0, "peak_gigabytes": 60.0},
        "hftune-recomputing": {"tokens_per_second": 6000.0, "peak_gigabytes": 20.0},
        "trl": {"tokens_per_second": 4000.0, "peak_gigabytes": 25.0},
        "llamafactory": {"tokens_per_second": 5000.0, "peak_gigabytes": None},
        "unsloth": {"failed": "so"},
    }
    found = {name: (bar["value"], bar["holds"]) for name, bar in gpu_speed.bars_of_tools({"lora": beside}).items()}
    assert found == {
        "lora: speed over the best of the others": (1.8, True),
        "lora: speed over the best of the others, all recomputing": (1.2, True),
        "lora: memory over the smallest peer's, all recomputing": (0.8, True),
    }
