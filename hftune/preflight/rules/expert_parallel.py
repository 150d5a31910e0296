"""Rules of expert parallelism: it is allowed only where losses, gradients and saved weights were found right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.optimizer import MUON
from hftune.arguments.recomputation import MLP
from hftune.arguments.training import StageArguments
from hftune.distributed.ds_config import offload_device
from hftune.distributed.expert_parallel import ACTIVATION, FLAG, PRESETS
from hftune.errors import ArgumentError, UserError
from hftune.models.adapters.freezing import plan_freezing
from hftune.models.experts import expert_count
from hftune.preflight.facts import Facts
from hftune.preflight.rules.sharing import (
    EXPERT,
    OTHERWISE,
    check_features,
    check_flags,
    check_full,
    check_kernels,
    check_stage,
    check_trains,
    zero_features,
)

_REASON = "AutoEP shards experts that are trained in full, not quantised ones or those with adapters"
_LOST = "does not reach, or does not know, sharded experts"


def check_expert_parallel(facts: Facts) -> Iterator[UserError]:
    """Problems of options that do not work with sharded experts."""
    adapter_args, training_args = facts.adapter_args, facts.training_args
    yield from check_stage(EXPERT, training_args)
    yield from check_trains(EXPERT, training_args)
    yield from check_full(EXPERT, adapter_args, {"quantised": _REASON, "adapted": _REASON})
    yield from check_expert_engine(training_args)
    yield from check_kernels(EXPERT, training_args)
    yield from check_flags(EXPERT, _lost(training_args), _LOST)
    if facts.config is not None:
        yield from check_expert_model(facts.config.get_text_config(), training_args)
    if facts.skeleton is not None:
        yield from check_trained_experts(facts.skeleton, adapter_args, training_args)


def check_expert_engine(training_args: StageArguments) -> Iterator[UserError]:
    """Problems of the DeepSpeed config: expert parallelism needs ZeRO 1 to 3, without other ways to share weights."""
    config = training_args.ds_resolved
    if config is None or training_args.zero_stage == 0:
        why = "DeepSpeed shards experts, and no config for it was given"
        if config is not None:
            why = "without ZeRO, DeepSpeed (0.19.8) measures and clips the gradients of each process's experts alone"
        yield ArgumentError(why, place=f"{FLAG}, --deepspeed", fix="use --deepspeed zero1, zero2 or zero3")
        return
    # Offloading is refused below on any device, not only to NVMe.
    features = {name: asked for name, asked in zero_features(config).items() if not name.startswith("offload")}
    more = {
        "offload_param": offload_device(config, "param") is not None,
        "offload_optimizer": offload_device(config, "optimizer") is not None,
        "expert_parallel": "expert_parallel" in config,
        "use_data_before_expert_parallelism": bool(config.get("use_data_before_expert_parallelism")),
    }
    yield from check_features(EXPERT, features | more)


def _lost(training_args: StageArguments) -> dict[str, bool]:
    """Options that have no effect on the layers that AutoEP replaces: by name, whether given."""
    plan = training_args.recomputation
    return {
        f"--optim {MUON}": training_args.optim_name == MUON,
        "--hidden_dropout_prob": bool(training_args.hidden_dropout_prob),
        "--activation_checkpointing mlp": bool(plan and MLP in plan.parts),
        "--load_best_model_at_end": bool(training_args.load_best_model_at_end),
    }


def check_expert_model(config: PreTrainedConfig, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of a model whose layers AutoEP computes otherwise, or whose experts do not divide evenly."""
    if config.model_type not in PRESETS:
        yield ArgumentError(
            f"AutoEP does not train the layers of a {config.model_type} model as transformers does, or finds none",
            place=FLAG,
            fix=f"leave it out, {OTHERWISE}; known are {', '.join(PRESETS)}",
        )
        return
    yield from _uneven(config, training_args.expert_parallel_size)
    yield from _odd(config)


def _uneven(config: Any, size: int) -> Iterator[UserError]:
    experts = expert_count(config)
    if experts % size:
        # The user cannot change the number of experts, only that of processes.
        fitting = ", ".join(str(number) for number in range(2, experts + 1) if experts % number == 0)
        yield ArgumentError(
            f"{experts} experts cannot be shared evenly by {size} processes",
            place=f"{FLAG} {size}",
            fix=f"use one of {fitting}",
        )


def _odd(config: Any) -> Iterator[UserError]:
    if getattr(config, "router_jitter_noise", 0.0):
        yield ArgumentError(
            f"the model's routers add noise (router_jitter_noise {config.router_jitter_noise}), AutoEP's do not",
            place=f"{FLAG}, config.json: router_jitter_noise",
            fix="set it to 0",
        )
    # swish is another name of silu in transformers.
    if config.hidden_act not in (ACTIVATION, "swish"):
        yield ArgumentError(
            f"the model's experts compute {config.hidden_act}, AutoEP's {ACTIVATION}",
            place=f"{FLAG}, config.json: hidden_act",
            fix=f"leave it out, {OTHERWISE}",
        )


def check_trained_experts(
    bare: PreTrainedModel, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """Problems of frozen experts, which DeepSpeed's ZeRO (0.19.8) does not handle."""
    if not adapter_args.freezes or training_args.zero_stage not in (1, 2, 3):
        return
    try:
        trained = plan_freezing(bare, adapter_args)
    except UserError:
        return  # said by check_names
    # By name: nothing has replaced the layers of the skeleton.
    experts = [id(one) in trained for name, one in bare.named_parameters() if ".experts." in name]
    if training_args.zero_stage == 3 and not all(experts):
        yield ArgumentError(
            "experts are frozen, which DeepSpeed's ZeRO-3 leaves out of checkpoints",
            place=f"{FLAG}, --freeze_parameters*",
            fix="use --deepspeed zero2 and train some of them, or leave one of the flags out",
        )
    elif experts and not any(experts):
        yield ArgumentError(
            "all experts are frozen, and DeepSpeed's ZeRO-1 and 2 shard only those that are trained",
            place=f"{FLAG}, --freeze_parameters*",
            fix="train some of them, or leave one of the flags out",
        )
