"""What `plan` and `--dry_run` make of the steps."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from hftune.errors import ArgumentError
from hftune.tools.pipeline import command
from hftune.tools.pipeline import runner as progress
from hftune.tools.pipeline.command import main, scratch_folder, show_plan
from hftune.tools.pipeline.runner import Choice, Runner, Screen, clock
from hftune.tools.pipeline.steps import Step
from hftune.tools.reporting.progress import Log, Moment
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


def test_what_would_run_and_why(made: list[Step], tmp_path: Path) -> None:
    finish(made[0])
    said = io.StringIO()
    show_plan(made, Screen(Console(file=said, width=300, markup=False)))
    text = said.getvalue()
    assert "sft: finished and unchanged, will be skipped" in text and "rm: will run" in text
    (tmp_path / "base" / "model.safetensors").write_text("other")
    said.truncate(0)
    show_plan(made, Screen(Console(file=said, width=300, markup=False)))
    assert f"sft: will run again, since the model in {tmp_path}/base is another one" in said.getvalue()


@pytest.mark.parametrize("word", ["--gpus", "--no_estimate", "--gpus=8xH200"])
def test_estimates_are_refused_by_name(word: str) -> None:
    with pytest.raises(ArgumentError, match=r"was removed\n.*hftune plan"):
        main(["plan", "p.yaml", word])


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


def test_progress_of_this_run_alone_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    lines = [
        json.dumps({"step": n, "max_steps": 10, "time": 2.0 * n, "tokens": 100 * n, "loss": 4 - n / 2})
        for n in (9, 1, 3)
    ]
    file.write_text(f"{lines[0]}\n")  # of an earlier run
    follower = Log(tmp_path, skip=True)
    assert not follower.read() and str(follower.moment()) == ""
    with file.open("a") as stream:
        stream.write(f"{lines[1]}\n{lines[2]}\n")
    assert follower.read() and str(follower.moment()) == "step 3/10, loss 2.5, 14 s left"


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_terminal_has_one_line_that_changes_where_it_can(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    screen = Screen(Console(file=said, force_terminal=True, width=80, _environ={"TERM": term}))
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", 0.0)
    with screen.watching("[1/2] sft") as show:
        show(Moment(5, 10, figures={"loss": 1.25}), True)
    assert "[1/2] sft: step 5/10, loss 1.25" in said.getvalue()
    assert ("\x1b[?25l" in said.getvalue()) == (term == "xterm"), "the cursor is hidden while a line changes"


def test_clock() -> None:
    assert [clock(seconds) for seconds in (5.4, 67, 3600 * 2 + 61)] == ["5 s", "1:07", "2:01:01"]
