"""Memory beside the layers: states and buffers, head and loss, generation, and what parallel processes share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from hftune.distributed.ds_config import DsConfig
from hftune.models.kernels.chunked_heads import CHUNK_BYTES, KEPT_BYTES
from hftune.models.structure import attention_layers, head_size, routed_weights
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


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of the head and of its input.

    Args:
        tokens: Scored ones of a micro batch.
        hidden: Size of a hidden state.
        words: Of the vocabulary, padding included.
        hidden_bytes: Of a number of the last hidden states.
        weight_bytes: Of a weight of the head.
        trained: Whether the head's weights get a gradient.
        on_cpu: Where chunks are smaller.
    """

    tokens: int
    hidden: int
    words: int
    hidden_bytes: float
    weight_bytes: float
    trained: bool
    on_cpu: bool


def answer_head(sizes: HeadSizes, *, weighted: bool = False) -> Head:
    """The bytes of `answer_log_probs`, or of `weighted_loss`.

    Args:
        sizes: `tokens` of answers; all of a row where it is not known how long answers are.
        weighted: Whether the loss is known beforehand, so that a trained head finds its gradient on the way.
    """
    logits = sizes.tokens * sizes.words * 4.0
    most = float(CHUNK_BYTES["cpu" if sizes.on_cpu else "cuda"])
    chunk, several = min(logits, most), logits > most
    low = chunk / 2 if sizes.hidden_bytes < 4 else 0.0
    # Picked from all of the batch's, and their gradient, which is scaled in place in the backward pass.
    states = sizes.tokens * sizes.hidden * sizes.hidden_bytes
    if not sizes.trained:
        return Head(forward=2 * states + CHUNKS * chunk, kept=2 * states)
    weights = sizes.words * sizes.hidden * sizes.weight_bytes
    if weighted:
        # The head's own gradient is made chunk by chunk on the way forward; several chunks add up in float32.
        found = sizes.words * sizes.hidden * 4.0 if several else weights
        kept = 2 * states + found
        return Head(forward=kept + CHUNKS * chunk, kept=kept, backward=weights if found != weights else 0.0)
    # Few enough logits wait for the backward pass, which then need not project again.
    if logits <= KEPT_BYTES:
        kept = states + logits
        return Head(forward=kept + chunk + low, kept=kept, backward=states + (1 + several) * weights)
    # Autograd holds a chunk's gradient of the head, what was before, and their sum.
    return Head(forward=states + 2 * chunk + low, kept=states, backward=states + 3 * weights)


def scores_of_words(tokens: int, words: int) -> float:
    """The bytes of sampling one token for each of `tokens` rows."""
    # 16-bit logits, and three in float32: the logits cast, sorted (top-p), and as probabilities.
    return tokens * words * (2.0 + 3 * 4.0)


