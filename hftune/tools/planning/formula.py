"""A profile of activations by formula, for models that cannot be traced."""

from __future__ import annotations

from transformers import PreTrainedModel

from hftune.arguments.recomputation import Recomputation
from hftune.preflight.activations import layer_bytes
from hftune.tools.planning import recomputing
from hftune.tools.planning.numerics import Numerics
from hftune.tools.planning.tracing import Batch, Part, Profile
from hftune.tools.planning.work import FULL_LOGITS, Work


def formula_profile(
    bare: PreTrainedModel, batch: Batch, numerics: Numerics, recompute: Recomputation | None, work: Work
) -> tuple[Profile, int]:
    """The profile of GPT-like layers of this model's sizes, and the bytes of a forward pass without gradients."""
    config = bare.config.get_text_config()
    itemsize = numerics.compute.itemsize
    tokens = batch.rows * batch.tokens
    hidden = tokens * config.hidden_size * itemsize
    whole = round(layer_bytes(config, tokens, batch.tokens, itemsize, keeps_scores=batch.masked))
    marks = recomputing.marks(recompute, config.num_hidden_layers)
    logits = tokens * config.vocab_size if work.head == FULL_LOGITS else 0
    # Two kinds of layers: 0 keeps everything, 1 is recomputed, keeps its input alone and has the whole again on the way
    # back. Factors of `logits` are bytes a logit: at most 14 (`preflight.activations.LOGIT_BYTES`), 4 of which, the
    # float32 softmax, wait for the backward pass.
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
        hidden_bytes=itemsize,
    )
    return profile, whole
