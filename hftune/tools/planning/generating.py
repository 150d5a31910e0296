"""What RL needs in addition to training: completions that are sampled, and models that score them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hftune.models.adapters.saved_config import read_lora_config
from hftune.models.layer_values import attention_layers, head_size
from hftune.preflight.memory import ModelSize, Setup, estimate
from hftune.tools.planning.losses import scores_of_words
from hftune.tools.planning.plan import Moment
from hftune.tools.planning.states import Buffers
from hftune.tools.planning.work import Generation
from hftune.weight_files import weight_shapes


def needs(
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
    folder = Path(path)
    if (folder / "adapter_config.json").is_file():
        folder = Path(str(read_lora_config(path, "--reward_model_path").base_model_name_or_path))
    if not folder.is_dir():
        return 0
    return sum(torch.Size(shape).numel() for shape in weight_shapes(str(folder)).values())
