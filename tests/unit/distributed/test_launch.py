"""What is decided before a process group is there."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hftune.arguments.entry import parse_arguments
from hftune.distributed import launch, ranks
from hftune.errors import ArgumentError
from hftune.tools.doctor.machine import gpus
from hftune.tools.planning.cluster import cluster_here


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


@pytest.mark.parametrize("major", [7, 8])
def test_emulated_bf16_is_none_in_a_run_a_plan_and_the_doctor(major: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4 and V100 (7.x) emulate it, slowly; torch says yes to them unless it is asked about emulation."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    about = SimpleNamespace(major=major, minor=5, name="Tesla T4", total_memory=16 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, 5))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=0: (8 * 2**30, 16 * 2**30))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    native = major >= 8
    assert launch.supports_bf16() == native
    assert cluster_here().device.bf16 == native and gpus().bf16 == native
    if not native:
        with pytest.raises(ArgumentError, match="this GPU emulates bf16"):
            launch.check_bf16()
    else:
        launch.check_bf16()


@pytest.mark.parametrize(
    ("bf16", "given", "expected"), [(False, [], False), (True, [], True), (True, ["--bf16"], True)]
)
def test_bf16_by_default_where_the_gpu_computes_in_it(bf16: bool, given: list[str], expected: bool) -> None:
    with ranks.planning_for(ranks.PlannedWorld(1, 1, on_cpu=False, bf16=bf16, major=7)):
        assert parse_arguments("sft", ["--output_dir", "o", *given]).training.bf16 == expected
        if not bf16:
            with pytest.raises(ArgumentError, match="use --fp16"):
                parse_arguments("sft", ["--output_dir", "o", "--bf16"])


def program(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_the_ninja_of_the_environment_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python started by its path leaves its programs off PATH."""
    empty, own = tmp_path / "empty", program(tmp_path / "venv" / "bin" / "ninja")
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setattr(launch.sys, "executable", str(own.with_name("python")))
    launch.put_ninja_on_path()
    assert shutil.which("ninja") == str(own)
    before = os.environ["PATH"]
    launch.put_ninja_on_path()
    assert os.environ["PATH"] == before


def test_a_compiler_without_ninja_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = program(tmp_path / "g++")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(launch.sys, "executable", str(tmp_path / "none" / "python"))
    assert launch.has_cpp_compiler() and not launch.can_build_operators()
    program(tmp_path / "ninja")
    assert launch.can_build_operators()
    compiler.unlink()
    assert not launch.can_build_operators()
