"""Which keys a DeepSpeed config may have, and which of them contradict the arguments: pure functions on dicts.

DeepSpeed ignores an unknown key at the top level, and meets a wrong one below it after the model has loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hftune.distributed.ds_config import DsConfig
from hftune.errors import ArgumentError, did_you_mean
from hftune.secrets import says_secret

OLD_KEYS = {
    "bfloat16": 'write "bf16"',
    "cpu_offload": 'use "offload_optimizer": {"device": "cpu"}',
    "cpu_offload_param": 'use "offload_param": {"device": "cpu"}',
    "cpu_offload_use_pin_memory": 'use "offload_optimizer": {"device": "cpu", "pin_memory": true}',
}
"""Names that DeepSpeed still takes, and of which hftune, accelerate and transformers know nothing."""

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
_SAID_ELSEWHERE = frozenset([*FILLED_IN_NUMBERS, "optimizer", "scheduler", "tensor_parallel", "checkpoint"])


FILLED_IN = frozenset([
    "stage", "device", "nvme_path", "reduce_bucket_size", "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold", "stage3_gather_16bit_weights_on_model_save", "zero_hpz_partition_size",
])  # fmt: skip
"""Of zero_optimization, what may be "auto" (transformers 5.23, accelerate 1.15, hftune)."""


def check_keys(config: DsConfig) -> Iterator[ArgumentError]:
    """Problems of keys and values: unknown, old, or not to be read by DeepSpeed's own models.

    "auto" is left to the Trainer, where it fills that in.
    """
    zero = config.get("zero_optimization")
    for key in [*config, *(zero if isinstance(zero, Mapping) else ())]:
        if key in OLD_KEYS:
            yield ArgumentError(f'"{key}" is an old name', place=f"--deepspeed: {key}", fix=OLD_KEYS[key])
    for key, value in config.items():
        if key in NUMBERS and value != "auto" and (isinstance(value, bool) or not isinstance(value, int | float)):
            fix = 'write a number, or "auto"'
            yield ArgumentError(f'"{key}" is {_shown(value)}', place=f"--deepspeed: {key}", fix=fix)
        if key not in _SAID_ELSEWHERE and key not in OLD_KEYS:
            yield from _check_value(key, value, zero.get("stage") if isinstance(zero, Mapping) else 0)


def _check_value(key: str, value: Any, stage: Any) -> Iterator[ArgumentError]:
    refused = [] if value == "auto" else list(_unreadable(key, _as_read(value), stage))
    yield from refused
    if key in TOP_KEYS:
        # Of fp16 and bf16 transformers fills in whatever is "auto".
        yield from _never_filled_in({key: value} if key not in ("fp16", "bf16") else {})
    elif not refused:  # in its words, where DeepSpeed has removed it
        near = did_you_mean(key, TOP_KEYS, written='"{}"')
        fix = f"{near} remove it, or write it into the block that it belongs to".strip()
        yield ArgumentError(f'DeepSpeed knows no config key "{key}"', place=f"--deepspeed: {key}", fix=fix)


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


def _never_filled_in(block: Mapping[str, Any], place: str = "") -> Iterator[ArgumentError]:
    """Keys with an "auto" that neither the Trainer nor hftune replaces: accelerate stops there, with a model loaded."""
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from _never_filled_in(value, f"{place}{key}.")
        elif value == "auto" and not (key in FILLED_IN and place):
            yield ArgumentError(
                f'"{key}" is "auto", and nothing fills it in',
                place=f"--deepspeed: {place}{key}",
                fix="write its value, or take it out, so that DeepSpeed's default counts",
            )


def _unreadable(key: str, value: Any, stage: Any) -> Iterator[ArgumentError]:
    """Problems of a key that DeepSpeed itself refuses at a ZeRO stage, which would end a run with the model loaded."""
    import pydantic
    from deepspeed import DeepSpeedConfig, DeepSpeedConfigError  # takes seconds, and only a config needs it

    fix = f"take {key} out, so that DeepSpeed's default counts, or write what it has there"
    # What is wrong with the stage itself is said of its own block.
    beside = {"zero_optimization": {"stage": stage}} if stage in (0, 1, 2, 3) else {}
    try:
        DeepSpeedConfig({MICRO: 1, STEPS: 1, **beside, key: value})
    except pydantic.ValidationError as error:
        for fault in error.errors():
            inner = ".".join(str(part) for part in fault["loc"])
            cause = f"{inner or key} is {_shown(fault.get('input'))}: {fault['msg'].lower()}"
            # The blocks of monitors are parts of one model of DeepSpeed's.
            place = inner if inner.partition(".")[0] == key else ".".join(filter(None, (key, inner)))
            yield ArgumentError(cause, place=f"--deepspeed: {place}", fix=fix)
    except DeepSpeedConfigError as error:
        yield ArgumentError(str(error), place=f"--deepspeed: {key}", fix=fix)
    except (ValueError, TypeError, AttributeError, LookupError, AssertionError) as error:
        said = str(error) if isinstance(error, ValueError | AssertionError) else ""
        cause = f'DeepSpeed cannot read "{key}": {said or _shown(value)}'
        yield ArgumentError(cause, place=f"--deepspeed: {key}", fix=fix)


def _as_read(value: Any) -> Any:
    """A value as DeepSpeed is to read it: without "auto", and without secrets, which hftune takes out."""
    if not isinstance(value, Mapping):
        return value
    kept = {name: inner for name, inner in value.items() if inner != "auto" and not says_secret(str(name))}
    return {name: _as_read(inner) for name, inner in kept.items()}


def _shown(value: Any) -> str:
    return repr(value) if not isinstance(value, dict) else "a block"
