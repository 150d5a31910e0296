"""Values of other tools, translated; each against what was worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.arguments.names.row import Ask, Translation
from hftune.arguments.names.translators import data, models, runs, sharding, training
from hftune.distributed import ranks
from hftune.errors import ArgumentError

DS_CONFIGS = Path(__file__).parents[3] / "ds_configs"


def ask(command: str, others: str = "", stage: str = "sft", world: int = 1, local: int | None = None) -> Ask:
    """What a translation is asked: `a=1 b=x,y` as arguments; without "=", a switch."""
    pairs = [
        {
            name: value.split(",") if equals else []
            for name, equals, value in (part.partition("=") for part in text.split())
        }
        for text in (command, others)
    ]
    return Ask(pairs[0], pairs[1], stage, world, local or world)


def translated(function: Translation, question: Ask) -> dict[str, str]:
    """The answer's arguments, values as a text."""
    return {name: " ".join(values) for name, values in function(question).given}


# 64 rows a step: 4 processes x 2 rows x 8 micro batches; 16 x 1 x 4; 1 x 2 x 32.
@pytest.mark.parametrize(("world", "micro", "steps"), [(4, 2, 8), (16, 1, 4), (1, 2, 32)])
def test_a_global_batch_is_shared(world: int, micro: int, steps: int) -> None:
    answer = translated(data.batches, ask(f"global_batch_size=64 micro_batch_size={micro}", world=world))
    assert answer == {
        "per_device_train_batch_size": str(micro),
        "per_device_eval_batch_size": str(micro),
        "gradient_accumulation_steps": str(steps),
    }


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (ask("global_batch_size=64 micro_batch_size=3", world=4), "use a multiple of 12"),
        (ask("global_batch_size=4 micro_batch_size=1", world=8), "use a multiple of 8"),
        (ask("global_batch_size=64"), "give --micro_batch_size too"),
        (ask("global_batch_size=64 micro_batch_size=2", "gradient_accumulation_steps=4"), "means"),
        (ask("global_batch_size=many micro_batch_size=2"), "no number"),
    ],
)
def test_a_global_batch_that_cannot_be(question: Ask, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        data.batches(question)
    assert said in str(caught.value)


def test_an_own_batch_size_counts_and_rl_keeps_its_evaluation() -> None:
    own = ask("global_batch_size=32", "per_device_train_batch_size=4", world=2)
    assert translated(data.batches, own) == {"gradient_accumulation_steps": "4"}
    assert translated(data.batches, ask("micro_batch_size=2", stage="rl")) == {"per_device_train_batch_size": "2"}


def test_lengths_of_evaluations() -> None:
    """10 batches of 4 on 2 processes are 80 records; -1 is all of them."""
    question = ask("max_evaluate_steps=10", "per_device_eval_batch_size=4", world=2)
    assert translated(data.evaluation_length, question) == {"max_eval_samples": "80"}
    assert translated(data.evaluation_length, ask("eval_iters=-1")) == {}
    both = data.evaluation_length(ask("eval_iters=10", "max_eval_samples=7"))
    assert not both.given and "no effect" in both.notices[0]


def config_of(question: Ask) -> dict[str, object]:
    """The DeepSpeed config that a question about sharding is answered with."""
    return json.loads(translated(sharding.sharding, question)["deepspeed"])


@pytest.mark.parametrize(
    ("command", "shipped"),
    [
        ("sharding=stage1", "zero1"),
        ("sharding=stage2", "zero2"),
        ("sharding=stage3", "zero3"),
        ("sharding=stage2 offload_optim=True", "zero2_offload"),
        ("offload_optim=True", "zero2_offload"),
        ("optimizer_cpu_offload", "zero2_offload"),
        ("sharding=stage3,offload tensorwise_offload_optimizer=1", "zero3_offload"),
        ("use_distributed_optimizer=true", "zero1"),
        ("use_megatron_fsdp=true", "zero3"),
        ("use_megatron_fsdp=true data_parallel_sharding_strategy=optim_grads", "zero2"),
        ("sharding_strategy=fsdp", "zero3"),
        ("sharding_strategy=hsdp", "zero3"),
        ("sharding=stage1 sharding_parallel_degree=1", "zero1"),
    ],
)
def test_sharding_is_a_shipped_config(command: str, shipped: str) -> None:
    assert config_of(ask(command)) == json.loads((DS_CONFIGS / f"{shipped}.json").read_text())


@pytest.mark.parametrize("command", ["sharding=", "offload_optim=False", "sharding_strategy=ddp", "sharding_degree=4"])
def test_no_sharding(command: str) -> None:
    assert translated(sharding.sharding, ask(command, world=4)) == {}


def test_sharding_over_machines_and_shares() -> None:
    over_two = config_of(ask("sharding_strategy=hsdp", world=16, local=8))["zero_optimization"]
    assert over_two["zero_hpz_partition_size"] == 8  # type: ignore[index]
    share = config_of(ask("sharding=stage3 optimizer_cpu_offload=1 optimizer_offload_fraction=0.5"))
    assert share["zero_optimization"]["offload_optimizer"]["ratio"] == 0.5  # type: ignore[index]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sharding=stage4", "stage1, stage2, stage3"),
        ("sharding=stage1 sharding_parallel_degree=2", "zero_hpz_partition_size"),
        ("sharding=stage1 offload_optim=1 optimizer_offload_fraction=0.5", "ZeRO-3 only"),
        ("use_megatron_fsdp=1 data_parallel_sharding_strategy=rows", "no_shard"),
    ],
)
def test_sharding_that_cannot_be(command: str, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        sharding.sharding(ask(command, world=4))
    assert said in str(caught.value)


def test_a_config_given_counts() -> None:
    answer = sharding.sharding(ask("sharding=stage1 offload_optim=1", "deepspeed=zero3.json"))
    assert not answer.given and "--sharding --offload_optim not used" in answer.notices[0]


ON, OFF = {"gradient_checkpointing": "True"}, {"gradient_checkpointing": "False"}
LAYERS = "activation_checkpointing_layers"


def some(parts: str, **more: str) -> dict[str, str]:
    return {"activation_checkpointing": parts} | more


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("recompute", ON),
        ("recompute=False recompute_granularity=full", OFF),  # ERNIEKit: the switch decides
        ("recompute=False recompute_use_reentrant=True", OFF),
        ("recompute_use_reentrant=True", {}),
        ("recompute=True recompute_granularity=core_attn", some("core_attention")),
        ("recompute=True recompute_granularity=full_attn", some("attention")),
        ("recompute=True no_recompute_layers=[0,3]", ON | {LAYERS: "not 0,3"}),
        ("recompute=True offload_recompute_inputs=True", ON | {"activation_checkpointing_offload": "True"}),
        ("recompute=True offload_recompute_inputs=False", ON),
        ("recompute=True recompute_use_reentrant", ON | {"gradient_checkpointing_kwargs": '{"use_reentrant": true}'}),
        ("recompute=True recompute_use_reentrant=False", ON),
        ("recompute_granularity=full recompute_method=uniform recompute_num_layers=1", ON),
        ("recompute_granularity=full recompute_method=uniform recompute_num_layers=4", ON),
        ("recompute_granularity=full recompute_method=block recompute_num_layers=4", ON | {LAYERS: "0-3"}),
        ("recompute_granularity=selective", some("core_attention")),
        ("recompute_granularity=selective recompute_modules=core_attn,moe", some("core_attention,mlp")),
        ("recompute_granularity=none", OFF),
        ("fsdp_activation_checkpointing=True", ON),
        ("fsdp_activation_checkpointing=True selective_checkpointing=1/3", ON | {LAYERS: "1/3"}),
        ("fsdp_activation_checkpointing=True selective_checkpointing=0.5", ON | {LAYERS: "1/2"}),
        ("fsdp_activation_checkpointing=False selective_checkpointing=1/2", OFF),
        ("fsdp_activation_checkpointing=True selective_checkpointing=0", OFF),
    ],
)
def test_what_is_recomputed(command: str, expected: dict[str, str]) -> None:
    assert translated(sharding.recompute, ask(command)) == expected


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("recompute_granularity=selective recompute_modules=core_attn,layernorm", "layernorm"),
        ("recompute_granularity=full recompute_method=ring", "ring"),
        ("recompute recompute_granularity=half", "half"),
        ("fsdp_activation_checkpointing selective_checkpointing=3", "3"),
        ("fsdp_activation_checkpointing selective_checkpointing=some", "some"),
    ],
)
def test_what_cannot_be_recomputed(command: str, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        sharding.recompute(ask(command))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("compute_type=bf16", {"bf16": "True"}),
        ("compute_type=fp16", {"bf16": "False", "fp16": "True"}),
        ("compute_type=wint8", {"load_in_8bit": "True"}),
        ("compute_type=nf4", {"load_in_4bit": "True", "bnb_4bit_quant_type": "nf4"}),
        ("weight_quantize_algo=weight_only_int8", {"load_in_8bit": "True"}),
        ("compute_type=bf16 weight_quantize_algo=nf4", {"bf16": "True"}),  # dropped there as well, and said
        ("compute_type=nf4 weight_quantize_algo=nf4", {"load_in_4bit": "True", "bnb_4bit_quant_type": "nf4"}),
    ],
)
def test_compute_types(command: str, expected: dict[str, str]) -> None:
    assert translated(models.compute_type, ask(command)) == expected


