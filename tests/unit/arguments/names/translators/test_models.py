"""Precision, quantised bases, adapters and attention in other tools' words."""

from __future__ import annotations

import pytest

from hftune.arguments.names.row import each, mapped, number, shortest, switched
from hftune.arguments.names.translators import models
from hftune.distributed.ds_config import read_ds_config
from hftune.errors import ArgumentError
from tests.unit.arguments.names.translators.questions import ask, translated


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
    ("command", "shipped"),
    [
        ("sharding=stage1", "zero1"),
        ("sharding=stage2", "zero2"),
        ("sharding=stage1 offload_optim=True", "zero2_offload"),
        ("optimizer_cpu_offload", "zero2_offload"),
        ("sharding=stage3,offload tensorwise_offload_optimizer=1", "zero3_offload"),
        ("use_distributed_optimizer=true", "zero1"),
        ("use_megatron_fsdp=true", "zero3"),
        ("use_megatron_fsdp=true data_parallel_sharding_strategy=optim_grads", "zero2"),
        ("sharding_strategy=hsdp", "zero3"),
        ("sharding=stage1 sharding_parallel_degree=1", "zero1"),
    ],
)
def test_sharding_is_a_shipped_config(command: str, shipped: str) -> None:
    assert translated(models.sharding, ask(command)) == {"deepspeed": shipped}
    assert read_ds_config(shipped)["zero_optimization"]["stage"] == int(shipped[4])


def test_hybrid_sharding_over_machines_and_none() -> None:
    over_two = ask("sharding_strategy=hsdp", world=16, local=8)
    assert translated(models.sharding, over_two) == {"deepspeed": "zero3_hpz"}
    for command in ("sharding=", "offload_optim=False", "sharding_strategy=ddp", "sharding_degree=4"):
        assert translated(models.sharding, ask(command, world=4)) == {}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sharding=stage4", "stage1, stage2, stage3"),
        ("sharding=stage1 sharding_parallel_degree=2", "zero_hpz_partition_size"),
        ("sharding=stage3 offload_optim=1 optimizer_offload_fraction=0.5", "offload_optimizer.ratio"),
        ("use_megatron_fsdp=1 data_parallel_sharding_strategy=rows", "no_shard"),
    ],
)
def test_sharding_that_cannot_be(command: str, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        models.sharding(ask(command, world=4))
    assert said in str(caught.value)


def test_a_config_given_counts() -> None:
    answer = models.sharding(ask("sharding=stage1 offload_optim=1", "deepspeed=zero3.json"))
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
        ("recompute=True recompute_granularity=core_attn", some("attention")),
        ("recompute=True recompute_granularity=full_attn", some("attention")),
        ("recompute=True no_recompute_layers=[0,3]", ON | {LAYERS: "not 0,3"}),
        ("recompute=True offload_recompute_inputs=True", ON | {"activation_checkpointing_offload": "True"}),
        ("recompute=True offload_recompute_inputs=False", ON),
        ("recompute=True recompute_use_reentrant", ON | {"gradient_checkpointing_kwargs": '{"use_reentrant": true}'}),
        ("recompute=True recompute_use_reentrant=False", ON),
        ("recompute_granularity=full recompute_method=uniform recompute_num_layers=1", ON),
        ("recompute_granularity=full recompute_method=uniform recompute_num_layers=4", ON),
        ("recompute_granularity=full recompute_method=block recompute_num_layers=4", ON | {LAYERS: "0-3"}),
        ("recompute_granularity=selective", some("attention")),
        ("recompute_granularity=selective recompute_modules=core_attn,moe", some("attention,mlp")),
        ("recompute_granularity=none", OFF),
    ],
)
def test_what_is_recomputed(command: str, expected: dict[str, str]) -> None:
    assert translated(models.recompute, ask(command)) == expected


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("recompute_granularity=selective recompute_modules=core_attn,layernorm", "layernorm"),
        ("recompute_granularity=full recompute_method=ring", "ring"),
        ("recompute recompute_granularity=half", "half"),
    ],
)
def test_what_cannot_be_recomputed(command: str, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        models.recompute(ask(command))
    assert said in str(caught.value)


def test_numbers() -> None:
    assert number("x", "1e-3") == 0.001
    with pytest.raises(ArgumentError, match="--x many is not a number"):
        number("x", "many")
    assert [shortest(value) for value in (30.0, 0.5, -1.0)] == ["30", "0.5", "-1"]


def test_a_table_of_values() -> None:
    strict = mapped("to", {"a": "b c", "off": None, "fast": "--other 1"}, "use a")
    assert translated(strict, ask("x=A")) == {"to": "b c"}
    assert translated(strict, ask("x=off")) == {} and translated(strict, ask("x=fast")) == {"other": "1"}
    with pytest.raises(ArgumentError, match="--x z cannot be used: use a"):
        strict(ask("x=z"))
    assert translated(mapped("to", {"a": "b"}, ""), ask("x=Z")) == {"to": "Z"}, "as it was written"


@pytest.mark.parametrize(("written", "becomes"), [("x", "yes"), ("x=1", "yes"), ("x=False", "no"), ("x=off", "no")])
def test_a_switch(written: str, becomes: str) -> None:
    assert translated(switched("to", "yes", "no"), ask(written)) == {"to": becomes}
    assert translated(switched("to", None, None), ask(written)) == {}


def test_every_name_has_its_say() -> None:
    assert each(lambda name, question: [(name, ["1"])])(ask("x=2 y=3")).given == [("x", ["1"]), ("y", ["1"])]
