"""Memory beside the layers: states and buffers, head and loss, generation, and what parallel processes share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hftune.distributed.ds_config import DsConfig
from hftune.distributed.ranks import Mesh
from hftune.models.kernels.heads import CHUNK_BYTES, KEPT_BYTES
from hftune.models.structure import attention_layers, head_size
from hftune.preflight.estimating.work import Generation
from hftune.preflight.memory import ModelSize, Need, Setup, estimate
from hftune.preflight.model_folder import base_and_adapters
from hftune.weight_files import weight_shapes

_BUCKET = 500_000_000
"""Elements of a bucket where DeepSpeed's config says nothing."""


PARTS = ("weights", "gradients", "optimizer", "activations", "loss", "buffers", "other")
"""Of memory, as a plan shows them."""


@dataclass(frozen=True)
class Moment:
    """A moment of a step, and the bytes in use then, by part."""

    name: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """All parts."""
        return sum(self.parts.values())


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
    kept, zero = setup.kept_bytes, zero_block(config)
    if not setup.deepspeed:
        # DistributedDataParallel copies gradients into buckets of its own (`gradient_as_bucket_view` is off).
        return Buffers(standing=size.trained * setup.gradient_bytes if setup.processes > 1 else 0.0)
    if setup.zero_stage == 0:
        # Stage 0 reduces gradients through one flat copy of at most a bucket.
        return Buffers(standing=min(_BUCKET, size.trained) * kept)
    # The optimizer's share of the gradients becomes float32 when it runs.
    share = size.trained * setup.copy_bytes / setup.processes
    step = 0.0 if setup.offload_optimizer else share
    if setup.zero_stage == 3:
        return _stage_3(size, setup, config, largest, step)
    reduced = bucket(config, "reduce_bucket_size", largest.hidden**2)
    # `setup_buckets` allocates them whole, however few parameters there are.
    # With `overlap_comm` one bucket fills while the other is on its way.
    doubled = 2 if zero.get("overlap_comm", False) else 1
    standing = reduced * kept * doubled if zero.get("contiguous_gradients", True) else 0.0
    # Offloaded gradients reach the CPU optimizer through pinned memory.
    return Buffers(standing=standing, step=step, pinned=share if setup.offload_optimizer else 0.0)


def _stage_3(size: ModelSize, setup: Setup, config: DsConfig | None, largest: Largest, step: float) -> Buffers:
    hidden, kept = largest.hidden, setup.kept_bytes
    reduced = bucket(config, "reduce_bucket_size", hidden**2)
    # "auto" after transformers 5.23 (`integrations/deepspeed.py`), defaults after DeepSpeed's `zero/config.py`.
    prefetched = bucket(config, "stage3_prefetch_bucket_size", int(0.9 * hidden**2), 50_000_000)
    live = bucket(config, "stage3_max_live_parameters", 1_000_000_000, 1_000_000_000)
    # The module at work is gathered whatever the bound; what is fetched ahead of it keeps to the bound.
    needed = max(largest.layer, largest.module)
    gathered = min(max(live, needed), needed + prefetched, size.weights + size.adapter)
    pinned = 0.0
    if setup.on_disk:
        # Weights on NVMe pass through pinned buffers of 16 bit; 5 and 10^8 are DeepSpeed's defaults
        # (`offload_config.py`). The block is wrapped because `bucket` looks into a `zero_optimization`.
        block = zero_block(config).get("offload_param") or {}
        numbers = bucket({"zero_optimization": block}, "buffer_size", 10**8, 10**8)
        pinned = int(block.get("buffer_count", 5)) * numbers * 2.0
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


CHUNKS = 3
"""Float32 chunks that live at a time: the logarithm of shares, its gradient, and that of the logits."""


@dataclass(frozen=True)
class Head:
    """Bytes of head and loss.

    Args:
        forward: The most in the forward pass, above what lived before.
        kept: For the backward pass.
        backward: The most in the backward pass, above what lived when it began.
    """

    forward: float = 0.0
    kept: float = 0.0
    backward: float = 0.0


