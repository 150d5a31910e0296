"""What `plan` and `--dry_run` make of the steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.tools.pipeline import command
from hftune.tools.pipeline.command import main, scratch_folder, show_plan
from hftune.tools.pipeline.runner import Choice, Runner
from hftune.tools.pipeline.steps import Step
from hftune.visible import clock
from tests.unit.tools.pipeline.files import by_name, finish, model, steps


@pytest.fixture
def made(tmp_path: Path) -> list[Step]:
    model(tmp_path / "base")
    text = f"""
model: {tmp_path}/base
output_dir: {tmp_path}/out
shared: {{use_peft: true, save_steps: 50}}
stages:
  sft: {{max_steps: 900, merge: false}}
  rm: {{}}
  rl: {{num_generations: 4}}
answers: {{questions: ["Who?", "Well, why?"]}}
"""
    return steps(tmp_path, text)


def test_what_would_run_and_why(made: list[Step], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish(made[0])
    show_plan(made)
    text = capsys.readouterr().out
    assert "sft: finished and unchanged, will be skipped" in text and "rm: will run" in text
    (tmp_path / "base" / "model.safetensors").write_text("other")
    show_plan(made)
    assert f"sft: will run again, since the model in {tmp_path}/base is another one" in capsys.readouterr().out


def test_a_dry_run_is_small_and_elsewhere(made: list[Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[Path, dict[str, Step]]] = []

    class Recorded(Runner):
        def run(self, steps: list[Step], choice: Choice) -> None:  # type: ignore[override]
            ran.append((self.folder, by_name(steps)))

    monkeypatch.setattr(command, "Runner", Recorded)
    main(["run", f"{tmp_path}/pipeline.yaml", "--dry_run"])
    ((folder, small),) = ran
    sft, rl = small["sft"].arguments, small["rl"].arguments
    assert folder == tmp_path / "out.dry_run" and small["sft"].folder == folder / "sft"
    assert sft["max_steps"] == ["2"] and sft["max_train_samples"] == ["8"] and "save_steps" not in sft
    assert rl["per_device_train_batch_size"] == ["4"] and rl["peft_path"] == sft["output_dir"] == [f"{folder}/sft"]
    assert rl["reward_model_path"] == [f"{folder}/rm-merged"] and rl["model_name_or_path"] == [f"{tmp_path}/base"]
    assert small["answers"].arguments["max_new_tokens"] == ["2"]


def test_the_scratch_folder_goes_if_all_went_well(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "out") as scratch:
        assert scratch == tmp_path / "out.dry_run" and scratch.is_dir()
    assert not scratch.exists()
    with pytest.raises(ValueError), scratch_folder(tmp_path / "out"):
        raise ValueError
    assert scratch.is_dir()


def test_clock() -> None:
    assert [clock(seconds) for seconds in (5.4, 67, 3600 * 2 + 61)] == ["5 s", "1:07", "2:01:01"]
