"""SIGKILL at random moments, of the runner, a stage or a merge: the pipeline ends where an unharmed one does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hftune.checkpoints.integrity import checkpoint_fault
from hftune.digests import digest
from hftune.tools.reporting.lineage import all_faults, trace

STAGES = {
    "pt": "pt: {{train_file_dir: {data}/pt, block_size: 32, max_steps: 6}}",
    "sft": "sft: {{train_file_dir: {data}/sft, max_steps: 6}}",
    "rm": "rm: {{train_file_dir: {data}/pairs, max_steps: 6}}",
    "rl": "rl: {{train_file_dir: {data}/prompts, max_steps: 4, num_generations: 2, max_completion_length: 8}}",
}

NAMES = ("unharmed", "harmed")
ASKED = "answers: {questions: ['What is 2 plus 3?', 'Who?'], max_new_tokens: 4}\n"


@pytest.mark.parametrize(
    "stages, kills, share",
    [
        (("sft",), 2, 0.5),
        pytest.param(("pt", "sft", "rm", "rl"), 30, 0.08, marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
    ],
)
def test_a_killed_pipeline_comes_to_the_same(
    run: Callable,
    tiny_model: Path,
    tiny_data: Path,
    tmp_path: Path,
    stages: tuple[str, ...],
    kills: int,
    share: float,
) -> None:
    files = [write_pipeline(tmp_path / name, tiny_model, tiny_data, stages) for name in NAMES]
    asked = ("tests/faults/warm_pipeline.py", str(kills), "11", str(share), *map(str, files))
    finished_all = run(*asked, timeout=7000, warm=True).check()
    lines = [json.loads(line[4:]) for line in finished_all.output.splitlines() if line.startswith("RUN ")]
    reports = [line for line in lines if line["folder"] == "harmed"]
    assert lines[0]["code"] == 0 and reports[-1]["code"] == 0, lines
    assert sum(report["victim"] is not None for report in reports) >= kills * 2 // 3, reports
    assert all(report["damaged"] == [] for report in reports), "something half written was called complete"
    finished = [len(report["complete"]) for report in reports]
    assert finished == sorted(finished), "what was finished stays finished"
    assert weights(tmp_path / "harmed") == weights(tmp_path / "unharmed"), "bit for bit"
    for stage in stages:
        steps = [json.loads((tmp_path / name / stage / "hftune.json").read_text())["steps"] for name in NAMES]
        assert steps[0] == steps[1], f"{stage} took a step more after its last checkpoint"
    assert answers(tmp_path / "harmed") == answers(tmp_path / "unharmed")
    for checkpoint in (tmp_path / "harmed").glob("*/checkpoint-*"):
        assert checkpoint_fault(checkpoint) is None
    logs = "".join(log.read_text(errors="replace") for log in (tmp_path / "harmed" / "logs").iterdir())
    assert "is skipped:" not in logs, "something half written was taken for a checkpoint"
    assert all_faults(trace(tmp_path / "harmed" / f"{stages[-1]}-merged")) == []


def write_pipeline(folder: Path, model: Path, data: Path, stages: tuple[str, ...]) -> Path:
    """The file of a pipeline whose results go to `folder`."""
    file = folder.with_suffix(".yaml")
    shared = "use_peft: true, lora_rank: 4, learning_rate: 1e-2, save_steps: 1, save_total_limit: 2, logging_steps: 1"
    shared += ", per_device_train_batch_size: 2, gradient_checkpointing: false, use_cpu: true, report_to: none"
    listed = "".join(f"  {STAGES[name].format(data=data)}\n" for name in stages)
    file.write_text(f"model: {model}\noutput_dir: {folder}\nshared: {{{shared}}}\nstages:\n{listed}{ASKED}")
    return file


def answers(folder: Path) -> list[list[str]]:
    """What each model said."""
    return list(json.loads((folder / "answers" / "answers.json").read_text())["answers"].values())


def weights(folder: Path) -> dict[str, str]:
    """Digest of every weight file of every result."""
    files = [file for file in sorted(folder.glob("*/*.safetensors")) if "logs" not in file.parts]
    return {str(file.relative_to(folder)): digest(file) for file in files}
