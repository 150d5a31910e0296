"""`hftune plan` in this process: devices, candidates, what fits, JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.cli import dispatch
from hftune.distributed import ranks
from hftune.errors import ArgumentError
from hftune.preflight.devices import DEVICES
from hftune.preflight.memory import GIB
from hftune.tools.planning import command
from hftune.tools.planning.cluster import cluster_of, steps_of
from hftune.tools.planning.command import take_own

pytestmark = pytest.mark.long

SIZES = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
"""Llama-3.2-1B's: 1.24B weights."""

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config and nothing else."""
    from transformers import LlamaConfig

    folder = tmp_path_factory.mktemp("llama-1b")
    LlamaConfig(**SIZES).save_pretrained(folder)
    return folder


@pytest.fixture
def ask(model: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    def ask(stage: str, *flags: str) -> dict[str, Any]:
        dispatch(["plan", f"run_{stage}", "--model_name_or_path", str(model), "--json", *flags])
        found: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        return found

    return ask


@pytest.fixture
def by_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is traced, which takes seconds a row."""
    monkeypatch.setattr(command, "traced_step", None)


def choice(found: dict[str, Any], flags: str = "as asked") -> dict[str, Any]:
    return next(one for one in found["choices"] if one["flags"] == flags)


def test_full_training_on_one_large_gpu(ask: Ask) -> None:
    found = ask(
        "sft", "--gpus", "H200", "--max_length", "2048", "--per_device_train_batch_size", "4", "--max_steps", "9"
    )
    asked = choice(found)
    parts = asked["parts"]
    # Float32: 4 bytes a weight and 8 of Adam, of 1,235,814,400 weights. Gradients grow in the backward pass.
    assert parts["weights"] == 4 * 1_235_814_400 and parts["optimizer"] == 8 * 1_235_814_400
    assert asked["verdict"] == "fits" and asked["traced"] and found["steps"] == 9
    assert asked["tokens_per_step"] == 4 * 2048
    assert choice(found, "--activation_checkpointing none")["peak"] > asked["peak"]
    assert found["cheapest"] == asked
    assert choice(found, "--use_peft")["peak"] < asked["peak"]
    assert choice(found, "--qlora")["parts"]["weights"] < choice(found, "--use_peft")["parts"]["weights"]


@pytest.mark.usefixtures("by_formula")
def test_a_small_gpu_needs_another_way(ask: Ask) -> None:
    found = ask("sft", "--gpus", "T4", "--max_length", "2048", "--per_device_train_batch_size", "4")
    assert choice(found)["verdict"] == "too much"
    cheapest = found["cheapest"]
    assert cheapest["fits"] and cheapest["flags"] != "as asked"
    assert cheapest["micro_batch"] * cheapest["accumulation"] == 4  # the same global batch
    # The least change: what alone fits is not proposed with more.
    alone = [one["flags"] for one in found["choices"] if one["fits"]]
    assert not [flags for flags in alone if flags in cheapest["flags"] and flags != cheapest["flags"]]


@pytest.mark.usefixtures("by_formula")
def test_zero_stages_share_out(ask: Ask) -> None:
    found = ask("sft", "--gpus", "8xA100-80", "--nodes", "2", "--deepspeed", "zero2")
    assert (found["devices"], found["nodes"]) == (16, 2)
    asked, third = choice(found), choice(found, "--deepspeed zero3")
    weights = 1_235_814_400
    assert asked["parts"]["weights"] == 2 * weights and asked["parts"]["optimizer"] == 12 * weights / 16
    assert third["parts"]["weights"] == 2 * weights / 16
    offloaded = choice(found, "--deepspeed zero3_offload")
    assert offloaded["parts"]["optimizer"] == 0 and offloaded["host"] > third["host"]


@pytest.mark.usefixtures("by_formula")
def test_dpo_has_a_reference_and_two_rows_a_pair(ask: Ask) -> None:
    flags = ("--gpus", "H100", "--per_device_train_batch_size", "2", "--max_length", "1024")
    full, lora = ask("dpo", *flags, "--precompute_ref_log_probs", "False"), ask("dpo", *flags, "--use_peft")
    assert choice(full)["parts"]["weights"] == 2 * 4 * 1_235_814_400
    assert choice(full)["tokens_per_step"] == 2 * 2 * 1024
    # Left out, the reference is computed once before: no second model.
    assert choice(ask("dpo", *flags))["parts"]["weights"] == 4 * 1_235_814_400
    assert choice(lora)["parts"]["weights"] < 2.1 * 1_235_814_400


