"""What stays on the screen: hftune's lines and one line of progress, however the stage is started."""

from __future__ import annotations

import re

import pytest

from tests.faults.stages_at_terminal import DATA, LAUNCHERS, Terminal

LAUNCHER_SAYS = re.compile(r"\[20\d\d-|[WE]\d{4} |\*{9}")
"""DeepSpeed's lines and torchrun's begin with a time of their own, and there is a line of asterisks."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", ["python", pytest.param("launched torchrun", marks=pytest.mark.slow)])
def test_a_small_run_and_a_refusal_are_a_few_lines(terminal: Terminal, launcher: str) -> None:
    flags = ["--validation_file_dir", str(terminal.data / "sft_eval"), "--eval_strategy", "steps", "--eval_steps", "5"]
    flags += ["--use_peft", "True"]
    flags += ["--max_steps", "10"]
    with terminal.start(launcher, "sft", *flags, script="run_sft.py", warm=launcher == "python") as seen:
        assert seen.wait(200) == 0
        assert len(seen.lines) <= 25, seen.lines
        assert not any("[transformers]" in line for line in seen.lines), seen.lines
        assert any("eval_loss" in line for line in seen.lines)
    assert (terminal.output / "run.log").is_file()
    assert (terminal.output / "run-rank1.log").is_file() == ("torchrun" in launcher)
    assert "# out" in (terminal.output / "README.md").read_text(), "hftune's own card"
    assert not (terminal.output / "checkpoint-10" / "README.md").exists(), "and no blank page of PEFT's"
    evaluations = (terminal.output / "run.log").read_text().count("eval_loss")
    assert evaluations == 3, "two, and the last words: the last evaluation is not made twice"
    if launcher == "python":  # refusals of one process: `tests/integration/test_errors.py`
        return
    with terminal.start(launcher, "sft", "--max_steps", "10", script="run_sft.py") as seen:
        assert seen.wait(200) == 2
        assert len(seen.lines) <= 12 and seen.output.count("error: ") == 1, seen.lines
        assert "already holds a finished run" in seen.output


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("stage", DATA)
def test_lines_of_each_stage_and_launcher(terminal: Terminal, stage: str, launcher: str) -> None:
    """Ten steps with two evaluations and the result. What a launcher says itself, only `hftune launch` can put away."""
    flags = ["--validation_file_dir", str(terminal.data / f"{DATA[stage]}_eval"), "--eval_strategy", "steps"]
    flags += ["--eval_steps", "5", "--use_peft", "True", "--max_steps", "10"]
    with terminal.start(launcher, stage, *flags, script=f"run_{stage}.py") as seen:
        assert seen.wait(400) == 0, seen.output[-3000:]
        assert "Traceback" not in seen.output
    own = [line for line in seen.lines if not LAUNCHER_SAYS.match(line)]
    print(f"LINES {stage} {launcher}: {len(seen.lines)}")
    assert len(own) <= 25, own
    assert len(own) == len(seen.lines) or launcher in ("deepspeed", "torchrun"), seen.lines
