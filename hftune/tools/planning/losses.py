"""Memory of the head and the loss on top of the layers, where no full logits are made (`models/kernels/`).

Pre-training with smoothed labels runs transformers' own loss on full logits, which `tracing.py` traces as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from hftune.models.kernels.chunked_heads import CHUNK_BYTES, KEPT_BYTES

CHUNKS = 4
"""Float32 chunks that live at a time: logits, their logarithm of shares, and gradients of both; a half less where the
head computes in 16 bits."""


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
        return Head(forward=2 * states + CHUNKS * chunk - low, kept=2 * states)
    weights = sizes.words * sizes.hidden * sizes.weight_bytes
    if weighted:
        # The head's own gradient is made chunk by chunk on the way forward; several chunks add up in float32.
        found = sizes.words * sizes.hidden * 4.0 if several else weights
        kept = 2 * states + found
        return Head(forward=kept + CHUNKS * chunk - low, kept=kept, backward=weights if found != weights else 0.0)
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
