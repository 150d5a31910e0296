"""What the features of DeepSpeed beyond ZeRO need, and what they exclude: pure functions on dicts, a rule each.

DeepSpeed 0.19 meets most of these after the model has loaded: by an assertion, by a hang, or by doing less than was
asked for without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hftune.checks import refused_by
from hftune.distributed.ds_config import DsConfig
from hftune.errors import ArgumentError


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
    """

    on_cpu: bool
    world_size: int = 1
    bf16: bool = False
    optim: str = "adamw_torch"
    recomputes: bool = False
    nvme_path: str | None = None
    has_aio: bool = True


def check_features(config: DsConfig, setting: Setting) -> Iterator[ArgumentError]:
    """Problems with any of the features, by all rules below."""
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping) or not isinstance(zero.get("stage", 0), int):
        zero = {}  # said by ds_keys
    blocks = [*("fp16", "bf16", "compile", "optimizer", "scheduler", "activation_checkpointing", "hybrid_engine")]
    blocks += ["data_efficiency", "autotuning", "checkpoint", "datastates_ckpt", "tensor_parallel"]
    of_config = SimpleNamespace(zero=zero, **{name: config.get(name) for name in blocks})
    # By its own name: `bf16` of a setting is what is computed in.
    computed = SimpleNamespace(in_bf16=setting.bf16)
    yield from refused_by(__package__, "features", of_config, computed, setting)
    for name in uses_nvme(zero):
        yield from _folder(name, zero[name].get("nvme_path"), setting.nvme_path)


def uses_nvme(zero: Mapping[str, Any]) -> list[str]:
    """Which of the two blocks go to NVMe: "offload_optimizer", "offload_param"."""
    blocks = {name: zero.get(name) for name in ("offload_optimizer", "offload_param")}
    return [name for name, block in blocks.items() if isinstance(block, Mapping) and block.get("device") == "nvme"]


def _folder(block: str, written: Any, given: str | None) -> Iterator[ArgumentError]:
    key = f"zero_optimization.{block}.nvme_path"
    written = None if written in (None, "", "auto") else str(written)
    # The config's own folder counts where the argument is silent, as for all that both can name.
    folder = written or given
    cause = f"there is no folder {folder}" if folder else f"{block} to nvme names no folder"
    fix = "add --nvme_path FOLDER, which is there, on a local NVMe disk"
    if written and given and written != given:
        cause = f"the DeepSpeed config has {key} {written}, the arguments have --nvme_path {given}"
        fix = 'write "nvme_path": "auto" in the config, so that the argument counts'
    elif folder and Path(folder).is_dir():
        return
    yield ArgumentError(cause, place=f"--deepspeed: {key}, --nvme_path", fix=fix)
