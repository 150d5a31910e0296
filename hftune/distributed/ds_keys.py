"""Which keys a DeepSpeed config may have, and which of them contradict the arguments: pure functions on dicts.

DeepSpeed ignores an unknown key at the top level, and meets a wrong one below it after the model has loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hftune.distributed.ds_config import DsConfig
from hftune.errors import ArgumentError, did_you_mean
from hftune.secrets import says_secret

if TYPE_CHECKING:
    import pydantic

# Removed from DeepSpeed 0.19; each would raise deep inside the engine, after the model has loaded.
REMOVED_KEYS = {
    "elasticity": "drop it; change the number of processes and keep the global batch by gradient accumulation",
    "curriculum_learning": "drop it",
    "compression_training": "drop it",
    "amp": 'use {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}',
    "mics_shard_size": "use zero_optimization.zero_hpz_partition_size",
    "mics_hierarchical_params_gather": "use zero_optimization.zero_hpz_partition_size",
    "sparse_attention": "drop it",
    "bfloat16": 'write "bf16"',
    "cpu_offload": 'use "offload_optimizer": {"device": "cpu"}',
    "cpu_offload_params": 'use "offload_param": {"device": "cpu"}',
    "cpu_offload_use_pin_memory": 'use "offload_optimizer": {"device": "cpu", "pin_memory": true}',
}

# What DeepSpeed 0.19.8 reads at the top level: runtime/config.py, runtime/constants.py and the constants of its parts.
# fmt: off
TOP_KEYS = frozenset([
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "managed_gradient_accumulation", "steps_per_print", "dump_state", "disable_python_gc", "disable_allgather",
    "communication_data_type", "seq_parallel_communication_data_type", "prescale_gradients",
    "gradient_predivide_factor", "gradient_allreduce_op", "zero_optimization", "activation_checkpointing",
    "comms_logger", "tensorboard", "wandb", "comet", "csv_monitor", "gradient_clipping", "fp16", "bf16",
    "torch_autocast", "optimizer", "scheduler", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    "flops_profiler", "wall_clock_breakdown", "memory_breakdown", "autotuning", "use_data_before_expert_parallelism",
    "hybrid_engine", "pipeline", "data_efficiency", "checkpoint", "data_types", "aio", "dataloader_drop_last",
    "log_level", "datastates_ckpt", "weight_quantization", "compile", "timers", "tensor_parallel", "expert_parallel",
    "sequence_parallel_size",
])
# fmt: on


MICRO, STEPS, CLIPPING = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"
FILLED_IN_NUMBERS = (CLIPPING, "train_batch_size", MICRO, STEPS)
NUMBERS = (*FILLED_IN_NUMBERS, "steps_per_print", "gradient_predivide_factor")
# Top-level keys whose values other rules read.
_SAID_ELSEWHERE = frozenset(
    [*FILLED_IN_NUMBERS, "zero_optimization", "fp16", "bf16", "optimizer", "scheduler", "tensor_parallel", "checkpoint"]
)


FILLED_IN = frozenset([
    "stage", "device", "nvme_path", "reduce_bucket_size", "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold", "stage3_gather_16bit_weights_on_model_save", "zero_hpz_partition_size",
])  # fmt: skip
"""Of zero_optimization, what may be "auto" (transformers 5.23, accelerate 1.15, hftune)."""


def check_keys(config: DsConfig) -> Iterator[ArgumentError]:
    """Problems of keys that were removed, are misspelt, or stand at the wrong level."""
    zero = config.get("zero_optimization")
    zero_keys = zero if isinstance(zero, Mapping) else {}
    for key in [*config, *zero_keys]:
        if key in REMOVED_KEYS:
            yield ArgumentError(
                f'DeepSpeed has removed the config key "{key}"', place=f"--deepspeed: {key}", fix=REMOVED_KEYS[key]
            )
    known_zero = _zero_fields()
    for key in config:
        if key not in TOP_KEYS and key not in REMOVED_KEYS:
            yield _unknown(key, key, TOP_KEYS, {name: f"zero_optimization.{name}" for name in known_zero})
    for key in zero_keys:
        if key not in known_zero and key not in REMOVED_KEYS:
            yield _unknown(key, f"zero_optimization.{key}", known_zero, {name: name for name in TOP_KEYS})


def check_types(config: DsConfig) -> Iterator[ArgumentError]:
    """Problems of values of the wrong type, as DeepSpeed's own models find them; "auto" is left to the Trainer."""
    blocks = {key: config.get(key, {}) for key in ("zero_optimization", "fp16", "bf16")}
    for key, block in blocks.items():
        if not isinstance(block, dict):
            yield ArgumentError(
                f'"{key}" is {_shown(block)}', place=f"--deepspeed: {key}", fix=f'write "{key}": {{...}} with its keys'
            )
        elif key != "zero_optimization" and block.get("enabled", "auto") not in (True, False, "auto"):
            yield ArgumentError(
                f'"{key}.enabled" is {_shown(block["enabled"])}',
                place=f"--deepspeed: {key}.enabled",
                fix='write true or false, or "auto", which is what --bf16 and --fp16 say',
            )
    for key in NUMBERS:
        value = config.get(key, "auto")
        if value != "auto" and (isinstance(value, bool) or not isinstance(value, int | float)):
            yield ArgumentError(
                f'"{key}" is {_shown(value)}', place=f"--deepspeed: {key}", fix='write a number, or "auto"'
            )
    if isinstance(zero := blocks["zero_optimization"], dict):
        yield from _zero_types(zero)
        yield from _never_filled_in(zero, "zero_optimization.")
    others = {key: value for key, value in config.items() if key in TOP_KEYS and key not in _SAID_ELSEWHERE}
    yield from _never_filled_in(others)
    for key, value in others.items():
        if value != "auto":
            yield from _unreadable(key, value)


