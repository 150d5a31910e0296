"""What the features of DeepSpeed beyond ZeRO need, and what they exclude: pure functions on dicts, a rule each.

DeepSpeed 0.19 meets most of these after the model has loaded: by an assertion, by a hang, or by doing less than was
asked for without a word.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hftune.checks import refused_by
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
    of_config = SimpleNamespace(zero=zero, **{name: config.get(name) for name in ("bf16", "compile")})
    # By its own name: `bf16` of a setting is what is computed in.
    computed = SimpleNamespace(in_bf16=setting.bf16)
    yield from refused_by(__package__, "features", of_config, computed, setting)
    for name in uses_nvme(zero):
        yield from _folder(name, zero[name].get("nvme_path"), setting.nvme_path)
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