@pytest.mark.parametrize(
    "command",
    ["compute_type=wint4/8", "compute_type=fp8", "weight_quantize_algo=fp8linear", "compute_type=wint8 "
     "weight_quantize_algo=nf4"],
)  # fmt: skip
def test_compute_types_without_a_counterpart(command: str) -> None:
    with pytest.raises(ArgumentError, match="cannot be used"):
        models.compute_type(ask(command))


@pytest.mark.parametrize(
    ("command", "others", "alpha"),
    [
        ("lora_alpha=32", "", "32"),
        ("lora_alpha=16.0", "", "16"),
        ("lora_alpha=-1", "lora_r=32", "64"),
        ("lora_alpha=-1", "lora_r=32 use_rslora=True", "4"),
        ("lora_alpha=128 rslora_plus=True", "lora_r=32", "4"),
        ("lora_alpha=128 rslora_plus=False", "lora_r=32", "128"),
    ],
)
def test_strength_of_adapters(command: str, others: str, alpha: str) -> None:
    assert translated(models.strength, ask(command, others))["lora_alpha"] == alpha


def test_names_of_modules() -> None:
    assert translated(models.targets, ask("target_modules=all-linear")) == {"lora_target_modules": "all"}
    assert translated(models.targets, ask("target_modules=q_proj,linear_fc1")) == {
        "lora_target_modules": "q_proj gate_proj up_proj"
    }
    with pytest.raises(ArgumentError, match="all-router"):
        models.targets(ask("target_modules=all-router,all-linear"))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("loss_type=ipo", {"loss_type": "ipo"}),
        ("rpo_alpha=0.5", {"loss_type": "sigmoid sft", "loss_weights": "1 0.5"}),
        ("loss_type=ipo sft_loss_ratio=0.2 pref_loss_ratio=0.8",
         {"loss_type": "ipo sft", "loss_weights": "0.8 0.2"}),
        ("sft_loss_ratio=0 pref_loss_ratio=1.0", {}),
        ("loss_type=or sft_loss_ratio=1", {"loss_type": "odds_ratio sft", "loss_weights": "1 1"}),
        ("loss_type=kto_pair", {"loss_type": "kto_pair"}),
        ("orpo_beta=0.2", {"loss_type": "orpo", "beta": "0.2"}),
    ],
)  # fmt: skip
def test_sums_of_losses(command: str, expected: dict[str, str]) -> None:
    assert translated(training.preference_loss, ask(command, stage="dpo")) == expected


