"""Read, check and resolve a DeepSpeed config: pure functions on dicts.

"auto" values are left to the Trainer, which knows batch size, clipping and precision.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from hftune.distributed import ds_keys
from hftune.distributed.ds_features import Setting, check_features, uses_nvme
from hftune.distributed.ds_keys import DsConfig
from hftune.errors import ArgumentError, did_you_mean
from hftune.opening.files import MIB
from hftune.opening.json_file import parse_json, read_json
from hftune.secrets import learn_config

_LIMIT = MIB
_FIX = "mend the JSON of the DeepSpeed config there"
SHIPPED = Path(__file__).parents[2] / "ds_configs"


def read_ds_config(value: str | DsConfig) -> DsConfig:
    """The config behind a `--deepspeed` value: a name of `ds_configs/`, a path, inline JSON, or a dict that is copied.

    Raises:
        ArgumentError: The file is missing, or its JSON is broken or not an object.
    """
    config: DsConfig
    if isinstance(value, dict):
        return copy.deepcopy(value)
    if value.lstrip().startswith("{"):
        config = parse_json(value, "--deepspeed", error=ArgumentError, fix=_FIX)
        learn_config(config)
        return config
    path = Path(value)
    shipped = {file.stem: file for file in sorted(SHIPPED.glob("*.json"))}
    if not path.is_file():
        # A relative path is looked for beside the scripts as well, so that they run from any folder.
        path = shipped.get(value) or SHIPPED.parent / value
    if not path.is_file():
        listed = f"Give a path, inline JSON, or one of: {', '.join(shipped)}"
        raise ArgumentError(
            f"there is no DeepSpeed config {value}",
            place="--deepspeed",
            fix=f"{did_you_mean(path.stem, shipped)} {listed}".strip(),
        )
    config = read_json(path, limit=_LIMIT, error=ArgumentError, fix=_FIX)
    learn_config(config)
    return config


def zero_stage(config: DsConfig | None) -> int:
    """ZeRO stage 0 to 3; 0 for no config."""
    return int((config or {}).get("zero_optimization", {}).get("stage", 0))


def live_config(training_args: Any) -> DsConfig:
    """The config that accelerate hands to DeepSpeed, to be changed in place; an empty one without DeepSpeed."""
    return getattr(getattr(training_args, "hf_deepspeed_config", None), "config", None) or {}


def offload_device(config: DsConfig | None, what: str) -> str | None:
    """Where `what` ("optimizer" or "param") is offloaded to: "cpu", "nvme", or None."""
    block = (config or {}).get("zero_optimization", {}).get(f"offload_{what}") or {}
    device = block.get("device", "none")
    return None if device == "none" else str(device)


def asks_for_compiling(config: DsConfig) -> bool:
    """Whether DeepCompile is switched on, which does nothing unless the model is compiled."""
    return bool((config.get("compile") or {}).get("deepcompile"))


def check_ds_config(config: DsConfig, setting: Setting | None = None) -> list[ArgumentError]:
    """Problems that DeepSpeed would only meet after the model has loaded.

    Args:
        config: As read.
        setting: The run that it is for; None: bf16 on one GPU, with all that DeepSpeed can ask for.
    """
    problems = [*ds_keys.check_keys(config), *ds_keys.check_types(config)]
    problems += ds_keys.check_combinations(config)
    problems += check_features(config, setting or Setting(on_cpu=False, bf16=True))
    if "optimizer" in config:
        problems.append(
            ArgumentError(
                "an optimizer in the DeepSpeed config loses the Trainer's parameter groups (weight decay, LoRA+)",
                place="--deepspeed: optimizer",
                fix="remove the block and use --optim, --learning_rate, --weight_decay; offload still works",
            )
        )
    if "scheduler" in config:
        problems.append(
            ArgumentError(
                "a scheduler in the DeepSpeed config overrules --lr_scheduler_type and knows no groups",
                place="--deepspeed: scheduler",
                fix="remove the block and use --lr_scheduler_type (WarmupLR: constant_with_warmup, "
                "WarmupDecayLR: linear, WarmupCosineLR: cosine), --warmup_steps, --min_lr",
            )
        )
    return problems


def resolve_ds_config(
    config: DsConfig,
    *,
    has_compiler: bool,
    on_cpu: bool,
    optim: str = "adamw_torch",
    nvme_path: str | None = None,
    machine: int = 1,
) -> tuple[DsConfig, list[str]]:
    """The config as it will be used, and what was changed and why, one line each.

    Args:
        config: As read; not modified.
        has_compiler: Whether a C++ compiler and ninja are there, which DeepSpeedCPUAdam needs.
        on_cpu: Whether training runs on the CPU.
        optim: The optimizer, as transformers names it, or "muon".
        nvme_path: Where NVMe offload goes, in blocks that leave it to the arguments.
        machine: Number of processes on this machine, the size of a group of hpZ that is "auto".
    """
    resolved, changes = copy.deepcopy(config), []
    zero = resolved.setdefault("zero_optimization", {})
    if zero_stage(resolved) == 3 and not zero.get("stage3_gather_16bit_weights_on_model_save"):
        zero["stage3_gather_16bit_weights_on_model_save"] = True
        changes.append("ZeRO-3: stage3_gather_16bit_weights_on_model_save set, or no weights would be saved")
    for block in uses_nvme(zero):
        if zero[block].get("nvme_path", "auto") == "auto":
            zero[block]["nvme_path"] = nvme_path
    if zero.get("zero_hpz_partition_size") == "auto":
        zero["zero_hpz_partition_size"] = machine
        changes.append(f"hpZ: weights are gathered within {machine} process(es), those of a machine")
    if offload_device(resolved, "optimizer") and resolved.get("zero_force_ds_cpu_optimizer", True):
        changes += _resolve_offloaded_optimizer(resolved, has_compiler, optim)
    if optim == "muon" and zero_stage(resolved) == 3 and zero.get("reduce_scatter", True):
        zero["reduce_scatter"] = False
        changes.append("muon under ZeRO-3: reduce_scatter switched off, since it needs whole gradients")
    if on_cpu and resolved.get("fp16", {}).get("enabled") is True:
        changes.append("fp16 on a CPU is slow and unstable; bf16 or fp32 is meant for it")
    return resolved, changes


def fill_in_sizes(config: DsConfig) -> list[str]:
    """What was left to the arguments, in a line: a config that names no batch size leaves it to them. Changed in place.

    DeepSpeed would stop when the model is loaded (0.18: "Either train_batch_size or train_micro_batch_size_per_gpu").
    """
    if "train_batch_size" in config or ds_keys.MICRO in config:
        return []
    missing = [name for name in (ds_keys.MICRO, ds_keys.STEPS, ds_keys.CLIPPING) if name not in config]
    config |= dict.fromkeys(missing, "auto")
    return [f"the DeepSpeed config names no {', '.join(missing)}: the arguments count"]


def _resolve_offloaded_optimizer(config: DsConfig, has_compiler: bool, optim: str) -> list[str]:
    """accelerate swaps any offloaded optimizer for DeepSpeedCPUAdam, which is the same for AdamW only."""
    if not optim.startswith("adamw_torch"):
        config["zero_force_ds_cpu_optimizer"] = False
        return [f"offload: {optim} itself updates the weights on the CPU; only AdamW has a faster twin in DeepSpeed"]
    if not has_compiler:
        config["zero_force_ds_cpu_optimizer"] = False
        twin = "torch's AdamW instead of DeepSpeedCPUAdam"
        return [f"no C++ compiler here, or no ninja: the offloaded optimizer is {twin}"]
    return []