def check_combinations(config: DsConfig) -> Iterator[ArgumentError]:
    """Problems of settings that exclude one another."""
    zero = config.get("zero_optimization", {})
    if not isinstance(zero, dict) or not isinstance(zero.get("stage", 0), int):
        return  # said by check_types
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        yield ArgumentError(
            f"there is no ZeRO stage {stage!r}", place="--deepspeed: zero_optimization.stage", fix="use 0, 1, 2 or 3"
        )
    # "auto" for both is usual: the Trainer fills in what --bf16 and --fp16 say.
    both = [key for key in ("fp16", "bf16") if isinstance(config.get(key), dict) and config[key].get("enabled") is True]
    # DeepSpeed would stop with an assertion after the model has loaded.
    if len(both) == 2:
        yield ArgumentError("fp16 and bf16 at once", place="--deepspeed: fp16, bf16", fix="enable one of them")
    for what, least, better in (("offload_optimizer", 1, 2), ("offload_param", 3, 3)):
        block = zero.get(what)
        if isinstance(block, dict) and block.get("device", "none") != "none" and stage < least:
            yield ArgumentError(
                f"{what} needs ZeRO stage {least} or more, the config has stage {stage}",
                place=f"--deepspeed: zero_optimization.{what}",
                fix=f'set "stage": {better}, or remove the block',
            )


def check_against_arguments(config: DsConfig, arguments: Mapping[str, Any], world_size: int) -> Iterator[ArgumentError]:
    """Problems of values that differ between the config and the command line.

    Args:
        config: As read.
        arguments: Of the Trainer: `per_device_train_batch_size`, `gradient_accumulation_steps`, `max_grad_norm`,
            `bf16`, `fp16`.
        world_size: Number of processes.
    """
    micro, steps = arguments["per_device_train_batch_size"], arguments["gradient_accumulation_steps"]
    numbers = {MICRO: "per_device_train_batch_size", STEPS: STEPS, CLIPPING: "max_grad_norm"}
    for key, name in numbers.items():
        yield from _differing(key, config.get(key), name, arguments[name], f'"{key}": "auto"')
    for name in ("bf16", "fp16"):
        block = config.get(name)
        enabled = block.get("enabled") if isinstance(block, dict) else None
        yield from _differing(
            f"{name}.enabled", enabled, name, bool(arguments[name]), f'"{name}": {{"enabled": "auto"}}'
        )
    # DeepSpeed checks the product of the three as well, and stops with numbers that no argument has.
    total = config.get("train_batch_size")
    if isinstance(total, int) and not isinstance(total, bool) and total != micro * steps * world_size:
        yield ArgumentError(
            f"the DeepSpeed config has train_batch_size {total}, the arguments make {micro} x {steps} x {world_size} "
            f"processes = {micro * steps * world_size}",
            place="--deepspeed: train_batch_size and --per_device_train_batch_size, --gradient_accumulation_steps",
            fix='write "train_batch_size": "auto" in the config',
        )


