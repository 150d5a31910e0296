"""Memory in use between the steps and around them: weights, states, and communication buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hftune.distributed.ds_config import DsConfig
from hftune.preflight.memory import ModelSize, Setup

_BUCKET = 500_000_000
"""Elements of a bucket where DeepSpeed's config says nothing."""


@dataclass(frozen=True)
class Largest:
    """Weights that ZeRO-3 gathers at a time, as numbers.

    Args:
        layer: Of the largest layer.
        module: Of the largest single module: embeddings or head.
        hidden: Size of a hidden state.
    """

    layer: int
    module: int
    hidden: int


@dataclass(frozen=True)
class Buffers:
    """Bytes that communication takes where the process trains.

    Args:
        standing: While the backward pass runs, and between.
        gathered: Weights that ZeRO-3 has put together at a time.
        step: While the optimizer runs, above states and gradients.
        pinned: In the machine's memory.
    """

    standing: float = 0.0
    gathered: float = 0.0
    step: float = 0.0
    pinned: float = 0.0


def zero_block(config: DsConfig | None) -> dict[str, Any]:
    """The `zero_optimization` of a config; empty without one."""
    return (config or {}).get("zero_optimization") or {}


def bucket(config: DsConfig | None, name: str, auto: int, default: int = _BUCKET) -> int:
    """The elements of a bucket: as given, what transformers puts in for "auto", or DeepSpeed's default."""
    value = zero_block(config).get(name, default)
    # 5e8 in a config is a float, and may be quoted.
    return auto if value == "auto" else int(float(value))


def buffers(size: ModelSize, setup: Setup, config: DsConfig | None, largest: Largest) -> Buffers:
    """The buffers of DistributedDataParallel, or of a ZeRO stage (DeepSpeed 0.19)."""
    kept = 2.0 if setup.half else setup.weight_bytes
    if not setup.deepspeed:
        # DistributedDataParallel copies gradients into buckets of its own (`gradient_as_bucket_view` is off).
        return Buffers(standing=size.trained * setup.gradient_bytes if setup.processes > 1 else 0.0)
    if setup.zero_stage == 3:
        return _stage_3(size, setup, config, largest, kept)
    if setup.zero_stage == 0:
        # Stage 0 reduces gradients through one flat copy of at most a bucket.
        return Buffers(standing=min(_BUCKET, size.trained) * kept)
    return _stages_1_and_2(size, setup, config, largest, kept)


def _stages_1_and_2(size: ModelSize, setup: Setup, config: DsConfig | None, largest: Largest, kept: float) -> Buffers:
    zero = zero_block(config)
    reduced = bucket(config, "reduce_bucket_size", largest.hidden**2)
    # `setup_buckets` allocates them whole, however few parameters there are.
    # With `overlap_comm` one bucket fills while the other is on its way.
    doubled = 2 if zero.get("overlap_comm", False) else 1
    standing = reduced * kept * doubled if zero.get("contiguous_gradients", True) else 0.0
    # The optimizer's share of the gradients becomes float32 when it runs.
    step = 0.0 if setup.offload_optimizer else size.trained * setup.copy_bytes / setup.processes
    # Offloaded gradients reach the CPU optimizer through pinned memory.
    pinned = size.trained * setup.copy_bytes / setup.processes if setup.offload_optimizer else 0.0
    return Buffers(standing=standing, step=step, pinned=pinned)


def _stage_3(size: ModelSize, setup: Setup, config: DsConfig | None, largest: Largest, kept: float) -> Buffers:
    hidden = largest.hidden
    reduced = bucket(config, "reduce_bucket_size", hidden**2)
    # "auto" after transformers 5.23 (`integrations/deepspeed.py`), defaults after DeepSpeed's `zero/config.py`.
    prefetched = bucket(config, "stage3_prefetch_bucket_size", int(0.9 * hidden**2), 50_000_000)
    live = bucket(config, "stage3_max_live_parameters", 1_000_000_000, 1_000_000_000)
    # The module at work is gathered whatever the bound; what is fetched ahead of it keeps to the bound.
    needed = max(largest.layer, largest.module)
    gathered = min(max(live, needed), needed + prefetched, size.weights + size.adapter)
    step = 0.0 if setup.offload_optimizer else size.trained * setup.copy_bytes / setup.processes
    pinned = 0.0
    if setup.on_disk:
        # Weights on NVMe pass through pinned buffers of 16 bit; 5 and 10^8 are DeepSpeed's defaults
        # (`offload_config.py`). The block is wrapped because `bucket` looks into a `zero_optimization`.
        block = zero_block(config).get("offload_param") or {}
        pinned = (
            int(block.get("buffer_count", 5)) * bucket({"zero_optimization": block}, "buffer_size", 10**8, 10**8) * 2.0
        )
    # A second of the reducing bucket: what is scattered is laid out by receivers first.
    return Buffers(2 * reduced * kept, gathered * kept, step, pinned)


def step_extra(size: ModelSize, setup: Setup, optim: str, largest: Largest) -> float:
    """The bytes of temporaries that torch's optimizers make while they run.

    Fused ones and bitsandbytes' make nothing.
    """
    if optim in ("adamw_torch", "adamw") and not setup.offload_optimizer:
        # AdamW's denominators in float32: `foreach`, the default on a GPU, makes all at once, the loop on a CPU one at
        # a time.
        one = max(largest.module, largest.layer) if size.trained == size.weights else 0
        return 4.0 * (one if setup.on_cpu else size.trained / (setup.processes if setup.zero_stage else 1))
    return 0.0
