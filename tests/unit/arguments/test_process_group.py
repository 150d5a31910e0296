"""Arguments are made without meeting the other processes, of which they know the number; a run meets them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch.distributed as dist
from transformers.integrations.deepspeed import deepspeed_config, is_deepspeed_zero3_enabled

from hftune.arguments.entry import parse_arguments
from tests.forks import fork_and_wait, free_port

COMMON = ["--model_name_or_path", "m", "--output_dir", "o", "--use_cpu", "True", "--report_to", "none"]


def of_a_launcher(world: str) -> dict[str, str]:
    """Variables of the first of several processes."""
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29871"}
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world} | places


ZERO3 = ["--deepspeed", "zero3"]


@pytest.mark.parametrize(("stage", "config"), [("pt", []), ("pt", ZERO3), ("sft", ZERO3), ("rl", ZERO3)])
def test_making_arguments_joins_nothing(stage: str, config: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of a launcher's, whose neighbours never come: joining would wait for them."""
    for name, value in of_a_launcher("2").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: pytest.fail("joined"))
    args = parse_arguments(stage, [*COMMON, *config]).training
    assert args.world_size == 2 and "_setup_devices" not in vars(args)
    # What from_pretrained looks for lives as long as the arguments.
    assert is_deepspeed_zero3_enabled() == bool(config)
    micro = args.per_device_train_batch_size * args.gradient_accumulation_steps
    assert not config or deepspeed_config()["train_batch_size"] == micro * 2
    del args
    assert not is_deepspeed_zero3_enabled()


def test_a_run_joins(tmp_path: Path) -> None:
    def work() -> None:
        os.environ.update(of_a_launcher("1"), MASTER_PORT=str(free_port()))
        args = parse_arguments("sft", [*COMMON, "--deepspeed", "zero3"]).training
        args.join_process_group()
        assert dist.is_initialized() and dist.get_backend() == "gloo" and dist.get_world_size() == 1
        assert args.device.type == "cpu" and args.process_index == 0 and is_deepspeed_zero3_enabled()

    assert fork_and_wait(work, tmp_path / "log", 1) == 0, (tmp_path / "log").read_text()


def test_who_asks_for_the_device_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[bool] = []
    args = parse_arguments("sft", ["--model_name_or_path", "m", "--output_dir", "o", "--use_cpu", "True"]).training
    monkeypatch.setattr("hftune.distributed.launch.join_process_group", lambda **_: joined.append(True))
    assert args.device.type == "cpu" and args.device.type == "cpu"
    assert joined == [True], "once"