@dataclass(frozen=True)
class Degrees:
    """Degrees of parallelism within one model, in addition to ZeRO.

    Args:
        tensor: Tensor-parallel processes: they share the matrices of a layer.
        sequence: Sequence-parallel processes: they share the tokens of a row.
        expert: Expert-parallel processes: they share the experts of a layer.
    """

    tensor: int = 1
    sequence: int = 1
    expert: int = 1

    @property
    def activations(self) -> float:
        """The share of activations in each process, 0 to 1."""
        # arXiv:2205.05198, equation 2: of 34 bytes a token and hidden element 10 (norms, dropouts, inputs) are not
        # split.
        return (10 + 24 / self.tensor) / 34

    def same_parts(self, setup: Setup) -> Setup:
        """The setup with those processes that ZeRO shards over: the ones with the same slices of matrices."""
        # Sequence-parallel processes hold the same weights, so ZeRO shards over them as over data-parallel ones.
        return replace(setup, processes=max(1, setup.processes // self.tensor))


ALONE = Degrees()


@dataclass(frozen=True)
class Parts:
    """Numbers of parameters by the kind of parallelism that splits them.

    Args:
        all: Every one.
        ends: Of embeddings and head, which tensor parallelism leaves whole.
        experts: Routed ones.
        trained_experts: Those of them that are trained.
    """

    all: int
    ends: int = 0
    experts: int = 0
    trained_experts: int = 0

    @classmethod
    def of(cls, bare: PreTrainedModel, chosen: set[int] | None) -> Parts:
        """Count the parameters of a model on the meta device.

        Args:
            chosen: `id` of the parameters that are trained; None: all.
        """
        modules = [bare.get_input_embeddings(), bare.get_output_embeddings()]
        # By id, so that a head tied to the embeddings counts once.
        ends = {id(one): one.numel() for module in modules if module is not None for one in module.parameters()}
        experts = routed_weights(bare, bare.config)
        return cls(
            sum(one.numel() for one in bare.parameters()),
            sum(ends.values()),
            sum(one.numel() for one in experts),
            sum(one.numel() for one in experts if chosen is None or id(one) in chosen),
        )

    def tensor_share(self, degrees: Degrees) -> float:
        """The share of the weights in each tensor-parallel process, 0 to 1."""
        outside = self.ends / max(1, self.all)
        return outside + (1 - outside) / degrees.tensor


def shared_size(size: ModelSize, parts: Parts, degrees: Degrees) -> ModelSize:
    """The numbers of parameters in each process, before ZeRO shards them."""
    share, away = parts.tensor_share(degrees), 1 - 1 / degrees.expert
    return replace(
        size,
        weights=round(size.weights * share - parts.experts * away),
        trained=round(size.trained * share - parts.trained_experts * away),
    )


def shared_need(size: ModelSize, setup: Setup, parts: Parts, degrees: Degrees) -> Need:
    """What one process needs.

    ZeRO shards experts over the processes that hold the same ones, and everything else over all.
    """
    # Every process reads the whole checkpoint and keeps its slice afterwards, so loading costs what it does without
    # parallelism.
    loading = estimate(size, setup)
    if degrees.expert == 1:
        return _loaded(estimate(shared_size(size, parts, degrees), degrees.same_parts(setup)), loading)
    experts = ModelSize(parts.experts // degrees.expert, parts.trained_experts // degrees.expert)
    others = replace(size, weights=size.weights - parts.experts, trained=size.trained - parts.trained_experts)
    # Experts are estimated as a model of their own: AutoEP gives them a smaller group of processes to be sharded over.
    alike = replace(setup, processes=max(1, setup.processes // degrees.expert))
    one, other = estimate(others, setup), estimate(experts, alike)
    both = replace(
        one,
        weights=one.weights + other.weights,
        gradients=one.gradients + other.gradients,
        optimizer=one.optimizer + other.optimizer,
        host=one.host + other.host,
    )
    return _loaded(both, loading)


def _loaded(need: Need, loading: Need) -> Need:
    return replace(need, loading=loading.loading, loads_on_host=loading.loads_on_host)


def shared_largest(largest: Largest, layer_experts: int, degrees: Degrees) -> Largest:
    """The largest weights that ZeRO-3 gathers in each process.

    Args:
        layer_experts: Parameters of a layer's experts.
    """
    layer = largest.layer - layer_experts * (1 - 1 / degrees.expert)
    return replace(largest, layer=round(layer / degrees.tensor))


def dispatched_bytes(tokens: int, chosen: int, hidden: int, itemsize: int, degrees: Degrees) -> float:
    """The bytes of tokens sent to experts and back, on top of what a layer keeps, if routing is balanced.

    AutoEP (DeepSpeed 0.19.8) has four copies of what it sends at a time: received, put in the order of experts, put
    back, and returned.

    Args:
        tokens: Of a micro batch.
        chosen: Experts that a token goes to.
        itemsize: Bytes of a number.
    """
    return 4.0 * tokens * chosen * hidden * itemsize if degrees.expert > 1 else 0.0


def generation_needs(
    generation: Generation,
    setup: Setup,
    size: ModelSize,
    buffers: Buffers,
    *,
    config: Any,
    training_args: Any,
    dtype: str,
    compute: torch.dtype,
) -> tuple[list[Moment], float]:
    """The moment in which completions are sampled, and the bytes of reward models, which are always there.

    Args:
        generation: What is drawn.
        setup: How the model is kept.
        size: Of the model.
        buffers: Of training, which are there as well.
        config: Of the text model.
        training_args: `RLArguments`.
        dtype: That reward models are loaded in, or auto.
        compute: That the model computes in.
    """
    # `auto` is the checkpoint's dtype, which is not read for a plan: float32 is the most that it can be.
    itemsize = 4 if dtype == "auto" else getattr(torch, dtype).itemsize
    judges = sum(weights_of(path) for path in training_args.reward_model_path or []) * float(itemsize)
    need = estimate(size, setup)
    parts = {
        "weights": need.weights,
        # Without --ds3_gather_for_generation False, ZeRO-3 puts the whole model together to generate.
        "gathered": _gathered(setup, size, gathers=getattr(training_args, "ds3_gather_for_generation", True)),
        "optimizer": need.optimizer,
        "buffers": buffers.standing,
        "activations": cache_bytes(config, generation, compute.itemsize),
        "loss": scores_of_words(generation.rows, config.vocab_size),
        "other": judges,
    }
    # The table has no column for it: what ZeRO-3 gathers here are weights.
    parts["weights"] += parts.pop("gathered")
    return [Moment("generation", parts)], judges


def _gathered(setup: Setup, size: ModelSize, *, gathers: bool) -> float:
    if setup.zero_stage < 3 or not gathers:
        return 0.0
    return (size.weights + size.adapter) * (2.0 if setup.half else setup.weight_bytes)


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
