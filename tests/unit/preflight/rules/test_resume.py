"""A run resumes in the groups of processes that wrote the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.checkpoints.integrity import RECORD_NAME
from hftune.preflight.rules import resume
from hftune.preflight.rules.resume import check_groups, tensor_ranks


def checkpoint(folder: Path, ranks: int = 1, **record: Any) -> Path:
    engine = folder / "checkpoint-5" / "global_step5"
    engine.mkdir(parents=True)
    for rank in range(ranks):
        (engine / f"zero_pp_rank_0_mp_rank_{rank:02d}_optim_states.pt").touch()
    (folder / "checkpoint-5" / "latest").write_text("global_step5")
    (folder / "checkpoint-5" / RECORD_NAME).write_text(json.dumps({"files": {}, **record}))
    return folder / "checkpoint-5"


def said(folder: Path | None, tensor: int = 1, expert: int = 1, stage: int = 2) -> list[str]:
    args: Any = SimpleNamespace(tensor_parallel_size=tensor, expert_parallel_size=expert, zero_stage=stage)
    return [str(problem) for problem in check_groups(folder, args)]


@pytest.fixture(autouse=True)
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume.ranks, "world_size", lambda: 2)


def test_without_groups_any_world_resumes(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, zero_stage=3, world_size=16)
    assert said(folder) == said(None) == said(tmp_path / "nowhere") == said(tmp_path) == []


def test_groups_stay_what_they_were(tmp_path: Path) -> None:
    same = {"zero_stage": 2, "world_size": 2}
    folder = checkpoint(tmp_path, tensor_parallel_size=2, expert_parallel_size=1, **same)
    assert said(folder, tensor=2) == []
    (problem,) = said(folder, tensor=1)
    assert "written with --tensor_parallel_size 2, and this run has 1" in problem and "--warm_start" in problem
    (problem,) = said(folder, tensor=2, expert=2)
    assert "--expert_parallel_size 1, and this run has 2" in problem
    (problem,) = said(folder, tensor=2, stage=1)
    assert "ZeRO stage 2, and this run has 1" in problem


def test_a_group_of_experts_wants_its_world(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, expert_parallel_size=2, zero_stage=2, world_size=4)
    (problem,) = said(folder, expert=2)
    assert "processes 4, and this run has 2" in problem


def test_a_checkpoint_without_a_record_is_asked_by_its_files(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, ranks=3)
    assert tensor_ranks(folder / "global_step5") == 3 and tensor_ranks(tmp_path) == 1
    assert "--tensor_parallel_size 3, and this run has 1" in said(folder)[0] and said(folder, tensor=3) == []
