"""What the features of DeepSpeed beyond ZeRO need, and what they exclude: pure functions on dicts, a rule each.

DeepSpeed 0.19 meets most of these after the model has loaded: by an assertion, by a hang, or by doing less than was
asked for without a word.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.distributed.ds_config import DsConfig
from hftune.errors import ArgumentError

QUANTISED = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")
"""What of ZeRO++ sends quantised values."""


_REMOVE = "remove it"
_WRITES = "a checkpoint while training continues; hftune publishes one when all of it is there"
_LESS = "remove it; save less often (--save_steps) or without the optimizer (--save_only_model)"
# Each of these would be accepted by DeepSpeed and either do nothing or fight with the Trainer.
REFUSED: dict[str, tuple[str, str]] = {
    "activation_checkpointing": (
        "models of transformers do not read DeepSpeed's activation checkpointing: it would do nothing",
        "remove it and use --activation_checkpointing, --activation_checkpointing_offload",
    ),
    "zero_optimization.zenflow": (
        "ZenFlow builds its optimizer from an optimizer block and counts accumulation by itself; the Trainer does both",
        'remove it; "offload_optimizer" alone works (ds_configs/zero2_offload.json)',
    ),
    "hybrid_engine.enabled": ("DeepSpeed's hybrid engine draws answers in a loop of its own", _REMOVE),
    "data_efficiency.enabled": (
        "DeepSpeed's data sampling needs a loader of its own, and the Trainer has one",
        _REMOVE,
    ),
    "autotuning.enabled": ("DeepSpeed's autotuner ends a run after some steps", _REMOVE),
    "checkpoint.writer": (f"FastPersist writes {_WRITES}", _LESS),
    "datastates_ckpt": (f"DataStates writes {_WRITES}", _LESS),
}
"""A key, with the block that it stands in; why, and what to do."""


@dataclass(frozen=True)
class Setting:
    """The run that a config is for.

    Args:
        on_cpu: Training runs on the CPU.
        world_size: Number of processes.
        bf16: Whether bf16 is computed in.
        optim: The optimizer, as transformers names it, or "muon".
        recomputes: Whether activations are recomputed.
        nvme_path: `--nvme_path`.
        has_aio: Whether DeepSpeed's asynchronous files work here; asked only where a config needs them.
        has_compiler: Whether C++ operators can be compiled.
        unbuilt: Those of `gpu_operators` that are not there and cannot be compiled.
    """

    on_cpu: bool
    world_size: int = 1
    bf16: bool = False
    optim: str = "adamw_torch"
    recomputes: bool = False
    nvme_path: str | None = None
    has_aio: bool = True
    has_compiler: bool = True
    unbuilt: frozenset[str] = frozenset()


def check_features(config: DsConfig, setting: Setting) -> Iterator[ArgumentError]:
    """Problems with any of the features, by all rules below."""
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping) or not isinstance(zero.get("stage", 0), int):
        zero = {}  # said by ds_keys
    yield from _refused_blocks(config)
    yield from _hpz(zero, setting)
    yield from _quantised(zero, setting)
    yield from _nvme(zero, setting)
    yield from _low_states(config, zero, setting)
    yield from _super_offload(zero, setting)
    yield from _deepcompile(config, zero, setting)
    # Last: a refusal of the feature itself is more use than one of its operator.
    yield from _operators(config, setting)


def uses_nvme(zero: Mapping[str, Any]) -> list[str]:
    """Which of the two blocks go to NVMe: "offload_optimizer", "offload_param"."""
    blocks = {name: zero.get(name) for name in ("offload_optimizer", "offload_param")}
    return [name for name, block in blocks.items() if isinstance(block, Mapping) and block.get("device") == "nvme"]


def gpu_operators(config: DsConfig) -> dict[str, str]:
    """The GPU operators that a config uses, by DeepSpeed's names, and the keys that need each."""
    zero, block = config.get("zero_optimization"), config.get("compile")
    zero = zero if isinstance(zero, Mapping) else {}
    quantised, offloaded = [name for name in QUANTISED if zero.get(name)], uses_nvme(zero)
    found = {}
    if quantised:
        found["quantizer"] = ", ".join(f"zero_optimization.{name}" for name in quantised)
    if offloaded:
        found["async_io"] = ", ".join(f"zero_optimization.{name}.device" for name in offloaded)
    if isinstance(block, Mapping) and block.get("deepcompile"):
        found["dc"] = "compile.deepcompile"
    return found


