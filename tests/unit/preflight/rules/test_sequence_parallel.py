"""What sequence parallelism and tiling cannot do is refused before a model loads, each with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoConfig

from hftune.arguments.entry import parse_arguments
from hftune.distributed.ranks import PlannedWorld, planning_for
from hftune.errors import UserError
from hftune.models.loading.config import model_config
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import RowLayout, resolve
from hftune.preflight.rules.sequence_parallel import check_architecture
from tests.architectures import make_config

pytestmark = pytest.mark.long

TWO = ["--sequence_parallel_size", "2"]


def problems(model: Path, stage: str, *flags: str, processes: int = 2) -> str:
    argv = ["--model_name_or_path", str(model), "--train_file_dir", ".", "--output_dir", "not-there"]
    with planning_for(PlannedWorld(processes, processes, on_cpu=True, bf16=False)):
        try:
            check_run(resolve(stage, parse_arguments(stage, [*argv, "--report_to", "none", *flags])))
        except UserError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("stage", ["pt", "sft"])
@pytest.mark.parametrize("flags", [[], ["--packing", "True"], ["--use_peft"], ["--tiled_mlp"]])
def test_nothing_to_say(tiny_model: Path, stage: str, flags: list[str]) -> None:
    assert problems(tiny_model, stage, *TWO, *flags) == ""


@pytest.mark.parametrize(
    ("stage", "flags", "parts"),
    [
        (
            "dpo",
            [],
            ["fine-tuning: the losses of preferences", "whole answers", "--deepspeed zero3"],
        ),
        ("rm", [], ["the losses of preferences"]),
        ("rl", ["--reward_funcs", "length"], ["reinforcement learning"]),
        ("rl", ["--reward_funcs", "length", "--rl_algorithm", "ppo"], ["reinforcement learning"]),
        ("sft", ["--padding_free", "False"], ["rows with padding are not shared", "--padding_free False"]),
        ("pt", ["--streaming", "--max_steps", "2"], ["a stream gives every process records of its own"]),
        (
            "sft",
            ["--train_sampling_strategy", "batch_rebalance"],
            ["batch_rebalance gives rows to single processes, not to groups"],
        ),
        ("pt", ["--accelerator_config", '{"split_batches": true}'], ["split_batches gives rows to single processes"]),
        ("pt", ["--label_smoothing_factor", "0.1"], ["label smoothing takes the logits of whole rows"]),
        ("pt", ["--average_tokens_across_devices", "False"], ["each process would divide by its own"]),
        ("sft", ["--torch_compile"], ["--torch_compile puts code of its own", "with slices of rows"]),
        ("sft", ["--attn_implementation", "sdpa"], ["sdpa would let the tokens of a slice see that slice only"]),
        ("sft", ["--flash_attn"], ["flash_attention would let", "hftune_ulysses exchanges heads"]),
    ],
)
def test_what_cannot_work(tiny_model: Path, stage: str, flags: list[str], parts: list[str]) -> None:
    said = problems(tiny_model, stage, *TWO, *flags)
    assert "--sequence_parallel_size" in said
    assert all(part in said for part in parts), said


def test_other_degrees_of_sharing(tiny_model: Path) -> None:
    said = problems(tiny_model, "pt", *TWO, "--tensor_parallel_size", "2", processes=4)
    assert "tensor parallelism and sequence parallelism at once were not found right" in said


def test_too_few_processes(tiny_model: Path) -> None:
    assert "do not divide into groups of 2" in problems(tiny_model, "pt", *TWO, processes=3)


@pytest.mark.parametrize(
    ("config", "size", "reason"),
    [
        ({"model_type": "mamba"}, 2, "whose past is more than the attention mask says"),
        ({"model_type": "qwen3_next"}, 2, "linear_attention"),
        ({"model_type": "llama4_text"}, 2, "chunked attention"),
        ({"model_type": "llama", "num_attention_heads": 4}, 8, "its 4 heads of attention do not suffice"),
    ],
)
def test_architectures(tmp_path: Path, config: dict, size: int, reason: str) -> None:
    AutoConfig.for_model(**config).save_pretrained(tmp_path)
    flags = ["--model_name_or_path", str(tmp_path), "--output_dir", "o", "--sequence_parallel_size", str(size)]
    with planning_for(PlannedWorld(size, size, on_cpu=True, bf16=False)):
        model_args, _, _, training_args = parse_arguments("pt", flags)
    (problem,) = check_architecture(model_config(model_args, training_args), training_args)
    assert f"cannot be shared by {size} processes" in str(problem) and reason in str(problem)


def test_tiling(tiny_model: Path, tmp_path: Path) -> None:
    assert "pre-training and fine-tuning only" in problems(tiny_model, "dpo", "--tiled_mlp", processes=1)
    flags = ["--tiled_mlp", "--activation_checkpointing", "mlp"]
    assert "recomputes the MLPs already" in problems(tiny_model, "sft", *flags, processes=1)
    make_config("mixtral").save_pretrained(tmp_path)
    assert "has no MLPs whose input could be cut" in problems(tmp_path, "pt", "--tiled_mlp", processes=1)


def test_rows_lie_side_by_side(tiny_model: Path) -> None:
    """Whatever the machine's attention prefers without: a slice is one of a row without padding."""
    cases = {("sft",): True, ("sft", "--packing"): False, ("pt",): False, ("pt", "--cross_document_attention"): True}
    for (stage, *flags), padding_free in cases.items():
        with planning_for(PlannedWorld(2, 2, on_cpu=True, bf16=False)):
            argv = ["--model_name_or_path", str(tiny_model), "--output_dir", "not-there", *TWO, *flags]
            facts = resolve(stage, parse_arguments(stage, argv))
        assert facts.rows == RowLayout(padding_free, side_by_side=True, shared_prompts=False)
