"""Memory of a micro step's activations, by a formula for GPT-like layers: nothing is traced.

The figures are of Korthikanti et al. (arXiv:2205.05198, equation 1). They are rough: fused kernels keep less, layers of
other kinds keep something else. `hftune plan` traces the model's own layers instead.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from hftune.arguments.recomputation import FULL
from hftune.arguments.training import PTArguments, SFTArguments, StageArguments
from hftune.models.layer_values import layer_configs
from hftune.models.loading.config import row_length

PER_TOKEN = 34
"""Bytes a token and unit of hidden size that a layer keeps in 16 bit."""

PER_SCORE = 5
"""Bytes a head and pair of tokens where attention keeps its scores."""

LOGIT_BYTES = 14
"""Bytes a logit where the loss is computed of all of them at once: 16 bit, float32, its gradient and softmax."""

UNBOUND = 1024
"""Tokens of a row where nothing bounds them, as TRL would have bound them."""

PROMPT, COMPLETION = 512, 256
"""Tokens that RL reckons with where its arguments bound none."""


def layer_bytes(config: PretrainedConfig, tokens: int, row: int, itemsize: int, *, keeps_scores: bool) -> float:
    """Bytes that one decoder layer keeps.

    Args:
        config: Of the text model.
        tokens: Of the micro step of one process.
        row: Tokens of a row, which attend to each other.
        itemsize: Bytes of a number as it is computed with.
        keeps_scores: Whether attention keeps a score for each pair of tokens (eager, or SDPA with a mask).
    """
    scale = itemsize / 2
    kept = tokens * config.hidden_size * PER_TOKEN * scale
    # The equation has an MLP of 4 hidden sizes, which is 19 of the 34 bytes; gated ones have 3 matrices for 2.
    kept *= 1 + 19 / 34 * (_mean(config, "intermediate_size") / (4 * config.hidden_size) * 1.5 - 1)
    if keeps_scores:
        kept += PER_SCORE * _mean(config, "num_attention_heads") * tokens * row * scale
    return kept


def _mean(config: PretrainedConfig, name: str) -> float:
    """Over the layers, which may differ: each by a config of its own, or in a list (Gemma 3n). 0 without the field."""
    values = [getattr(layer, name, None) or 0 for layer in layer_configs(config)] or [0]
    numbers = values[0] if isinstance(values[0], list | tuple) else values
    return float(sum(numbers)) / len(numbers)


def activation_bytes(config: PretrainedConfig, args: StageArguments, itemsize: int) -> float:
    """Bytes that a micro step keeps at its peak in one process: layers, and logits where the loss needs all of them.

    Args:
        config: Of the text model.
        args: Of the run: rows, their length, what is recomputed.
        itemsize: Bytes of a number as it is computed with.
    """
    row = _row(args)
    # Processes of a sequence-parallel group share the tokens of a row.
    tokens = args.per_device_train_batch_size * args.rows_per_record * row // max(1, args.sequence_parallel_size)
    # As if attention kept no scores: hftune's own and FlashAttention keep none, and only a plan knows of others.
    whole = layer_bytes(config, tokens, row, itemsize, keeps_scores=False)
    plan, count = args.recomputation, config.num_hidden_layers
    # What recomputes parts of a layer keeps the rest of it: counted as if nothing were recomputed.
    again = len(plan.layers(count)) if plan is not None and FULL in plan.parts else 0
    borders = 0 if plan is not None and plan.offload else tokens * config.hidden_size * itemsize
    # Of recomputed layers one at a time is whole.
    kept = (count - again) * whole + again * borders + (whole if again else 0.0)
    smoothed = isinstance(args, PTArguments | SFTArguments) and args.label_smoothing_factor
    return kept + (LOGIT_BYTES * tokens * config.vocab_size if smoothed else 0.0)


def _row(args: StageArguments) -> int:
    if hasattr(args, "num_generations"):  # RL: its rows are what it generates
        prompt, answer = (getattr(args, f"max_{part}_length", None) for part in ("prompt", "completion"))
        return (prompt or PROMPT) + (answer or COMPLETION)
    return row_length(args) or UNBOUND
