"""Ctrl-C at a terminal: a checkpoint or an untouched start, one line that says how to resume, nothing left running."""

from __future__ import annotations

import os
import re
import time

import pytest

from hftune.checkpoints.resume import newest_whole
from tests.faults.at_terminal import AtTerminal
from tests.faults.stages_at_terminal import LAUNCHERS, Terminal

OWN = {"python": (75,), "deepspeed": (130,), "torchrun": (1,), "launched deepspeed": (75,), "launched torchrun": (75,)}
"""Exit codes: those of launchers that answer Ctrl-C themselves are theirs."""


def own_lines(lines: list[str]) -> list[str]:
    """Without those of launchers, which answer Ctrl-C with tracebacks of their own."""
    text = "\n".join(lines)
    text = re.sub(r"^\[\d{4}-\d\d-\d\d .*\n?", "", text, flags=re.M)
    text = re.sub(r"^[WE]\d{4} .*torch/distributed/elastic.*\n?", "", text, flags=re.M)
    # By name, or as the module that DeepSpeed starts on each machine, which may still be importing DeepSpeed.
    launcher = r"(\S*/bin/(deepspeed|torchrun)\"|<frozen runpy>.*\n(.*<frozen runpy>.*\n)*File \"\S*/deepspeed/)"
    text = re.sub(r"Traceback \(most recent call last\):\nFile \"" + launcher + r"[\s\S]*?"
                  r"^(KeyboardInterrupt|[\w.]*SignalException.*)\n?", "", text, flags=re.M)  # fmt: skip
    # A process's first instants, in which Python itself and then the module that listens are loaded.
    begin = r"Traceback \(most recent call last\):\n.*\nfrom hftune\.errors import run_script\n"
    text = re.sub(begin + r"[\s\S]*?^KeyboardInterrupt\n?", "", text, flags=re.M)
    # DeepSpeed's signal handler calls sys.exit, also while Python is shutting down, which prints a traceback.
    text = re.sub(
        r"^Exception ignored in [\s\S]*?deepspeed/launcher/launch\.py[\s\S]*?^SystemExit: 1\n?", "", text, flags=re.M
    )
    return text.splitlines()


def stopped_well(terminal: Terminal, seen: AtTerminal, launcher: str) -> str:
    """What is left: `untouched`, `checkpoint` or `complete`; one of them must be, whatever moment it was."""
    assert "Traceback" not in "\n".join(own_lines(seen.lines)), seen.output[-3000:]
    if not terminal.output.exists():
        return "untouched"
    left = sorted(entry.name for entry in terminal.output.iterdir())
    if terminal.status() == "complete":
        return "complete"
    assert terminal.status() == "interrupted", (left, seen.output[-3000:])
    found = newest_whole(terminal.output)
    assert found.folder is not None and not found.skipped, left
    assert not [name for name in left if name.startswith(".")], left
    said = [line for line in seen.lines if line.startswith("stopped at step")]
    assert len(said) == 1 and said[0].endswith("resumes"), seen.output[-3000:]
    return "checkpoint"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "launcher", [pytest.param(name, marks=[pytest.mark.slow] * (name != "python")) for name in LAUNCHERS]
)
def test_ctrl_c_saves_a_checkpoint(terminal: Terminal, launcher: str) -> None:
    if launcher == "launched torchrun" and not os.path.exists(f"/proc/{os.getpid()}/fd"):
        pytest.skip("ranks cannot reach the terminal here")
    flags, warm = ("--num_train_epochs", "1000"), launcher == "python"
    with terminal.start(launcher, "sft", *flags, slow="step=0.2", warm=warm) as seen:
        assert seen.wait_until(lambda: seen.output.count("NOW step") > 6, 200), seen.output[-3000:]
        seen.ctrl_c()
        assert seen.wait(60) in OWN[launcher], seen.output[-3000:]
        assert stopped_well(terminal, seen, launcher) == "checkpoint"
        own = [line for line in own_lines(seen.lines) if "NOW" not in line]
        assert len(own) <= 25
        assert "launched" not in launcher or own == [line for line in seen.lines if "NOW" not in line]


