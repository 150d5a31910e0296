"""The command that runs a manifest once more, and what stands in its way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.checkpoints.file_records import record_input
from hftune.errors import UserError
from hftune.tools.reproducing.again import changed_inputs, stage_of_run, words_again
from hftune.tools.reproducing.entry import reproduce, taken


def manifest(*words: str, inputs: dict[str, Any] | None = None, **asked: Any) -> dict[str, Any]:
    return {
        "stage": "sft",
        "command": ["run_sft.py", *words],
        "inputs": inputs or {},
        "arguments": {"training": asked},
    }


def again(made: dict[str, Any], *rest: str, steps: int | None = None, lines: Any = ()) -> list[str]:
    return words_again(made, lines, Path("out"), Path("out-again"), steps, list(rest))


def test_folder_and_checkpoint_are_its_own() -> None:
    made = manifest("--seed", "7", "--output-dir", "out", "--resume_from_checkpoint", "auto", "--use_peft", "--lr=-1")
    assert again(made) == [
        *("--seed=7", "--use_peft", "--lr=-1", "--output_dir=out-again", "--resume_from_checkpoint=none"),
    ]


def test_a_config_file_stays_and_lists_stay_lists(tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("seed: 1")
    words = again(manifest("--config", str(config), "--stop", "a", "b"))
    assert words[:5] == ["--config", str(config), "--stop", "a", "b"]


def test_nothing_is_uploaded_or_tracked() -> None:
    made = manifest("--push_to_hub", "--report_to", "wandb", push_to_hub=True, report_to=["wandb"])
    assert {"--push_to_hub=False", "--report_to=none"} <= {*again(made)}
    assert "--push_to_hub" not in again(made) and not any("wandb" in word for word in again(made))
    assert not any("report_to" in word for word in again(manifest(report_to=["none"])))


def test_a_few_steps_keep_the_schedule() -> None:
    words = again(manifest("--max_steps", "90", callbacks=["mine.py:Mine"]), steps=5)
    at = words.index("--callbacks")
    assert words[at + 1 : at + 3] == ["mine.py:Mine", 'hftune.trainers.callbacks:StopAt{"step": 5}']
    assert "--max_steps=90" in words


def test_what_the_user_adds_wins() -> None:
    made = manifest("--train_file_dir", "gone", "--seed", "1", inputs={"gone": {"files": {}}})
    words = again(made, "--train-file-dir", "here", "--output_dir", "x", "--output_dir=y")
    assert words == ["--seed=1", "--output_dir=y", "--resume_from_checkpoint=none", "--train-file-dir=here"]


def test_missing_things_are_one_message(tmp_path: Path) -> None:
    made = manifest("--hub_token", "***", "--train_file_dir", "./gone", inputs={"./gone": {"files": {}}})
    with pytest.raises(UserError) as caught:
        again(made)
    said = str(caught.value)
    assert "2 problems" in said and "--hub_token=VALUE" in said and "./gone" in said
    assert "the folder where the run was started" in said
    absolute = str(tmp_path / "gone")
    made = manifest("--train_file_dir", absolute, inputs={absolute: {"files": {}}})
    with pytest.raises(UserError) as caught:
        again(made)
    assert "was started" not in str(caught.value)


def test_a_run_that_began_at_another_s_checkpoint(tmp_path: Path) -> None:
    lines = [{"began": True, "step": 4}, {"began": True, "step": 6}]
    made = manifest("--resume_from_checkpoint", str(tmp_path), resume_from_checkpoint=str(tmp_path))
    assert f"--resume_from_checkpoint={tmp_path}" in again(made, lines=lines)
    with pytest.raises(UserError, match="began at step 4"):
        again(manifest(resume_from_checkpoint=str(tmp_path / "gone")), lines=lines)
    # One that was stopped and resumed in its own folder has every step in its log.
    assert "--resume_from_checkpoint=none" in again(made, lines=[{"began": True, "step": 0}, *lines])


def test_changed_inputs_are_named(tmp_path: Path) -> None:
    file = tmp_path / "data" / "a.jsonl"
    file.parent.mkdir()
    file.write_text("1")
    inputs = {str(file.parent): record_input(str(file.parent))}
    made = manifest("--train_file_dir", str(file.parent), inputs=inputs)
    words = again(made)
    assert changed_inputs(made, words) == []
    file.write_text("2")
    (found,) = changed_inputs(made, words)
    assert "a.jsonl" in found


def test_only_training_runs(tmp_path: Path) -> None:
    assert stage_of_run(manifest(), tmp_path) == "sft"
    for made in (None, {"stage": "merge", "command": []}, {"stage": "sft"}):
        with pytest.raises(UserError, match="holds no training run"):
            stage_of_run(made, tmp_path)


def test_own_options_are_taken_out() -> None:
    folder, own, rest = taken(["f", "--steps", "3", "--seed", "1", "--output-dir=x", "--tolerance", "1e-3"])
    assert (folder, own, rest) == (
        "f", {"steps": "3", "output_dir": "x", "tolerance": "1e-3"}, ["--seed", "1"],
    )  # fmt: skip


@pytest.mark.parametrize("words", [["--steps", "3"], ["f", "--steps"], ["f", "--steps", "--x"], ["nowhere"]])
def test_wrong_command_lines(words: list[str]) -> None:
    with pytest.raises(UserError):
        reproduce(words)


@pytest.mark.parametrize("words", [["--steps", "0"], ["--steps", "1.5"], ["--tolerance", "x"], ["--steps", "-1"]])
def test_wrong_numbers(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="takes a"):
        reproduce([str(tmp_path), *words])