def _operators(config: DsConfig, setting: Setting) -> Iterator[ArgumentError]:
    for name, keys in gpu_operators(config).items():
        if name in setting.unbuilt:
            yield _error(
                f"DeepSpeed compiles its operator {name} for this with the CUDA toolkit and ninja, which are not here",
                keys,
                "install the toolkit (nvcc) and ninja, and set CUDA_HOME; or remove it",
            )


def _error(cause: str, key: str, fix: str) -> ArgumentError:
    return ArgumentError(cause, place=f"--deepspeed: {key}", fix=fix)


def _refused_blocks(config: DsConfig) -> Iterator[ArgumentError]:
    for key, (cause, fix) in REFUSED.items():
        name, _, inner = key.partition(".")
        block = config.get(name)
        if isinstance(block, Mapping):
            asked: Any = _is_enabled(block) if inner == "enabled" else block.get(inner) if inner else block
            if asked and (inner or block.get("enabled", True)):
                yield _error(cause, key, fix)


def _is_enabled(block: Mapping[str, Any]) -> bool:
    """Whether it is, or a part of it, which DeepSpeed asks by itself."""
    return bool(block.get("enabled")) or any(_is_enabled(part) for part in block.values() if isinstance(part, Mapping))


def _hpz(zero: Mapping[str, Any], setting: Setting) -> Iterator[ArgumentError]:
    key, group = "zero_optimization.zero_hpz_partition_size", zero.get("zero_hpz_partition_size", 1)
    # One process a group is DeepSpeed's default and means no hpZ.
    if group == 1:
        return
    if zero.get("stage", 0) != 3:
        yield _error(
            "hpZ keeps a second copy of partitioned weights, and only ZeRO stage 3 partitions them",
            key,
            'set "stage": 3, or remove it',
        )
    # "auto" is filled in later with the processes of a machine, of which the world is a multiple.
    elif isinstance(group, int) and (group < 1 or setting.world_size % group):
        yield _error(
            f"{setting.world_size} processes do not divide into groups of {group}",
            key,
            'take the number of processes on a machine; "auto" does',
        )


def _quantised(zero: Mapping[str, Any], setting: Setting) -> Iterator[ArgumentError]:
    names = [name for name in QUANTISED if zero.get(name)]
    if not names:
        return
    keys = ", ".join(f"zero_optimization.{name}" for name in names)
    if zero.get("stage", 0) != 3:
        yield _error("only ZeRO stage 3 sends quantised values", keys, 'set "stage": 3, or remove it')
    elif setting.on_cpu:
        yield _error(
            "DeepSpeed quantises what it sends with a CUDA kernel, and this runs on the CPU",
            keys,
            "train on a GPU, or use ds_configs/zero3_hpz.json or zero3.json",
        )


def _nvme(zero: Mapping[str, Any], setting: Setting) -> Iterator[ArgumentError]:
    blocks = uses_nvme(zero)
    if not blocks:
        if setting.nvme_path is not None:
            yield ArgumentError(
                "a folder for NVMe offload, and nothing is offloaded to NVMe",
                place="--nvme_path",
                fix="add --deepspeed zero3_nvme, or leave it out",
            )
        return
    # DeepSpeed 0.19 takes NVMe for the CPU's memory there, without a word.
    if zero.get("stage", 0) in (1, 2) and "offload_optimizer" in blocks:
        yield _error(
            f"ZeRO stage {zero['stage']} would keep the optimizer in the CPU's memory instead of on NVMe",
            "zero_optimization.offload_optimizer.device",
            'set "stage": 3, or "device": "cpu"',
        )
    # They are compiled as the engine is made, which would fail after the model has loaded.
    if not setting.has_aio:
        yield _error(
            "DeepSpeed's asynchronous files need a C++ compiler and libaio with its headers, which are not here",
            ", ".join(f"zero_optimization.{name}" for name in blocks),
            "install them (apt install libaio-dev g++), or offload to the CPU (zero3_offload)",
        )
    for name in blocks:
        yield from _folder(name, zero[name].get("nvme_path"), setting.nvme_path)


