"""Activations by formula, for models that cannot be traced."""

from __future__ import annotations

from transformers import PreTrainedModel

from hftune.arguments.checkpointing import Recomputation
from hftune.tools.planning import recomputing
from hftune.tools.planning.numerics import Numerics
from hftune.tools.planning.tracing import Batch, Part, Profile
from hftune.tools.planning.work import FULL_LOGITS, Work

PER_TOKEN = 34
"""Bytes a token and unit of hidden size that a layer keeps in 16 bit (arXiv:2205.05198, equation 1)."""

PER_SCORE = 5
"""Bytes a head and pair of tokens where scores are kept: the same equation."""


def formula_profile(
    bare: PreTrainedModel, batch: Batch, numerics: Numerics, recompute: Recomputation | None, work: Work
) -> tuple[Profile, int]:
    """A profile of a GPT-like layer of this model's sizes, and what a forward pass without gradients takes."""
    config = bare.config.get_text_config()
    scale = numerics.compute.itemsize / 2
    tokens = batch.rows * batch.tokens
    hidden = round(tokens * config.hidden_size * 2 * scale)
    kept = tokens * config.hidden_size * PER_TOKEN * scale
    # The equation is of an MLP of 4 hidden sizes, 19 bytes of the 34.
    kept *= 1 + 19 / 34 * (getattr(config, "intermediate_size", 0) / (4 * config.hidden_size) * 1.5 - 1)
    if batch.masked:
        kept += PER_SCORE * config.num_attention_heads * tokens * batch.tokens * scale
    whole = round(kept)
    marks = recomputing.marks(recompute, config.num_hidden_layers)
    logits = tokens * config.vocab_size if work.head == FULL_LOGITS else 0
    profile = Profile(
        kinds=tuple(int(mark) for mark in marks),
        embed=Part(hidden, hidden),
        forward=(Part(whole, whole), Part(whole, hidden)),
        tail=Part(14 * logits + hidden, 4 * logits + hidden),
        kept_embed=hidden,
        kept=(whole, hidden),
        kept_tail=4 * logits + hidden,
        back_tail=Part(6 * logits + hidden, -4 * logits),
        backward=(Part(2 * hidden, -whole), Part(whole + 2 * hidden, -hidden)),
        back_embed=Part(hidden, -hidden),
        hidden_bytes=numerics.compute.itemsize,
    )
    return profile, whole