def answer_head(
    *,
    tokens: int,
    words: int,
    hidden: int,
    hidden_bytes: int,
    weight_bytes: int,
    trained: bool,
    on_cpu: bool,
    weighted: bool,
) -> Head:
    """The bytes of `answer_log_probs`, or of `weighted_loss`.

    Args:
        tokens: Scored ones of a micro batch: of answers, or all of a row where it is not known how long answers are.
        words: Of the vocabulary, padding included.
        hidden: Size of a hidden state.
        hidden_bytes: Of a number of the last hidden states.
        weight_bytes: Of a weight of the head.
        trained: Whether the head's weights get a gradient.
        on_cpu: Where chunks are smaller.
        weighted: Whether the loss is known beforehand, so that a trained head finds its gradient on the way.
    """
    logits = tokens * words * 4.0
    most = float(CHUNK_BYTES["cpu" if on_cpu else "cuda"])
    chunk, several = min(logits, most), logits > most
    low = chunk / 2 if hidden_bytes < 4 else 0.0
    # Picked from all of the batch's, and their gradient, which is scaled in place in the backward pass.
    states = tokens * hidden * hidden_bytes
    if not trained:
        return Head(forward=2 * states + CHUNKS * chunk, kept=2 * states)
    weights = words * hidden * weight_bytes
    if weighted:
        # The head's own gradient is made chunk by chunk on the way forward; several chunks add up in float32.
        found = words * hidden * 4.0 if several else weights
        kept = 2 * states + found
        return Head(forward=kept + CHUNKS * chunk, kept=kept, backward=weights if found != weights else 0.0)
    # Few enough logits wait for the backward pass, which then need not project again.
    if logits <= KEPT_BYTES:
        kept = states + logits
        return Head(forward=kept + chunk + low, kept=kept, backward=states + (1 + several) * weights)
    # Autograd holds a chunk's gradient of the head, what was before, and their sum.
    return Head(forward=states + 2 * chunk + low, kept=states, backward=states + 3 * weights)


def same_parts(setup: Setup, mesh: Mesh) -> Setup:
    """The setup with those processes that ZeRO shards over: the ones with the same slices of matrices."""
    # Sequence-parallel processes hold the same weights, so ZeRO shards over them as over data-parallel ones.
    return replace(setup, processes=max(1, setup.processes // mesh.tensor))


def shared_size(size: ModelSize, mesh: Mesh) -> ModelSize:
    """The numbers of parameters in each process, before ZeRO shards them."""
    # Tensor parallelism leaves embeddings and head whole.
    outside = size.ends / max(1, size.weights)
    share, away = outside + (1 - outside) / mesh.tensor, 1 - 1 / mesh.expert
    return replace(
        size,
        weights=round(size.weights * share - size.experts * away),
        trained=round(size.trained * share - size.trained_experts * away),
    )


def shared_need(size: ModelSize, setup: Setup, mesh: Mesh) -> Need:
    """What one process needs.

    ZeRO shards experts over the processes that hold the same ones, and everything else over all.
    """
    if mesh.expert == 1:
        need = estimate(shared_size(size, mesh), same_parts(setup, mesh))
    else:
        # Experts are estimated as a model of their own: AutoEP gives them a smaller group of processes to be sharded
        # over.
        alike = replace(setup, processes=max(1, setup.processes // mesh.expert))
        own = estimate(ModelSize(size.experts // mesh.expert, size.trained_experts // mesh.expert), alike)
        others = replace(size, weights=size.weights - size.experts, trained=size.trained - size.trained_experts)
        need = estimate(others, setup)
        names = ("weights", "gradients", "optimizer", "host")
        need = replace(need, **{name: getattr(need, name) + getattr(own, name) for name in names})
    # Every process reads the whole checkpoint and keeps its slice afterwards, so loading costs what it does without
    # parallelism.
    loading = estimate(size, setup)
    return replace(need, loading=loading.loading, loads_on_host=loading.loads_on_host)


def shared_largest(largest: Largest, layer_experts: int, mesh: Mesh) -> Largest:
    """The largest weights that ZeRO-3 gathers in each process.

    Args:
        layer_experts: Parameters of a layer's experts.
    """
    layer = largest.layer - layer_experts * (1 - 1 / mesh.expert)
    return replace(largest, layer=round(layer / mesh.tensor))


def cache_bytes(config: Any, generation: Generation, itemsize: int) -> float:
    """The bytes of the key-value cache of all tokens of all rows.

    Args:
        config: Of the text model.
        itemsize: Bytes of a number.
    """
    tokens = generation.rows * (generation.prompt + generation.tokens)
    return float(sum(map(_cached, attention_layers(config))) * tokens * itemsize)


def _cached(layer: Any) -> int:
    """The numbers that one layer caches of a token."""
    heads = int(getattr(layer, "num_key_value_heads", None) or layer.num_attention_heads)
    if getattr(layer, "kv_lora_rank", None):
        # Latent attention: transformers (5.23) caches expanded keys and values, not the latent, and their sizes differ.
        return heads * int(layer.qk_nope_head_dim + layer.qk_rope_head_dim + layer.v_head_dim)
    return heads * 2 * head_size(layer)


def weights_of(path: str) -> int:
    """The number of weights of a reward model, or of an adapter's base; 0 if they are not on this disk."""
    folder = Path(base_and_adapters(path, "--reward_model_path")[0])
    if not folder.is_dir():
        return 0
    return sum(torch.Size(shape).numel() for shape in weight_shapes(str(folder)).values())
