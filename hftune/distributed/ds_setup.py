"""The DeepSpeed config of a run: the given one, checked, completed, without secrets.

Imported where `--deepspeed` is given. "auto" values are left to the Trainer, which knows batch size and precision.
"""

from __future__ import annotations

import copy
import os
from typing import Any

from hftune.distributed import ds_keys, launch, ranks, tensor_parallel
from hftune.distributed.ds_config import DsConfig, asks_for_compiling, offload_device, read_ds_config, zero_stage
from hftune.distributed.ds_features import Setting, check_features, uses_nvme
from hftune.errors import ArgumentError, raise_together
from hftune.logging import notice
from hftune.secrets import learn_config, redact, says_secret


def prepare(args: Any) -> None:
    """Read, check and complete the config behind `--deepspeed`; a notice says what was changed.

    Args:
        args: Of training, as parsed. Gets `ds_resolved`, as DeepSpeed is to read it, and `deepspeed`, as it is while
            the model is loaded; `torch_compile`, where the config asks for it.

    Raises:
        ArgumentError: All problems in one message.
    """
    config = read_ds_config(args.deepspeed)
    # All before the first change: a problem of the result could not be told from one of what was given.
    problems = check_ds_config(config, setting_of(args, config))
    problems += ds_keys.check_against_arguments(config, vars(args), ranks.world_size())
    raise_together(problems)
    resolved, changes = resolve_ds_config(
        config,
        has_compiler=launch.can_build_operators(),
        on_cpu=args.use_cpu,
        optim=args.optim_name,
        nvme_path=args.nvme_path,
        local_processes=ranks.local_world_size(),
    )
    compiles = asks_for_compiling(resolved)
    if compiles and not args.torch_compile:
        notice("DeepCompile compiles with --torch_compile, which is switched on")
    # From here on the config is written: into checkpoints, the log and the manifest.
    resolved, removed = remove_secrets(resolved)
    for change in (*changes, *fill_in_sizes(resolved), *removed):
        notice(change)
    args.torch_compile = compiles or args.torch_compile
    # transformers keeps only a weak reference to what it makes of this, so the arguments must outlive the model.
    args.ds_resolved = tensor_parallel.with_size(resolved, args.tensor_parallel_size)
    args.deepspeed = tensor_parallel.without_block(args.ds_resolved)


def setting_of(args: Any, config: DsConfig) -> Setting:
    """The run that a config is for; what takes seconds to find out is looked up only where the config needs it."""
    zero = config.get("zero_optimization")
    return Setting(
        on_cpu=args.use_cpu,
        world_size=ranks.world_size(),
        bf16=bool(args.bf16),
        optim=args.optim_name,
        recomputes=args.recomputation is not None,
        nvme_path=args.nvme_path,
        has_aio=not (isinstance(zero, dict) and uses_nvme(zero)) or launch.has_async_io(),
    )


def check_ds_config(config: DsConfig, setting: Setting | None = None) -> list[ArgumentError]:
    """Problems that DeepSpeed would only meet after the model has loaded.

    Args:
        config: As read.
        setting: The run that it is for; None: bf16 on one GPU, with all that DeepSpeed can ask for.
    """
    return [*ds_keys.check_keys(config), *check_features(config, setting or Setting(on_cpu=False, bf16=True))]


