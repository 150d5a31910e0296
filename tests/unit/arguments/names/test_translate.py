"""Files and command lines of other tools as a whole: what wins, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune import logging
from hftune.arguments.entry import parse_arguments
from hftune.arguments.names.translate import Entry
from hftune.arguments.raw_arguments import COMMAND_LINE
from hftune.arguments.stages import stage_parser

ERNIE_YAML = (Path(__file__).parents[1] / "lists" / "erniekit.yaml").read_text(encoding="utf-8")


def test_a_yaml_file_of_erniekit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    file = tmp_path / "ernie.yaml"
    file.write_text(ERNIE_YAML)
    entries = stage_parser("sft").translate(["--config", str(file)])
    assert [entry.values for entry in entries if entry.name == "deepspeed"] == [["zero2_offload"]]

    file.write_text(
        "".join(line for line in ERNIE_YAML.splitlines(True) if "sharding" not in line and "offl" not in line)
    )
    model, records, adapter, training = parse_arguments("sft", ["--config", str(file), "--seed", "5", "--use_cpu"])
    assert (model.model_name_or_path, records.train_file_dir) == ("m", "./sft-train.jsonl")
    assert training.per_device_eval_batch_size == 1
    assert (adapter.use_peft, adapter.lora_r, adapter.lora_alpha, adapter.use_rslora) == (True, 32, 128, True)
    assert (training.max_length, training.seed, training.bf16) == (8192, 5, True)
    assert training.gradient_checkpointing is False
    said = " ".join(logging.notices())
    assert all(f"--{name} has no effect" in said for name in ("sequence_parallel", "release_grads", "amp_master_grad"))


def test_the_command_line_counts_over_a_file_whatever_the_names(tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("sharding: stage1\nlora_rank: 4\nbatch_size: 8\nglobal_batch_size: 16\nmicro_batch_size: 2\n")

    def given(*argv: str) -> dict[str, list[object]]:
        entries: list[Entry] = stage_parser("sft").translate(["--config", str(file), *argv])
        return {entry.name: entry.values for entry in entries}

    assert given("--deepspeed", "zero3.json")["deepspeed"] == ["zero3.json"]
    assert given("--lora_r", "16")["lora_r"] == ["16"]
    assert given("--per_device_train_batch_size", "4")["gradient_accumulation_steps"] == ["4"]
    assert given("--micro_batch_size", "1")["gradient_accumulation_steps"] == ["16"]


def test_a_file_that_contradicts_itself_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    entries = stage_parser("sft").translate(["--recompute", "True", "--gradient_checkpointing", "False"])
    assert [(entry.values, entry.place) for entry in entries] == [(["False"], COMMAND_LINE)]
    assert "--gradient_checkpointing counts; --recompute" in logging.notices()[0]


def test_two_names_for_the_same_are_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    entries = stage_parser("sft").translate(["--tuner_type", "lora", "--fine_tuning", "full"])
    assert [entry.values for entry in entries] == [["True"]]
    assert len(logging.notices()) == 1


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("--attention_backend flash", {"flash_attn": "True"}),
        ("--attention_backend auto", {}),
        ("--attention_backend flash_3", {"attn_implementation": "flash_attention_3"}),
        ("--optimizer sgd --sgd_momentum 0.5", {"sgd_momentum": "0.5", "optim": "sgd"}),
        ("--lr_decay_style inverse-square-root", {"lr_scheduler_type": "inverse_sqrt"}),
        ("--tensor_parallel_degree -1 --sequence_parallel True", {"tensor_parallel_size": "1"}),
        ("--fsdp_activation_checkpointing False --selective_checkpointing 1", {"gradient_checkpointing": "False"}),
        ("--selective_checkpointing 1/2", {"activation_checkpointing_layers": "1/2"}),
        ("--expert_model_parallel_size 0", {"expert_parallel_size": "1"}),
        ("--ignore_empty_think True --disable_ignore_empty_think True", {"empty_thoughts": "train"}),
        ("--add_non_thinking_prefix False --disable_ignore_empty_think True", {"empty_thoughts": "drop"}),
        ("--add_non_thinking_prefix True --ignore_empty_think True", {}),
        ("--train_from_scratch False --use_swanlab False", {}),  # no value is none, and does not switch on
    ],
)
def test_values_that_are_others_here(command: str, found: dict[str, str]) -> None:
    arrived = stage_parser("sft").translate(command.split())
    assert {entry.name: " ".join(map(str, entry.values)) for entry in arrived} == found


@pytest.mark.parametrize("flags", [["--lora_r", "8", "--lora_r", "16"], ["--optim", "adam", "--optim", "lion"]])
def test_a_name_given_twice_is_said(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a function has to translate its values."""
    monkeypatch.setattr(logging, "_notices", [])
    assert len(stage_parser("sft").translate(flags)) == 1
    assert [said.partition(" (")[0] for said in logging.notices()] == [f"{flags[0]} was given twice"]
