"""Head and loss of DPO: only answer tokens are projected, a chunk at a time (`models/kernels/answer_projection.py`)."""

from __future__ import annotations

from hftune.arguments.preference import DPOArguments
from hftune.arguments.training import StageArguments
from hftune.models.kernels.chunked_heads import CHUNK_BYTES, KEPT_BYTES
from hftune.tools.planning.losses import Head, HeadSizes

CHUNKS_FROZEN = 2
"""Float32 chunks that live at a time: logits, and what becomes their gradient."""

CHUNKS_TRAINED = 4
"""Logits, their logarithm of shares, and the gradients of both."""


def answer_head(sizes: HeadSizes, *, weighted: bool = False) -> Head:
    """The bytes of `answer_log_probs`.

    Args:
        sizes: `tokens` of answers; all of a row where it is not known how long answers are.
        weighted: Whether the loss is known beforehand, so that a trained head finds its gradient on the way.
    """
    logits = sizes.tokens * sizes.words * 4.0
    chunk = min(logits, float(CHUNK_BYTES["cuda" if sizes.triton else "cpu"]))
    states = sizes.tokens * sizes.hidden * sizes.hidden_bytes
    if not sizes.trained:
        # The gradient of the hidden states is found in the forward pass.
        return Head(forward=2 * states + CHUNKS_FROZEN * chunk, kept=2 * states, backward=states)
    weights = sizes.words * sizes.hidden
    if weighted:
        # The head's own gradient is made chunk by chunk on the way forward; several chunks add up in float32.
        found = weights * (4.0 if logits > chunk else sizes.weight_bytes)
        kept = 2 * states + found
        return Head(forward=kept + CHUNKS_FROZEN * chunk, kept=kept, backward=states + weights * sizes.weight_bytes)
    gradients = states + weights * sizes.weight_bytes
    # Few enough logits wait for the backward pass, which then need not project again.
    if logits <= KEPT_BYTES:
        kept = states + 2 * logits
        return Head(forward=kept + logits, kept=kept, backward=gradients + 2 * logits)
    # The forward pass has no gradients yet: half of the chunks.
    return Head(states + CHUNKS_TRAINED / 2 * chunk, states, gradients + CHUNKS_TRAINED * chunk)


def compares_while_training(training_args: StageArguments, *, adapted: bool) -> bool:
    """Whether a forward pass of the reference runs alongside the policy's, and not once before training.

    Args:
        adapted: Whether an adapter is trained: switched off it is the reference; left open, records that are seen once
            are then compared as they come, and others before.
    """
    if not isinstance(training_args, DPOArguments) or not training_args.needs_reference:
        return False
    asked = training_args.precompute_ref_log_probs
    # Computing all of the reference beforehand pays only where records are seen more than once.
    once = training_args.max_steps > 0 or training_args.num_train_epochs <= 1
    return bool(training_args.sync_ref_model or asked is False or (asked is None and adapted and once))