def _folder(block: str, written: Any, given: str | None) -> Iterator[ArgumentError]:
    key = f"zero_optimization.{block}.nvme_path"
    written = None if written in (None, "", "auto") else str(written)
    if written and given and written != given:
        yield ArgumentError(
            f"the DeepSpeed config has {key} {written}, the arguments have --nvme_path {given}",
            place=f"--deepspeed: {key} and --nvme_path",
            fix='write "nvme_path": "auto" in the config, so that the argument counts',
        )
        return
    # The config's own folder counts where the argument is silent, as for all that both can name.
    folder = written or given
    if folder is None:
        yield _error(f"{block} to nvme names no folder", key, "add --nvme_path FOLDER, on a local NVMe disk")
    elif not Path(folder).is_dir():
        yield _error(f"there is no folder {folder}", key, "make it, on a local NVMe disk")
    elif not _takes_files(folder):
        yield _error(f"no file can be written in {folder}", key, "give a folder of yours, on a local NVMe disk")


def _takes_files(folder: str) -> bool:
    try:  # permissions say nothing of disks that are full or mounted read-only
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _low_states(config: DsConfig, zero: Mapping[str, Any], setting: Setting) -> Iterator[ArgumentError]:
    block = config.get("bf16")
    if not isinstance(block, Mapping):
        return  # said by ds_keys
    master, states = block.get("bf16_master_weights_and_grads"), block.get("bf16_optimizer_states")
    if not (master or states):
        return
    offload = zero.get("offload_optimizer")
    offloads = isinstance(offload, Mapping) and offload.get("device", "none") != "none"
    if not setting.bf16:
        yield _error(
            "optimizer states in bf16, and training is not in bf16", "bf16", "add --bf16 True, or use zero2 or zero3"
        )
    if zero.get("stage", 0) == 0:
        yield _error("states in bf16 need ZeRO stage 1, 2 or 3", "bf16", 'set "stage": 1 or more')
    # DeepSpeed 0.19 asserts it as it reads its config, after the model has loaded.
    if states and not master:
        yield _error(
            "moments in bf16 with weights in float32",
            "bf16.bf16_optimizer_states",
            'add "bf16_master_weights_and_grads": true',
        )
    elif states and offloads:
        yield _error(
            "the offloaded optimizer keeps its moments in float32",
            "bf16.bf16_optimizer_states, zero_optimization.offload_optimizer",
            "remove one of them",
        )
    elif master and not states and not offloads:
        yield _error(
            "weights in bf16 with moments in float32 work with an offloaded optimizer only",
            "bf16.bf16_master_weights_and_grads",
            'add "bf16_optimizer_states": true',
        )


def _super_offload(zero: Mapping[str, Any], setting: Setting) -> Iterator[ArgumentError]:
    block = zero.get("offload_optimizer")
    if not isinstance(block, Mapping) or not block.get("super_offload"):
        return
    key = "zero_optimization.offload_optimizer.super_offload"
    if zero.get("stage", 0) != 3 or block.get("device") != "cpu":
        yield _error('SuperOffload works with ZeRO stage 3 and "device": "cpu"', key, "set both, or remove it")
    if setting.on_cpu:
        yield _error(
            "SuperOffload moves states between an NVIDIA GPU and its CPU, and this runs on the CPU",
            key,
            "train on a GPU, or use ds_configs/zero3_offload.json",
        )
    elif not setting.has_compiler:
        yield _error(
            "SuperOffload updates with DeepSpeedCPUAdam, which is compiled, and a C++ compiler or ninja is not here",
            key,
            "install g++ and ninja, or remove it",
        )
    # Its optimizer steps on the CPU while the GPU computes, and exists for AdamW alone.
    if not setting.optim.startswith("adamw_torch"):
        yield _error(f"SuperOffload has AdamW alone, not {setting.optim}", key, "leave out --optim, or remove it")


def _deepcompile(config: DsConfig, zero: Mapping[str, Any], setting: Setting) -> Iterator[ArgumentError]:
    block = config.get("compile")
    if not isinstance(block, Mapping) or not block.get("deepcompile"):
        return
    key = "compile.deepcompile"
    if zero.get("stage", 0) == 0:
        yield _error("DeepCompile works with ZeRO stage 1, 2 or 3", key, 'set "stage", or use --torch_compile alone')
    if setting.on_cpu:
        yield _error(
            "DeepCompile has CUDA operators alone, and this runs on the CPU",
            key,
            "train on a GPU, or use ds_configs/zero3.json",
        )
    if setting.recomputes:
        yield ArgumentError(
            "DeepCompile plans by itself which weights and activations are there when, and cannot with recomputing",
            place=f"--deepspeed: {key} and --activation_checkpointing",
            fix="add --activation_checkpointing none",
        )