@pytest.mark.slow  # quickly: `test_who_reads_may_leave`
@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", ["python", "launched torchrun"])
def test_ctrl_c_saves_a_checkpoint_though_tee_ends_first(terminal: Terminal, launcher: str) -> None:
    with terminal.start(launcher, "sft", "--num_train_epochs", "1000", slow="step=0.2", piped=True) as seen:
        assert seen.wait_until(lambda: seen.output.count("NOW step") > 6, 200), seen.output[-3000:]
        seen.ctrl_c()
        assert seen.wait(60) == 75, seen.output[-3000:]
    assert terminal.status() == "interrupted" and newest_whole(terminal.output).folder is not None
    log = (terminal.output / "run.log").read_text()
    assert "> stopped at step" in log and "BrokenPipe" not in log


@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", ["python", pytest.param("launched torchrun", marks=pytest.mark.slow)])
def test_the_second_ends_at_once(terminal: Terminal, launcher: str) -> None:
    flags, warm = ("--num_train_epochs", "10"), launcher == "python"
    with terminal.start(launcher, "sft", *flags, slow="step=300", warm=warm) as seen:
        assert seen.wait_until(lambda: "NOW step" in seen.output, 200), seen.output[-3000:]
        time.sleep(0.5)
        seen.ctrl_c()
        assert seen.wait_until(lambda: "finishing this step" in seen.output, 20), seen.output[-3000:]
        time.sleep(1.5)
        assert seen.code is None, seen.output[-3000:]
        seen.ctrl_c()
        assert seen.wait(20) == 130 and "Traceback" not in seen.output and "ended at once" in seen.output


@pytest.mark.timeout(600)
def test_an_evaluation_is_left_with_a_checkpoint(terminal: Terminal) -> None:
    flags = ["--validation_file_dir", str(terminal.data / "sft_eval"), "--eval_strategy", "steps", "--eval_steps", "3"]
    flags += ["--per_device_eval_batch_size", "1", "--save_strategy", "no", "--max_steps", "6"]
    with terminal.start("python", "sft", *flags, slow="evaluation=1", warm=True) as seen:
        assert seen.wait_until(lambda: "NOW evaluation" in seen.output, 100), seen.output[-3000:]
        seen.ctrl_c()
        assert seen.wait(60) == 75 and stopped_well(terminal, seen, "python") == "checkpoint"
        assert (terminal.output / "checkpoint-3").is_dir() and "evaluation at step 3 is left out" in seen.output
    # The last one, after the result is written: what is left to do is done by the same command.
    flags += ["--resume_from_checkpoint", "auto"]
    with terminal.start("python", "sft", *flags, slow="evaluation=1", warm=True) as seen:
        assert seen.wait_until(lambda: "NOW evaluation" in seen.output, 100), seen.output[-3000:]
        seen.ctrl_c()
        assert seen.wait(60) == 75 and stopped_well(terminal, seen, "python") == "checkpoint"
        assert (terminal.output / "checkpoint-6").is_dir()
    with terminal.start("python", "sft", *flags, warm=True) as seen:
        assert seen.wait(100) == 0 and terminal.status() == "complete"
        assert seen.output.count("NOW evaluation") == 1 and "NOW step" not in seen.output


@pytest.mark.timeout(600)
def test_scores_of_a_reward_model_are_left_with_a_checkpoint(terminal: Terminal) -> None:
    """After the last step training records are scored: training is over, and nothing is published yet."""
    flags = ["--save_strategy", "no", "--max_steps", "2", "--resume_from_checkpoint", "auto"]
    with terminal.start("python", "rm", *flags, slow="scoring=1", warm=True) as seen:
        assert seen.wait_until(lambda: "NOW scoring" in seen.output, 100), seen.output[-3000:]
        seen.ctrl_c()
        assert seen.wait(60) == 75 and stopped_well(terminal, seen, "python") == "checkpoint"
        assert (terminal.output / "checkpoint-2").is_dir() and not (terminal.output / "model.safetensors").exists()
    with terminal.start("python", "rm", *flags, warm=True) as seen:
        assert seen.wait(100) == 0 and terminal.status() == "complete"
        assert seen.output.count("NOW scoring") == 1 and "NOW step" not in seen.output
