"""How trainings that must be alike are started and judged."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune import child_processes
from hftune.tools.doctor import training
from hftune.tools.doctor.findings import FINE, WRONG
from hftune.tools.doctor.training import BF16, Row, Trainings, check_training, compared, rows


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "make_model", lambda name, folder: folder)


def logs(output: str, loss: float = 2.0) -> None:
    Path(output).mkdir(exist_ok=True)
    steps = [{"loss": loss - step, "grad_norm": 1.0} for step in range(2)]
    (Path(output) / "trainer_state.json").write_text(json.dumps({"log_history": [*steps, {"train_loss": 1.0}]}))


def test_the_furthest_step_counts() -> None:
    norms = {"grad_norm": [1.0, 1.0]}
    found = compared("x", {"loss": [3.0, 2.001], **norms}, {"loss": [3.001, 2.0], **norms}, 1e-3)
    assert (found.found, found.wanted) == (2.001, 2.0) and found.apart == pytest.approx(0.001 / 2.001) and found.holds
    assert not compared("x", {"loss": [3.0, math.nan], **norms}, {"loss": [3.0, 2.0], **norms}, 1.0).holds
    assert compared("x", {"loss": [0.001], "grad_norm": [1]}, {"loss": [0.0], "grad_norm": [1]}, 1).apart == 0.1
    assert "0 and 2 values of loss" in compared("x", {}, {"loss": [1.0, 1.0], **norms}, 1.0).problem
    still = compared("x", {"loss": [1.0], "grad_norm": [1.0]}, {"loss": [1.0], "grad_norm": [0.0]}, 1.0)
    assert "nothing is trained" in still.problem and not still.holds


def test_rows_are_two_runs_each_and_every_stage_is_there() -> None:
    found = rows(2)
    assert len({row.what for row in found}) == len(found) >= 12
    assert all(row.one != row.other for row in found)
    assert {row.stage for row in found} == {"pt", "sft", "rm", "dpo", "rl", "distill"}


def test_a_run_is_made_once_and_a_resumed_one_behind_it(tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def start(stage: str, words: Sequence[str], processes: int, log: Path) -> int:
        asked.append([stage, str(processes), *words])
        logs(words[words.index("--output_dir") + 1])
        return 0

    trainings = Trainings(tmp_path, 0, start)
    saved = ("--save_steps", "2")
    resumed = Row("x", "sft", (*saved, "--resume_from_checkpoint", "{other}/checkpoint-2"), saved, allowed=0.0)
    assert trainings.outcome(resumed).holds and trainings.outcome(resumed._replace(one=saved)).holds
    first, second = asked
    assert second[second.index("--resume_from_checkpoint") + 1] == f"{first[-1]}/checkpoint-2"
    trainings.outcome(Row("x", "distill", (), processes=2))
    alone, shared = asked[2:]
    assert shared[1] == "2" and alone[1] == "1" and "4" in shared and "8" in alone
    assert str(tmp_path / "teacher") in shared and "--use_cpu" in shared
    on_gpu = Trainings(tmp_path, 1, start)
    assert on_gpu.outcome(resumed).allowed == BF16 and "--use_cpu" not in asked[-1]
    on_gpu.outcome(Row("x", "rl", ()))
    assert "--tf32" in asked[-1]


@pytest.mark.parametrize(
    ("visible", "gpus", "expected"), [(None, 2, ["0", "0,1"]), ("3,5", 2, ["3", "3,5"]), (None, 0, ["", ""])]
)
def test_a_run_sees_as_many_gpus_as_it_has_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, gpus: int, expected: list[str]
) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(child_processes, "run", lambda *_, **how: started.append(how) or SimpleNamespace(returncode=0))
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    for processes in (1, 2):
        training._start(gpus, variables, "sft", [], processes, tmp_path / "log")
    assert [how["env"]["CUDA_VISIBLE_DEVICES"] for how in started] == expected


def test_what_differs_or_fails_is_wrong_and_its_runs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(gpus: int, variables: Any, stage: str, words: Sequence[str], processes: int, log: Path) -> int:
        log.write_text("words of the run\n")
        logs(words[words.index("--output_dir") + 1], 2.1 if "zero2" in words and stage == "rm" else 2.0)
        return 3 if stage == "pt" else 0

    monkeypatch.setattr(training, "_start", start)
    monkeypatch.setattr(training.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    found = {one.said.partition(":")[0]: one for one in check_training(0, {}) if one.level == WRONG}
    assert found.keys() == {"PT", "RM"} and "exit code 3: words of the run" in found["PT"].said
    assert "1.1 and 1, " in found["RM"].said and str(tmp_path) in str(found["RM"].fix) and tmp_path.is_dir()
    monkeypatch.setattr(training, "_start", lambda *given: logs(given[3][-1]) or 0)
    assert {one.level for one in check_training(0, {})} == {FINE} and not tmp_path.exists()