@pytest.mark.parametrize(
    ("command", "others", "stage"),
    [
        ("orpo_beta=0.1 loss_type=ipo", "", "dpo"),
        ("rpo_alpha=1", "loss_weights=1,1", "dpo"),
        ("rpo_alpha=1", "", "sft"),
    ],
)
def test_losses_that_cannot_be(command: str, others: str, stage: str) -> None:
    with pytest.raises(ArgumentError, match="cannot be used"):
        training.preference_loss(ask(command, others, stage))


def test_mixing_and_what_is_trained() -> None:
    assert translated(data.interleaved, ask("interleave_prob=0.3,0.7")) == {
        "train_dataset_prob": "0.3,0.7",
        "mix_strategy": "under",
    }
    assert not data.interleaved(ask("stopping_strategy=all_exhausted")).given
    assert translated(data.loss_scale, ask("loss_scale=all")) == {"train_on_inputs": "True"}
    with pytest.raises(ArgumentError, match="weights of turns"):
        data.loss_scale(ask("loss_scale=hermes"))
    with pytest.raises(ArgumentError, match="loses its end"):
        data.truncation(ask("truncation_strategy=left"))
    for stage, value in (("sft", "True"), ("dpo", "False")):
        assert not data.per_token(ask(f"calculate_per_token_loss={value}", stage=stage)).given
        with pytest.raises(ArgumentError, match="same weight"):
            data.per_token(ask(f"calculate_per_token_loss={'False' if value == 'True' else 'True'}", stage=stage))