def _differing(key: str, value: Any, name: str, asked: Any, auto: str) -> Iterator[ArgumentError]:
    # "auto" is the only text here: the Trainer fills it in with the argument.
    if value is not None and not isinstance(value, str) and value != asked:
        yield ArgumentError(
            f"the DeepSpeed config has {key} {value}, the arguments have --{name} {asked}",
            place=f"--deepspeed: {key} and --{name}",
            fix=f"write {auto} in the config, so that the argument counts",
        )


def _zero_fields() -> frozenset[str]:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig  # takes seconds, and only a config needs it

    # Asked of DeepSpeed itself, so that the list follows the version that is installed; some have an alias.
    fields = DeepSpeedZeroConfig.model_fields
    return frozenset([*fields, *(str(field.alias) for field in fields.values() if field.alias)])


def _zero_types(zero: dict[str, Any]) -> Iterator[ArgumentError]:
    # The model forbids keys that it does not know, which check_keys has said better; "auto" is the Trainer's.
    known = _zero_fields() - REMOVED_KEYS.keys()
    given = _without_auto({key: value for key, value in zero.items() if key in known})
    if isinstance(given.get("stage"), int) and given["stage"] not in (0, 1, 2, 3):
        given.pop("stage")  # said by check_combinations
    yield from _unreadable("zero_optimization", given, "zero_optimization")


def _faults(error: pydantic.ValidationError, block: str) -> Iterator[ArgumentError]:
    for fault in error.errors():
        keys = ".".join(str(part) for part in fault["loc"])
        yield ArgumentError(
            f"{keys or block} is {_shown(fault.get('input'))}: {fault['msg'].lower()}",
            place=f"--deepspeed: {'.'.join(filter(None, (block, keys)))}",
            fix=f"take {keys or 'the block'} out, so that DeepSpeed's default counts, or write such a value",
        )


def _never_filled_in(block: Mapping[str, Any], place: str = "") -> Iterator[ArgumentError]:
    """Keys with an "auto" that neither the Trainer nor hftune replaces: accelerate stops there, with a model loaded."""
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from _never_filled_in(value, f"{place}{key}.")
        elif value == "auto" and key not in FILLED_IN:
            yield ArgumentError(
                f'"{key}" is "auto", and nothing fills it in',
                place=f"--deepspeed: {place}{key}",
                fix="write its value, or take it out, so that DeepSpeed's default counts",
            )


def _unreadable(key: str, value: Any, place: str = "") -> Iterator[ArgumentError]:
    """A problem of a block that DeepSpeed itself cannot read, which would end a run with the model loaded."""
    import pydantic
    from deepspeed import DeepSpeedConfig, DeepSpeedConfigError

    if isinstance(value, Mapping):  # hftune takes secrets out that DeepSpeed does not know
        value = {name: inner for name, inner in value.items() if not says_secret(str(name))}
    try:
        DeepSpeedConfig({MICRO: 1, STEPS: 1, key: value})
    except pydantic.ValidationError as error:
        yield from _faults(error, place)
    except (DeepSpeedConfigError, ValueError, TypeError, AttributeError, LookupError, AssertionError):
        fix = f"take {key} out, so that DeepSpeed's default counts, or write what it has there"
        yield ArgumentError(f'DeepSpeed cannot read "{key}": {_shown(value)}', place=f"--deepspeed: {key}", fix=fix)


def _without_auto(block: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_auto(value) if isinstance(value, dict) else value
        for key, value in block.items()
        if value != "auto"
    }


def _unknown(key: str, place: str, known: frozenset[str], elsewhere: dict[str, str]) -> ArgumentError:
    if key in elsewhere:
        fix = f"it belongs {'into zero_optimization' if '.' in elsewhere[key] else 'to the top level'}"
    else:
        fix = did_you_mean(key, known, written='"{}"') or "remove it"
    return ArgumentError(f'DeepSpeed knows no config key "{key}"', place=f"--deepspeed: {place}", fix=fix)


def _shown(value: Any) -> str:
    return repr(value) if not isinstance(value, dict) else "a block"
