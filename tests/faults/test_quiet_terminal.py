"""What stays on the screen: hftune's lines and one line of progress, however the stage is started."""

from __future__ import annotations

import pytest

from tests.faults.stages_at_terminal import Terminal


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
