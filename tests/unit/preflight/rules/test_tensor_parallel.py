"""Tensor and expert parallelism are refused where they would be wrong, each with the reason and the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.checkpoints.integrity import RECORD_NAME
from hftune.distributed import ranks
from hftune.preflight.facts import resolve
from hftune.preflight.rules.resume import check_groups
from hftune.preflight.rules.sharing import check_sharing
from tests.architectures import make_config

ZERO = {stage: f'{{"zero_optimization": {{"stage": {stage}}}}}' for stage in range(4)}


def zero(**more: Any) -> str:
    return json.dumps({"zero_optimization": {"stage": 2} | more})


def saved(folder: Path, name: str, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    make_config(name, **changes).save_pretrained(folder)
    return folder


def problems(model: Path, *flags: str, stage: str = "sft", processes: int = 2) -> str:
    argv = ["--model_name_or_path", str(model), "--output_dir", "o", "--train_file_dir", ".", *flags]
    # As a plan does: no process group is needed for what is only asked.
    with ranks.planning_for(ranks.PlannedWorld(processes, processes, on_cpu=True)):
        facts = resolve(stage, parse_arguments(stage, argv))
        found = [*check_sharing(facts), *check_groups(facts.checkpoint.folder, facts.training_args)]
    return "\n".join(map(str, found))


TENSOR = ("--tensor_parallel_size", "2")
EXPERT = ("--expert_parallel_size", "2")


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "phi", "ernie4_5"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
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
        (("--deepspeed", zero(), "--use_peft"), ["not the adapters next to them", "--use_peft --deepspeed zero3"]),
        (("--deepspeed", zero(), "--qlora"), ["packed 4-bit and 8-bit weights", "--qlora --deepspeed zero3"]),
        (("--deepspeed", zero(), "--do_eval"), ["nothing is trained", "leave it out to evaluate"]),
        (("--deepspeed", zero(), "--optim", "muon"), ["muon looks at a matrix as a whole", "--optim adamw_torch"]),
        (("--deepspeed", ZERO[0], "--optim", "adafactor"), ["adafactor looks at a matrix as a whole"]),
        (
            ("--deepspeed", zero(), "--train_sampling_strategy", "batch_rebalance"),
            ["batch_rebalance gives rows to single processes, not to groups"],
        ),
        (("--deepspeed", zero(), "--torch_compile"), ["--torch_compile puts code of its own"]),
        (("--deepspeed", zero(stage=3, zero_hpz_partition_size=2)), ["zero_hpz_partition_size was not found right"]),
        (("--deepspeed", zero(), "--expert_parallel_size", "2"), ["tensor parallelism and expert parallelism at once"]),
    ],
)
def test_tensor_parallelism_is_refused(tmp_path: Path, flags: tuple[str, ...], parts: list[str]) -> None:
    said = problems(saved(tmp_path / "llama", "llama"), *TENSOR, *flags, processes=4)
    for part in ("--tensor_parallel_size", *parts):
        assert part in said


@pytest.mark.parametrize("flag", [TENSOR, EXPERT])
@pytest.mark.parametrize("stage", ["dpo", "rm", "rl"])
def test_other_stages_are_refused(tmp_path: Path, stage: str, flag: tuple[str, str]) -> None:
    model = saved(tmp_path / "model", "mixtral" if flag == EXPERT else "llama")
    rewards = ("--reward_funcs", "accuracy") if stage == "rl" else ()
    said = problems(model, *flag, "--deepspeed", zero(), *rewards, stage=stage)
    assert "is for pre-training and fine-tuning: reward models, DPO and RL hold further models" in said
    assert "--deepspeed zero3" in said


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
    said = problems(saved(tmp_path / name, name, **changes), *TENSOR, "--deepspeed", zero())
    for part in parts:
        assert part in said


def test_the_sizes_that_fit_are_named(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", "llama", num_attention_heads=8, num_key_value_heads=4)
    said = problems(model, "--tensor_parallel_size", "3", "--deepspeed", zero(), processes=3)
    assert "8 attention heads and 4 key-value heads and 64 neurons cannot be shared evenly by 3 processes" in said
    assert "use 2 or 4" in said


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ((), ["no config for it was given", "zero1, zero2 or zero3"]),
        (("--deepspeed", ZERO[0]), ["measures and clips the gradients of each process's experts alone"]),
        (("--deepspeed", zero(), "--use_peft"), ["those with adapters", "--use_peft --deepspeed zero3"]),
        (("--deepspeed", zero(), "--qlora"), ["not quantised ones"]),
        (("--deepspeed", zero(), "--do_eval"), ["nothing is trained"]),
        (("--deepspeed", zero(offload_optimizer={"device": "cpu"})), ["offload_optimizer was not found right"]),
        (("--deepspeed", zero(), "--activation_checkpointing", "mlp"), ["--activation_checkpointing mlp does not"]),
        (("--deepspeed", zero(), "--hidden_dropout_prob", "0.1"), ["--hidden_dropout_prob does not reach"]),
        (("--deepspeed", zero(), "--optim", "muon"), ["--optim muon does not"]),
    ],
)
def test_expert_parallelism_is_refused(tmp_path: Path, flags: tuple[str, ...], parts: list[str]) -> None:
    said = problems(saved(tmp_path / "mixtral", "mixtral"), *EXPERT, *flags)
    for part in ("--expert_parallel_size", *parts):
        assert part in said


def test_a_config_that_shards_experts_by_itself(tmp_path: Path) -> None:
    block = {"zero_optimization": {"stage": 2}, "expert_parallel": {"enabled": True, "autoep_size": 2}}
    said = problems(saved(tmp_path / "mixtral", "mixtral"), "--deepspeed", json.dumps(block))
    assert "remove the block and use --expert_parallel_size" in said


def test_models_whose_experts_are_not_sharded(tmp_path: Path) -> None:
    said = problems(saved(tmp_path / "llama", "llama"), *EXPERT, "--deepspeed", zero())
    assert "layers of a llama model" in said and "mixtral" in said
    model = saved(tmp_path / "mixtral", "mixtral")
    said = problems(model, "--expert_parallel_size", "3", "--deepspeed", zero(), processes=3)
    assert "4 experts cannot be shared evenly by 3" in said and "use one of 2, 4" in said
    model = saved(tmp_path / "noisy", "mixtral", router_jitter_noise=0.1)
    assert "router_jitter_noise 0.1" in problems(model, *EXPERT, "--deepspeed", zero())
    model = saved(tmp_path / "gelu", "qwen3_moe", hidden_act="gelu")
    assert "experts compute gelu, AutoEP's silu" in problems(model, *EXPERT, "--deepspeed", zero())


def test_experts_that_are_frozen(tmp_path: Path) -> None:
    """Some may be, but under ZeRO-3."""
    model, frozen = saved(tmp_path / "mixtral", "mixtral"), ("--freeze_parameters_regex", "experts")
    said = problems(model, *EXPERT, *frozen, "--deepspeed", ZERO[1])
    assert "all experts are frozen" in said and "train some of them" in said
    for flags in (frozen, ("--freeze_parameters", "model.layers.0")):
        said = problems(model, *EXPERT, *flags, "--deepspeed", ZERO[3])
        assert "ZeRO-3 leaves out of checkpoints" in said and "--deepspeed zero2" in said
    assert problems(model, *EXPERT, "--freeze_parameters", "model.embed_tokens", "--deepspeed", ZERO[3]) == ""
    assert problems(model, *EXPERT, "--freeze_parameters", "model.layers.0", "--deepspeed", ZERO[2]) == ""


def checkpoint(folder: Path, files: list[str], **record: Any) -> Path:
    """What is looked at of a checkpoint: the names of the engine's files, and the record."""
    engine = folder / "global_step4"
    engine.mkdir(parents=True)
    (folder / "latest").write_text("global_step4")
    for name in files:
        (engine / name).touch()
    (folder / RECORD_NAME).write_text(json.dumps({"files": {}, **record}))
    return folder


