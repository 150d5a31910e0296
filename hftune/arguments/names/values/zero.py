"""Sharding in other tools' words, as a DeepSpeed config."""

from __future__ import annotations

import json
from typing import Any

from hftune.arguments.names.row import Answer, Ask
from hftune.arguments.names.values.common import cannot, number

_FSDP = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_FMS = {"ddp": 0, "fsdp": 3, "hsdp": 3}
_ERNIE = {"": 0, "none": 0, "stage1": 1, "stage2": 2, "stage3": 3}
_DEGREES = ("sharding_parallel_degree", "sharding_parallel_size", "sharding_degree")
_OFFLOADS = ("offload_optim", "tensorwise_offload_optimizer", "optimizer_cpu_offload")


def zero_config(stage: int, *, offload_optimizer: bool = False, offload_param: bool = False) -> dict[str, Any]:
    """The DeepSpeed config of a ZeRO stage; the same as in `ds_configs/`.

    Args:
        stage: 1, 2 or 3.
        offload_optimizer: Keep the optimizer's states in the memory of the machine.
        offload_param: Keep the weights there as well (stage 3).
    """
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True}
    if stage > 1:
        zero |= {"contiguous_gradients": True, "reduce_bucket_size": "auto"}
    if stage == 2:
        zero["allgather_bucket_size"] = 500_000_000
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    for asked, what in ((offload_optimizer, "offload_optimizer"), (offload_param, "offload_param")):
        if asked:
            zero[what] = {"device": "cpu", "pin_memory": True}
    auto = ("gradient_clipping", "gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu")
    precision = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    return {**precision, "zero_optimization": zero, **dict.fromkeys(auto, "auto"), "steps_per_print": 1_000_000_000}


def sharding(ask: Ask) -> Answer:
    """ERNIEKit's `sharding`, Megatron's distributed optimizer and FSDP, fms-fsdp's `sharding_strategy`, and offload.

    Raises:
        ArgumentError: A group of processes that ZeRO cannot shard over, or an unknown stage.
    """
    if ask.other("deepspeed") is not None:
        named = " ".join(f"--{name}" for name in ask.given)
        return Answer([], (f"{named} not used: --deepspeed says how the states are sharded",))
    stage, words = _stage(ask)
    offload = any(ask.flag(name) for name in _OFFLOADS)
    if offload and not stage:
        stage = 2
    if not stage:
        return Answer()
    _check_groups(ask)
    notices = [f"ZeRO-{stage}{' with the optimizer offloaded' if offload else ''}, as in ds_configs/"]
    config = zero_config(stage, offload_optimizer=offload, offload_param=stage == 3 and "offload" in words)
    _share(ask, config)
    if (ask.text("sharding_strategy") or "").lower() == "hsdp":
        notices += _within_machines(ask, config)
    return Answer([("deepspeed", [json.dumps(config)])], tuple(notices))


def _stage(ask: Ask) -> tuple[int, list[str]]:
    """ZeRO stage, and the words beside it ("offload")."""
    words = (ask.text("sharding") or "").lower().split()
    stages = [_looked_up("sharding", words[0] if words else "", _ERNIE)]
    if ask.flag("use_distributed_optimizer"):
        stages.append(1)
    if ask.flag("use_megatron_fsdp"):
        name = "data_parallel_sharding_strategy"
        stages.append(_looked_up(name, ask.text(name) or "optim_grads_params", _FSDP))
    if ask.text("sharding_strategy"):
        stages.append(_looked_up("sharding_strategy", ask.text("sharding_strategy") or "", _FMS))
    return max(stages), words


def _looked_up(name: str, value: str, table: dict[str, int]) -> int:
    if value.lower() not in table:
        raise cannot(name, value, f"it is one of {', '.join(key for key in table if key)}; or use --deepspeed")
    return table[value.lower()]


def _check_groups(ask: Ask) -> None:
    """ZeRO shards over all processes; with degree 1 the numbers are the same and more memory is left."""
    for name in _DEGREES:
        degree = ask.text(name)
        if degree is not None and int(number(name, degree)) not in (-1, 0, 1, ask.world_size):
            fix = "ZeRO shards over all processes; for groups use ZeRO-3 with zero_hpz_partition_size in --deepspeed"
            raise cannot(name, degree, fix)


def _share(ask: Ask, config: dict[str, Any]) -> None:
    share = number("optimizer_offload_fraction", ask.text("optimizer_offload_fraction") or "1")
    zero = config["zero_optimization"]
    if share == 1 or "offload_optimizer" not in zero:
        return
    if zero["stage"] != 3:
        raise cannot("optimizer_offload_fraction", share, "DeepSpeed offloads a share with ZeRO-3 only; use 1")
    zero["offload_optimizer"]["ratio"] = share


def _within_machines(ask: Ask, config: dict[str, Any]) -> list[str]:
    """HSDP within one machine is ZeRO-3; over several, weights are kept a second time within each."""
    if ask.local_world_size == ask.world_size:
        return []
    config["zero_optimization"]["zero_hpz_partition_size"] = ask.local_world_size
    return ["hsdp: ZeRO-3 with zero_hpz_partition_size: weights are gathered within a machine, states sharded over all"]
