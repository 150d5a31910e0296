"""Ctrl-C at a terminal: a checkpoint or an untouched start, one line that says how to resume, nothing left running."""

from __future__ import annotations

import json
import os
import random
import re
import time
from pathlib import Path

import pytest

from hftune.checkpoints.resume import newest_whole
from tests.faults.at_terminal import AtTerminal
from tests.faults.stages_at_terminal import DATA, LAUNCHERS, Terminal

OWN = {"python": (75,), "deepspeed": (130,), "torchrun": (1,), "launched deepspeed": (75,), "launched torchrun": (75,)}
"""Exit codes: those of launchers that answer Ctrl-C themselves are theirs."""

FIRST, LAST = (int(number) for number in os.environ.get("INTERRUPTS", "0-20").split("-"))
"""Which moments are tried: each is drawn for itself, so that they may be tried a few at a time."""


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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", ["python", pytest.param("launched torchrun", marks=pytest.mark.slow)])
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


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("stage", DATA)
def test_at_random_moments(terminal: Terminal, stage: str, launcher: str) -> None:
    """Moments of a whole run, each in a folder of its own; what is left is resumed twice."""
    steps = ["--max_steps", "12", "--save_steps", "3"]
    base = terminal.folder
    whole = Terminal(terminal.model, terminal.data, base / "whole", terminal.starter)
    with whole.start(launcher, stage, *steps, slow="step=0.1,save=0.3") as seen:
        began = time.monotonic()
        assert seen.wait_until(lambda: "NOW begin" in seen.output, 300), seen.output[-3000:]
        loading, began = time.monotonic() - began, time.monotonic()
        assert seen.wait(400) == 0, seen.output[-3000:]
        working = time.monotonic() - began
    found: dict[str, int] = {}
    for number in range(FIRST, LAST):
        chance = random.Random(f"{stage} {launcher} {number}")
        one = Terminal(terminal.model, terminal.data, base / str(number), terminal.starter)
        with one.start(launcher, stage, *steps, slow="step=0.1,save=0.3") as seen:
            if number % 3:  # two thirds once it trains, in which little of the time is spent
                seen.wait_until(lambda seen=seen: "NOW begin" in seen.output, 300)
            # From 2 s on: in the first instants Python itself starts.
            moment = chance.uniform(0, working) if number % 3 else chance.uniform(2.0, max(3.0, loading))
            seen.wait_until(lambda seen=seen: seen.code is not None, moment)
            seen.ctrl_c()
            seen.wait(90)
            state = stopped_well(one, seen, launcher)
        found[state] = found.get(state, 0) + 1
        if state == "checkpoint" and found[state] <= 2:
            with one.start(launcher, stage, *steps, "--resume_from_checkpoint", "auto") as seen:
                assert seen.wait(400) == 0, seen.output[-3000:]
            if stage != "rl":  # answers are drawn anew where a run was resumed in the middle of a generation
                assert figures(one.output) == figures(whole.output)
    print(f"INTERRUPTS {stage} {launcher}: {found}")


def figures(output: Path) -> list[dict[str, float]]:
    """Loss, tokens and rate of every step, and the mean loss."""
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    kept = ("step", "loss", "num_tokens", "learning_rate", "train_loss")
    return [{name: entry[name] for name in kept if name in entry} for entry in history]