def test_attention() -> None:
    assert translated(models.attention_backend, ask("attention_backend=flash")) == {"flash_attn": "True"}
    assert translated(models.attention_backend, ask("attention_backend=auto")) == {}
    assert translated(models.attention_backend, ask("attention_backend=flash_3")) == {
        "attn_implementation": "flash_attention_3"
    }
    with pytest.raises(ArgumentError, match="--attn_implementation"):
        models.attention_backend(ask("attention_backend=fast"))


def test_processes_that_see_the_same_rows_count_once() -> None:
    shared = ask("global_batch_size=64 micro_batch_size=2", "tensor_parallel_size=2 sequence_parallel_size=2", world=8)
    assert translated(data.batches, shared)["gradient_accumulation_steps"] == "16"  # two groups of four


@pytest.mark.parametrize("order", [1, -1])
def test_their_tensor_parallelism_comes_before_their_batches(order: int) -> None:
    flags = [["--tensor_model_parallel_size", "2"], ["--global_batch_size", "8", "--micro_batch_size", "2"]][::order]
    with ranks.planning_for(ranks.PlannedWorld(4, 4, on_cpu=True)):
        given = [*flags[0], *flags[1], "--model_name_or_path", "m", "--deepspeed", "zero1"]
        training_args = parse_arguments("sft", given)[3]
        assert training_args.data_parallel_size == 2
    assert (training_args.tensor_parallel_size, training_args.gradient_accumulation_steps) == (2, 2)


def test_stages_and_tensor_parallelism() -> None:
    assert runs.ernie_stage(ask("stage=SFT")).given == []
    with pytest.raises(ArgumentError, match=r"that is run_dpo\.py"):
        runs.ernie_stage(ask("stage=DPO"))
    with pytest.raises(ArgumentError, match="the scripts are"):
        runs.ernie_stage(ask("stage=VL-SFT"))
    assert runs.any_language_model(ask("task_type=causal_lm", stage="dpo")).given == []
    assert "no effect" in runs.degree(ask("sequence_parallel=True tensor_parallel_degree=1")).notices[0]
    for command in ("sequence_parallel=True", "tensor_model_parallel_size=2 sequence_parallel=True"):
        with pytest.raises(ArgumentError, match="ZeRO-3"):
            runs.degree(ask(command))
    for name in runs.TENSOR_NAMES:
        assert translated(runs.degree, ask(f"{name}=4")) == {"tensor_parallel_size": "4"}
        assert translated(runs.degree, ask(f"{name}=-1")) == {}
    assert translated(runs.experts, ask("expert_model_parallel_size=8")) == {"expert_parallel_size": "8"}
    assert translated(runs.experts, ask("expert_model_parallel_size=0")) == {}