def resolve_ds_config(
    config: DsConfig,
    *,
    has_compiler: bool,
    on_cpu: bool,
    optim: str = "adamw_torch",
    nvme_path: str | None = None,
    local_processes: int = 1,
) -> tuple[DsConfig, list[str]]:
    """The config as it will be used, and what was changed and why, one line each.

    Args:
        config: As read; not modified.
        has_compiler: Whether a C++ compiler and ninja are there, which DeepSpeedCPUAdam needs.
        on_cpu: Whether training runs on the CPU.
        optim: The optimizer, as transformers names it, or "muon".
        nvme_path: Where NVMe offload goes, in blocks that leave it to the arguments.
        local_processes: Of this machine: the size of a group of hpZ that is "auto".
    """
    resolved, changes = copy.deepcopy(config), []
    zero = resolved.setdefault("zero_optimization", {})
    zero.setdefault("stage", 0)  # DeepSpeed's own default, which accelerate looks up when weights are saved
    # accelerate refuses to gather weights for saving without it (`Accelerator.get_state_dict`).
    if zero_stage(resolved) == 3 and not zero.get("stage3_gather_16bit_weights_on_model_save"):
        zero["stage3_gather_16bit_weights_on_model_save"] = True
        changes.append("ZeRO-3: stage3_gather_16bit_weights_on_model_save set, or no weights would be saved")
    for block in uses_nvme(zero):
        if zero[block].get("nvme_path", "auto") == "auto":
            zero[block]["nvme_path"] = nvme_path
    if zero.get("zero_hpz_partition_size") == "auto":
        zero["zero_hpz_partition_size"] = local_processes
        changes.append(f"hpZ: weights are gathered within {local_processes} process(es), those of a machine")
    if offload_device(resolved, "optimizer") and resolved.get("zero_force_ds_cpu_optimizer", True):
        changes += _resolve_offloaded_optimizer(resolved, has_compiler, optim)
    if optim == "muon" and zero_stage(resolved) == 3 and zero.get("reduce_scatter", True):
        # Muon orthogonalises a whole matrix; a scattered gradient is a slice of it.
        zero["reduce_scatter"] = False
        changes.append("muon under ZeRO-3: reduce_scatter switched off, since it needs whole gradients")
    if on_cpu and resolved.get("fp16", {}).get("enabled") is True:
        changes.append("fp16 on a CPU is slow and unstable; bf16 or fp32 is meant for it")
    return resolved, changes


def fill_in_sizes(config: DsConfig) -> list[str]:
    """Set batch sizes that the config does not name to "auto", in place; returns a line that says so.

    DeepSpeed would stop when the model is loaded (0.18: "Either train_batch_size or train_micro_batch_size_per_gpu").
    """
    if "train_batch_size" in config or ds_keys.MICRO in config:
        return []
    missing = [name for name in (ds_keys.MICRO, ds_keys.STEPS, ds_keys.CLIPPING) if name not in config]
    # "auto" has the Trainer fill in the arguments' values.
    config |= dict.fromkeys(missing, "auto")
    return [f"the DeepSpeed config names no {', '.join(missing)}: the arguments count"]


def _resolve_offloaded_optimizer(config: DsConfig, has_compiler: bool, optim: str) -> list[str]:
    """Keep accelerate from swapping an offloaded optimizer for DeepSpeedCPUAdam where that is not the same."""
    if not optim.startswith("adamw_torch"):
        config["zero_force_ds_cpu_optimizer"] = False
        return [f"offload: {optim} itself updates the weights on the CPU; only AdamW has a faster twin in DeepSpeed"]
    if not has_compiler:
        config["zero_force_ds_cpu_optimizer"] = False
        twin = "torch's AdamW instead of DeepSpeedCPUAdam"
        return [f"no C++ compiler here, or no ninja: the offloaded optimizer is {twin}"]
    return []


def remove_secrets(config: DsConfig) -> tuple[DsConfig, list[str]]:
    """A copy of the config without secrets, and a line that says so where there were any.

    Left out is whatever stands under a key that says so, at any depth and of any type; in other texts, such as URLs,
    secrets become `***`. DeepSpeed writes its config into every checkpoint and into its log.
    """
    learn_config(config)  # so that `redact` knows them wherever they are quoted, here and later
    comet = config.get("comet")
    key = comet.get("api_key") if isinstance(comet, dict) else None
    if isinstance(key, str) and key:
        # Before the tracker starts, which asks this variable where the config is silent.
        os.environ["COMET_API_KEY"] = key
    clean = _without_secrets(config)
    said = "the DeepSpeed config holds secrets, which are left out (the key of comet is kept in COMET_API_KEY)"
    return clean, [said] if clean != config else []


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(entry) for entry in value]
    if isinstance(value, dict):
        # What is empty, None, True or False is no secret; a key may quote one as well, such as a URL with a password.
        return {
            redact(name) if isinstance(name, str) else name: _without_secrets(entry)
            for name, entry in value.items()
            if not says_secret(str(name)) or not entry or isinstance(entry, bool)
        }
    return redact(value) if isinstance(value, str) else value