def test_state_of_other_groups_is_refused(tmp_path: Path) -> None:
    model = saved(tmp_path / "llama", "llama")
    split = [f"zero_pp_rank_0_mp_rank_0{rank}_optim_states.pt" for rank in range(2)]
    folder = checkpoint(tmp_path / "tensor", split, zero_stage=2, world_size=2)
    resume = ("--resume_from_checkpoint", str(folder))
    assert problems(model, *TENSOR, "--deepspeed", ZERO[2], *resume) == ""
    said = problems(model, "--deepspeed", ZERO[2], *resume)
    assert "was written with --tensor_parallel_size 2, and this run has 1" in said
    assert f"--warm_start {folder}" in said
    assert "ZeRO stage 2, and this run has 1" in problems(model, *TENSOR, "--deepspeed", ZERO[1], *resume)
    said = problems(model, *TENSOR, "--deepspeed", ZERO[2], *resume, processes=4)
    assert "processes 2, and this run has 4" in said

    # The pieces of a machine that shares no files with the other one.
    folder = checkpoint(tmp_path / "beta", split[1:], zero_stage=2, world_size=2, tensor_parallel_size=2)
    assert problems(model, *TENSOR, "--deepspeed", ZERO[2], "--resume_from_checkpoint", str(folder)) == ""

    model = saved(tmp_path / "mixtral", "mixtral")
    own = ["zero_pp_rank_0_mp_rank_00_optim_states.pt"]
    folder = checkpoint(tmp_path / "expert", own, zero_stage=2, world_size=2, expert_parallel_size=2)
    resume = ("--resume_from_checkpoint", str(folder))
    assert problems(model, *EXPERT, "--deepspeed", ZERO[2], *resume) == ""
    said = problems(model, "--deepspeed", ZERO[2], *resume)
    assert "was written with --expert_parallel_size 2, and this run has 1" in said
    plain = checkpoint(tmp_path / "plain", own, zero_stage=2, world_size=4)
    assert problems(model, "--deepspeed", ZERO[3], "--resume_from_checkpoint", str(plain)) == ""
