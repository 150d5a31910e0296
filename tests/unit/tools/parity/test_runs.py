"""How runs of the parity table are started on GPUs."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune import child_processes
from hftune.tools.parity.runs import Lab, Run


@pytest.mark.parametrize(
    ("visible", "processes", "expected"), [(None, 1, "0"), (None, 2, "0,1"), ("3,5", 1, "3"), ("3,5", 2, "3,5")]
)
def test_a_run_on_gpus_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, processes: int, expected: str
) -> None:
    """The process that starts it hides GPUs from itself and tells DeepSpeed that there are none: the run must not know.

    With DS_ACCELERATOR=cpu, DeepSpeed leaves weights in the machine's memory and sends them by NCCL, which cannot.
    """
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(child_processes, "run", lambda *_, **how: started.append(how) or SimpleNamespace(returncode=0))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    lab = Lab(tmp_path, gpus=2)
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setitem(os.environ, "DS_ACCELERATOR", "cpu")
    assert lab._start("run_sft.py", [], processes, tmp_path / "run.log") == 0
    assert started[0]["env"]["CUDA_VISIBLE_DEVICES"] == expected
    assert "DS_ACCELERATOR" not in started[0]["env"]


@pytest.mark.parametrize(
    ("stage", "gpus", "expected"),
    [("sft", 0, ["--use_cpu", "True"]), ("sft", 1, []), ("rl", 1, ["--bf16", "False", "--tf32", "False"])],
)
def test_where_a_run_computes(tmp_path: Path, stage: str, gpus: int, expected: list[str]) -> None:
    words = Lab(tmp_path, gpus=gpus)._words(Run(stage, ("--seed", "7")))
    own = words.index("--seed")
    assert words[own - len(expected) : own] == expected and "--use_cpu" not in words[: own - len(expected)]
    assert words[own:] == ["--seed", "7"] and "--bf16" not in words[: own - len(expected)]