@pytest.mark.usefixtures("by_formula")
def test_rl_draws_completions(ask: Ask) -> None:
    found = ask("rl", "--gpus", "H100", "--use_peft", "--max_prompt_length", "256", "--max_completion_length", "128")
    assert choice(found)["tokens_per_step"] == 8 * (256 + 128)


@pytest.mark.usefixtures("by_formula")
def test_preparing_and_reward_models_are_planned(ask: Ask) -> None:
    flags, logits = ("pt", "--gpus", "H100", "--block_size", "4096"), 8 * 4096 * 128256 * 4
    packed, smoothed = ask(*flags), ask(*flags, "--label_smoothing_factor", "0.1")
    # Logits of 8 x 4,096 tokens x 128,256 words in float32 exist a chunk at a time; smoothing wants all of them.
    assert choice(packed)["parts"]["activations"] + choice(packed)["parts"]["loss"] < logits
    assert choice(smoothed)["parts"]["activations"] > 2 * logits
    scores = ask("rm", "--gpus", "H100", "--max_length", "512")
    assert choice(scores)["parts"]["loss"] == 0


@pytest.mark.usefixtures("by_formula")
def test_a_table_with_flags_to_type(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["plan", "sft", "--model_name_or_path", str(model), "--gpus", "2x24GiB", "--max_length", "1024"])
    shown = capsys.readouterr().out
    assert "as asked" in shown and "--deepspeed zero3_offload" in shown and "too much" in shown
    assert "the least change that fits, to be added to the command line: " in shown
    assert "steps unknown: no data were named" in shown
    assert ranks.planned_world() is None and ranks.world_size() == 1


def test_help_needs_no_library(capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["plan", "--help"])
    shown = capsys.readouterr().out
    assert "--gpus 8xH200" in shown and all(name in shown for name in DEVICES)


@pytest.mark.parametrize(
    ("asked", "said"),
    [("8xH20", "H20 is no device that hftune knows"), ("0xH200", "no device at all"), ("H20O", "did you mean H200")],
)
def test_unknown_devices(asked: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        cluster_of(asked)


def test_devices() -> None:
    found = cluster_of("8 x h200", nodes=2)
    assert (found.count, found.device.name) == (16, "H200") and str(found).startswith("2 nodes of 8 x H200")
    assert cluster_of("4x24GiB").device.memory == 24 * GIB
    assert cluster_of("A100").device.name == "A100-80" and not cluster_of("T4").device.bf16
    assert take_own(["--gpus=H100", "--x", "1", "--nodes", "3", "--json"])[1] == ["--x", "1"]
    with pytest.raises(ArgumentError, match="--gpus: expected one argument"):
        take_own(["--gpus", "--json"])
    for nodes in ("many", "0", "-1", "\N{SUPERSCRIPT TWO}", "9" * 5000):
        with pytest.raises(ArgumentError, match="--nodes: a number from 1 to 999999, not"):
            take_own(["--nodes", nodes])


def test_steps(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' * 70 + "\n")
    flags = ["--output_dir", "o", "--num_train_epochs", "3"]
    *_, sft = parse_arguments("sft", flags)
    data = DataArguments(train_file_dir=str(tmp_path))
    split = data.validation_split_percentage
    wanted = -(-round(70 * (1 - split / 100)) // 16) * 3
    assert steps_of(data, sft, 16).count == wanted
    # 500 records of one source and all of another, whether or not they are as many.
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "c.jsonl").write_text("{}\n" * 20)
    several = DataArguments(train_file_dir=f"{tmp_path}/a.jsonl#500,{tmp_path}/more/c.jsonl")
    assert steps_of(several, sft, 16).because == "520 records, one a line"
    shutil.rmtree(tmp_path / "more")
    *_, packed = parse_arguments("sft", [*flags, "--packing"])
    assert steps_of(data, packed, 16).count is None
    (tmp_path / "b.json").write_text("[]")
    assert "only the lines of .jsonl" in steps_of(data, sft, 16).because
    *_, few = parse_arguments("sft", [*flags, "--max_steps", "5"])
    assert steps_of(data, few, 16).count == 5
