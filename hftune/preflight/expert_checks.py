"""Rules of expert parallelism: where its losses, gradients and saved weights were found right, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hftune.arguments import AdapterArguments, ModelArguments, PTArguments, SFTArguments, StageArguments
from hftune.arguments.checkpointing import MLP
from hftune.arguments.optimizer import MUON
from hftune.distributed.ds_config import asks_for_compiling, offload_device
from hftune.distributed.expert_parallel import FLAG, PRESETS
from hftune.errors import ArgumentError, UserError
from hftune.models.configs import model_config
from hftune.models.experts import experts_of

_OTHERWISE = "or share weights over all processes with --deepspeed zero3 instead"


def check_experts(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """What does not go together with experts that are dealt out to processes."""
    if training_args.expert_parallel_size == 1:
        yield from check_expert_config(training_args)
        return
    yield from check_expert_stage(training_args)
    yield from check_expert_method(adapter_args)
    yield from check_expert_engine(training_args)
    yield from check_expert_others(training_args)
    yield from check_expert_model(model_args, training_args)


def check_expert_config(training_args: StageArguments) -> Iterator[UserError]:
    """A config that asks for AutoEP by itself would have it deal out experts after the optimizer was made."""
    block = (training_args.ds_resolved or {}).get("expert_parallel")
    if block and (not isinstance(block, dict) or block.get("enabled")):
        yield ArgumentError(
            "the DeepSpeed config deals out experts, which hftune does itself",
            place="--deepspeed: expert_parallel",
            fix=f"remove the block and use {FLAG}",
        )


def check_expert_stage(training_args: StageArguments) -> Iterator[UserError]:
    """Pre-training and full fine-tuning alone."""
    if not isinstance(training_args, PTArguments | SFTArguments):
        yield ArgumentError(
            "expert parallelism is for pre-training and full fine-tuning: reward models, DPO and RL hold further "
            "models, or generate, which was not found right with experts in several processes",
            place=FLAG,
            fix=f"leave it out, {_OTHERWISE}",
        )
    elif not training_args.do_train:
        yield ArgumentError(
            "experts are dealt out when training begins, and nothing is trained",
            place=f"{FLAG}, --do_eval",
            fix="leave it out to evaluate",
        )


def check_expert_method(adapter_args: AdapterArguments) -> Iterator[UserError]:
    """AutoEP takes experts as they come, not what peft or bitsandbytes have put in their places."""
    if adapter_args.quantised or adapter_args.use_peft:
        yield ArgumentError(
            "AutoEP deals out experts that are trained in full, not quantised ones or those with adapters",
            place=f"{FLAG}, --use_peft / --load_in_4bit / --load_in_8bit",
            fix="leave one of them out; ZeRO-3 shares the base of an adapter: --use_peft --deepspeed zero3",
        )


def check_expert_engine(training_args: StageArguments) -> Iterator[UserError]:
    """DeepSpeed at ZeRO 1 to 3, without what shares weights in another way."""
    config = training_args.ds_resolved
    if config is None or training_args.zero_stage == 0:
        why = "DeepSpeed deals out experts, and no config for it was given"
        if config is not None:
            why = "without ZeRO, DeepSpeed (0.19.8) measures and clips the gradients of each process's experts alone"
        yield ArgumentError(why, place=f"{FLAG}, --deepspeed", fix="use --deepspeed zero1, zero2 or zero3")
        return
    zero: dict[str, Any] = config.get("zero_optimization", {})
    asked = {
        "zero_hpz_partition_size": int(zero.get("zero_hpz_partition_size") or 1) > 1,
        "zero_quantized_weights": bool(zero.get("zero_quantized_weights")),
        "zero_quantized_gradients": bool(zero.get("zero_quantized_gradients")),
        "offload_param": offload_device(config, "param") is not None,
        "offload_optimizer": offload_device(config, "optimizer") is not None,
        "compile.deepcompile": asks_for_compiling(config),
        "expert_parallel": "expert_parallel" in config,
        "use_data_before_expert_parallelism": bool(config.get("use_data_before_expert_parallelism")),
    }
    for name in (name for name, is_asked in asked.items() if is_asked):
        yield ArgumentError(
            f"{name} was not found right with experts that hftune deals out",
            place=f"{FLAG}, --deepspeed: {name}",
            fix="drop one",
        )


def check_expert_others(training_args: StageArguments) -> Iterator[UserError]:
    """What would be lost with the layers that AutoEP replaces, and other ways to share a model."""
    plan = training_args.recomputation
    lost = {
        "--sequence_parallel_size": training_args.sequence_parallel_size > 1,
        f"--optim {MUON}": training_args.optim_name == MUON,
        "--torch_compile": bool(training_args.torch_compile),
        "--use_liger_kernel": bool(getattr(training_args, "use_liger_kernel", False)),
        "--hidden_dropout_prob": bool(training_args.hidden_dropout_prob),
        "--activation_checkpointing mlp": bool(plan and MLP in plan.parts),
        "--load_best_model_at_end": bool(training_args.load_best_model_at_end),
    }
    for name in (name for name, is_asked in lost.items() if is_asked):
        yield ArgumentError(
            f"{name} does not reach, or does not know, experts that are dealt out",
            place=f"{name}, {FLAG}",
            fix="leave one of them out",
        )


def check_expert_model(model_args: ModelArguments, training_args: StageArguments) -> Iterator[UserError]:
    """AutoEP computes the model's layers as transformers does, and the experts come out even."""
    try:
        config = model_config(model_args, training_args).get_text_config()
    except UserError:
        return  # said by check_model
    experts, size = experts_of(config), training_args.expert_parallel_size
    if config.model_type not in PRESETS:
        yield ArgumentError(
            f"AutoEP does not train the layers of a {config.model_type} model as transformers does, or finds none",
            place=FLAG,
            fix=f"leave it out, {_OTHERWISE}; known are {', '.join(PRESETS)}",
        )
    elif experts % size:
        fitting = ", ".join(str(number) for number in range(2, experts + 1) if experts % number == 0)
        yield ArgumentError(
            f"{experts} experts cannot be shared evenly by {size} processes",
            place=f"{FLAG} {size}",
            fix=f"use one of {fitting}",
        )
    elif getattr(config, "router_jitter_noise", 0.0):
        yield ArgumentError(
            f"the model's routers add noise (router_jitter_noise {config.router_jitter_noise}), AutoEP's do not",
            place=f"{FLAG}, config.json: router_jitter_noise",
            fix="set it to 0",
        )
