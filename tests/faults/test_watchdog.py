"""A hang, a death, an error of one rank: named on the others, in one message, with a non-zero exit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Finished

TIMEOUT = 5


@pytest.fixture
def harmed(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Finished]:
    """SFT on two ranks, the last of which comes to harm before the fifth step; forked unless a launcher is named."""

    def start(harm: str, *flags: str, launcher: str = "", timeout: float = TIMEOUT) -> Finished:
        monkeypatch.setenv("HARM", harm)
        return run(
            "tests/faults/hanging_sft.py",
            *("--model_name_or_path", str(tiny_model), "--train_file_dir", str(tiny_data / "sft")),
            *("--output_dir", str(tmp_path / "out"), "--max_steps", "6", "--per_device_train_batch_size", "2"),
            *("--save_strategy", "no", "--report_to", "none", "--gradient_checkpointing", "False"),
            *("--use_cpu", "True", "--hang_timeout", str(timeout), *flags),
            **({"launcher": launcher} if launcher else {"launcher": "forked 2", "warm": True}),
        )

    return start


def messages(output: str) -> list[str]:
    """What the ranks said, each from `error:` to the empty line."""
    return re.findall(r"^((?:\[rank \d+\] )?error: .*?)\n\n", output, re.MULTILINE | re.DOTALL)


def harm_at(output: str) -> float:
    found = re.search(r"HARM ([\d.]+)", output)
    assert found, output[-3000:]
    return float(found[1])


@pytest.mark.parametrize("launcher", ["", pytest.param("deepspeed --num_gpus 2", marks=pytest.mark.slow)])
def test_a_planted_hang_is_named(harmed: Callable[..., Finished], launcher: str) -> None:
    finished = harmed("sleep", "--deepspeed", "ds_configs/zero2.json", launcher=launcher)
    assert time.time() - harm_at(finished.output) < TIMEOUT + 120, "and the launcher is done soon after it"
    assert finished.code == 76, finished.output[-3000:]
    said = messages(finished.output)
    assert {message.startswith("[rank 1]") for message in said} == {True, False}, "each rank says it"
    for message in said:
        assert re.search(r"the run hangs: rank 1 on \S+ at step 4, forward, for \d+ s; 1 other process", message)
        assert "where: hanging_sft.py" in message and "nothing_for_an_hour" in message
        assert re.search(r"^ +rank 0 on .* in \w+, ", message, re.MULTILINE), "what rank 0 waits in"
        assert "time.sleep(3600)" in message, "the stack of the rank that is behind"


def test_a_killed_rank_is_named_at_once(harmed: Callable[..., Finished]) -> None:
    finished = harmed("kill", timeout=600)
    assert time.time() - harm_at(finished.output) < 300, "long before the time-out"
    assert finished.code != 0
    (message,) = messages(finished.output)
    assert message.startswith("error: lost rank 1 on ") and "--resume_from_checkpoint auto" in message
    assert "Traceback" not in finished.output, "not gloo's"


def test_the_error_of_one_rank_is_told_by_the_other(harmed: Callable[..., Finished]) -> None:
    finished = harmed("raise", timeout=600)
    (message,) = messages(finished.output)
    assert re.match(r"error: rank 1 on \S+ has stopped at step 4, forward: KeyError: 'no such key'", message)
    assert finished.output.count("Traceback (most recent call last)") == 1, "that of rank 1 only"
