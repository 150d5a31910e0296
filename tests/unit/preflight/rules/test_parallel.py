"""Tensor, expert and sequence parallelism are refused where they would be wrong, with the reason and the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, MixtralConfig, Qwen2Config

from hftune.arguments.entry import parse_arguments
from hftune.distributed import ranks
from hftune.models.loading.config import model_config
from hftune.preflight.facts import resolve
from hftune.preflight.rules.model import check_tiling
from hftune.preflight.rules.parallel import check_architecture, check_expert_model, check_parallel
from tests.architectures import make_config
from tests.unit.preflight import said

ZERO = {stage: f'{{"zero_optimization": {{"stage": {stage}}}}}' for stage in range(4)}


def zero(**more: Any) -> str:
    return json.dumps({"zero_optimization": {"stage": 2} | more})


def saved(folder: Path, name: str, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    make_config(name, **changes).save_pretrained(folder)
    return folder


def problems(model: Path, *flags: str, stage: str = "sft", processes: int = 2) -> str:
    rules = (check_parallel, check_tiling)
    return said.problems(model, "--report_to", "none", *flags, stage=stage, rules=rules, processes=processes)


TENSOR = ("--tensor_parallel_size", "2")
EXPERT = ("--expert_parallel_size", "2")


@pytest.mark.parametrize(
    ("name", "stage"),
    [("llama", 0), ("qwen2", 1), ("qwen3", 2), ("mistral", 3), ("gemma2", 0), ("phi", 1), ("ernie4_5", 2)],
)
def test_tensor_parallelism_is_allowed(tmp_path: Path, name: str, stage: int) -> None:
    assert problems(saved(tmp_path / name, name), *TENSOR, "--deepspeed", ZERO[stage]) == ""


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"])
def test_expert_parallelism_is_allowed(tmp_path: Path, name: str) -> None:
    model = saved(tmp_path / name, name)
    for stage in (1, 2, 3):
        assert problems(model, *EXPERT, "--deepspeed", ZERO[stage]) == ""


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ((), ["no config for it was given", "--deepspeed zero1"]),
        (("--deepspeed", zero(), "--use_peft"), ["--use_peft: AutoTP does not know the adapters", "--deepspeed zero3"]),
        (("--deepspeed", zero(), "--qlora"), ["AutoTP shares no packed weights", "--deepspeed zero3"]),
        (("--deepspeed", zero(), "--expert_parallel_size", "2"), ["tensor parallelism and expert parallelism at once"]),
    ],
)
def test_tensor_parallelism_is_refused(tmp_path: Path, flags: tuple[str, ...], parts: list[str]) -> None:
    found = problems(saved(tmp_path / "llama", "llama"), *TENSOR, *flags, processes=4)
    for part in ("--tensor_parallel_size", *parts):
        assert part in found


@pytest.mark.parametrize("flag", [TENSOR, EXPERT])
@pytest.mark.parametrize("stage", ["dpo", "rm", "rl"])
def test_other_stages_are_refused(tmp_path: Path, stage: str, flag: tuple[str, str]) -> None:
    model = saved(tmp_path / "model", "mixtral" if flag == EXPERT else "llama")
    rewards = ("--reward_funcs", "accuracy") if stage == "rl" else ()
    found = problems(model, *flag, "--deepspeed", zero(), *rewards, stage=stage)
    assert "is for pre-training and fine-tuning: reward models, DPO and RL hold further models" in found
    assert "--deepspeed zero3" in found


@pytest.mark.parametrize(
    ("name", "changes", "parts"),
    [
        ("phi3", {}, ["a phi3 model has layers that AutoTP cannot split", "qkv_proj"]),
        ("mixtral", {}, ["experts", "--expert_parallel_size shares experts"]),
        ("llama", {"num_key_value_heads": 1}, ["1 key-value heads cannot be shared evenly by 2", "zero3"]),
        ("llama", {"intermediate_size": 63}, ["63 neurons cannot be shared"]),
    ],
)
def test_models_that_cannot_be_split(tmp_path: Path, name: str, changes: dict[str, Any], parts: list[str]) -> None:
    found = problems(saved(tmp_path / name, name, **changes), *TENSOR, "--deepspeed", zero())
    for part in parts:
        assert part in found


def test_the_sizes_that_fit_are_named(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", "llama", num_attention_heads=8, num_key_value_heads=4)
    found = problems(model, "--tensor_parallel_size", "3", "--deepspeed", zero(), processes=3)
    assert "8 attention heads and 4 key-value heads and 64 neurons cannot be shared evenly by 3 processes" in found
    assert "use 2 or 4" in found


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ((), ["no config for it was given", "zero1, zero2 or zero3"]),
        (("--deepspeed", ZERO[0]), ["measures and clips the gradients of each process's experts alone"]),
        (("--deepspeed", zero(), "--use_peft"), ["--use_peft: AutoEP does not know"]),
        (("--deepspeed", zero(), "--qlora"), ["AutoEP shares no packed"]),
    ],
)
def test_expert_parallelism_is_refused(tmp_path: Path, flags: tuple[str, ...], parts: list[str]) -> None:
    found = problems(saved(tmp_path / "mixtral", "mixtral"), *EXPERT, *flags)
    for part in ("--expert_parallel_size", *parts):
        assert part in found


@pytest.mark.parametrize(
    ("config", "size", "parts"),
    [
        (MixtralConfig(num_local_experts=8), 4, []),
        (MixtralConfig(hidden_act="swish"), 2, []),
        (Qwen2Config(), 2, ["does not train the layers of a qwen2 model", "mixtral"]),
        (MixtralConfig(num_local_experts=6), 4, ["6 experts cannot be shared evenly by 4", "use 2 or 3 or 6"]),
        (MixtralConfig(router_jitter_noise=0.1), 2, ["router_jitter_noise 0.1", "set it to 0"]),
        (MixtralConfig(hidden_act="gelu"), 2, ["hidden_act gelu", "AutoEP's experts compute silu"]),
    ],
)
def test_models_of_experts(config: Any, size: int, parts: list[str]) -> None:
    found = "\n".join(map(str, check_expert_model(config, size)))
    assert all(part in found for part in parts) and bool(found) == bool(parts)


def test_experts_that_are_frozen(tmp_path: Path) -> None:
    """Some may be, but under ZeRO-3."""
    model, frozen = saved(tmp_path / "mixtral", "mixtral"), ("--freeze_parameters_regex", "experts")
    found = problems(model, *EXPERT, *frozen, "--deepspeed", ZERO[1])
    assert "all experts are frozen" in found and "train some of them" in found
    for flags in (frozen, ("--freeze_parameters", "model.layers.0")):
        found = problems(model, *EXPERT, *flags, "--deepspeed", ZERO[3])
        assert "ZeRO-3 leaves out of checkpoints" in found and "--deepspeed zero2" in found
    assert problems(model, *EXPERT, "--freeze_parameters", "model.embed_tokens", "--deepspeed", ZERO[3]) == ""
    assert problems(model, *EXPERT, "--freeze_parameters", "model.layers.0", "--deepspeed", ZERO[2]) == ""


TWO = ["--sequence_parallel_size", "2"]


@pytest.mark.long
@pytest.mark.parametrize("stage", ["pt", "sft"])
@pytest.mark.parametrize("flags", [[], ["--packing", "True"], ["--use_peft"], ["--tiled_mlp"]])
def test_rows_that_are_shared(tiny_model: Path, stage: str, flags: list[str]) -> None:
    assert problems(tiny_model, *TWO, *flags, stage=stage) == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "flags", "parts"),
    [
        ("dpo", [], ["fine-tuning: the losses of preferences", "whole answers", "--deepspeed zero3"]),
        ("rm", [], ["the losses of preferences"]),
        ("rl", ["--reward_funcs", "length"], ["reinforcement learning"]),
        ("rl", ["--reward_funcs", "length", "--rl_algorithm", "ppo"], ["reinforcement learning"]),
        ("sft", ["--padding_free", "False"], ["--padding_free False: rows with padding are not shared"]),
        ("pt", ["--streaming", "--max_steps", "2"], ["a stream gives every process records of its own"]),
        ("sft", ["--flash_attn"], ["--flash_attn: it would let", "hftune_ulysses exchanges heads"]),
    ],
)
def test_rows_that_are_not_shared(tiny_model: Path, stage: str, flags: list[str], parts: list[str]) -> None:
    found = problems(tiny_model, *TWO, *flags, stage=stage)
    assert "--sequence_parallel_size" in found
    assert all(part in found for part in parts), found


@pytest.mark.long
def test_other_degrees_of_sharing(tiny_model: Path) -> None:
    found = problems(tiny_model, *TWO, "--tensor_parallel_size", "2", stage="pt", processes=4)
    assert "tensor parallelism and sequence parallelism at once were not found right" in found


def test_too_few_processes(tiny_model: Path) -> None:
    assert "do not divide into groups of 2" in problems(tiny_model, *TWO, stage="pt", processes=3)


@pytest.mark.parametrize(
    ("config", "size", "reason"),
    [
        ({"model_type": "mamba"}, 2, "whose past is more than the attention mask says"),
        ({"model_type": "qwen3_next"}, 2, "linear_attention"),
        ({"model_type": "llama4_text"}, 2, "chunked attention"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 2, "stretch by"),
        ({"model_type": "llama", "num_attention_heads": 4}, 8, "its 4 heads of attention do not suffice"),
    ],
)
def test_architectures(tmp_path: Path, config: dict, size: int, reason: str) -> None:
    AutoConfig.for_model(**config).save_pretrained(tmp_path)
    flags = ["--model_name_or_path", str(tmp_path), "--output_dir", "o", "--sequence_parallel_size", str(size)]
    with ranks.planning_for(ranks.PlannedWorld(size, size, on_cpu=True, bf16=False)):
        model_args, _, _, training_args = parse_arguments("pt", flags)
    (problem,) = check_architecture(model_config(model_args, training_args), size)
    assert f"cannot be shared by {size} processes" in str(problem) and reason in str(problem)


def test_tiling(tiny_model: Path, tmp_path: Path) -> None:
    assert "pre-training and fine-tuning only" in problems(tiny_model, "--tiled_mlp", stage="dpo", processes=1)
    flags = ["--tiled_mlp", "--activation_checkpointing", "mlp"]
    assert "recomputes the MLPs already" in problems(tiny_model, *flags, stage="sft", processes=1)
    (tmp_path / "rows.yaml").write_text("max_length: null\n")
    flags = ["--tiled_mlp", "--config", str(tmp_path / "rows.yaml")]
    assert "give --max_length" in problems(tiny_model, *flags, stage="sft", processes=1)
    make_config("mixtral").save_pretrained(tmp_path)
    assert "has no MLPs whose input could be cut" in problems(tmp_path, "--tiled_mlp", stage="pt", processes=1)


def test_rows_lie_side_by_side(tiny_model: Path) -> None:
    """Whatever the machine's attention prefers without: a slice is one of a row without padding."""
    cases = {("sft",): True, ("sft", "--packing"): False, ("pt",): False, ("pt", "--cross_document_attention"): True}
    for (stage, *flags), padding_free in cases.items():
        with ranks.planning_for(ranks.PlannedWorld(2, 2, on_cpu=True, bf16=False)):
            argv = ["--model_name_or_path", str(tiny_model), "--output_dir", "not-there", *TWO, *flags]
            facts = resolve(stage, parse_arguments(stage, argv))
        args = facts.training_args
        assert (args.padding_free, args.flat_batches) == (padding_free, True)
