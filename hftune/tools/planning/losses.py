"""Memory of the head and the loss on top of the layers, where no full logits are made.

TRL 1.16 (SFT, DPO, GRPO, RLOO) multiplies hidden states by the head in tiles of 4,096 tokens by 32,768 words
(`trl/kernels/chunked_logprob.py`, `ChunkedLogProbFunction`): only the hidden states and some numbers a token are kept
for the backward pass, each tile is made again there, and gradients add up in float32. With Triton a tile is worked on
in place; without, as on a CPU, by torch operators, which make copies of it in float32.

Pre-training runs transformers' own loss on full logits, which `tracing.py` traces as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

TOKENS, WORDS = 4096, 32768
"""Most tokens, and words of the vocabulary, in a tile."""

COPIES_FORWARD, COPIES_BACKWARD = 3.25, 7.25
"""float32 tiles that live at a time in `_forward_tile` and `_backward_tile`, a mask of bools counting a quarter."""

NUMBERS = 9
"""float32 numbers a token: sums, maxima, results."""


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
        compute_bytes: Of a number that is multiplied.
        trained: Whether the head's weights get a gradient.
        triton: Whether tiles are worked on in place, and only scored tokens are looked at: on a GPU.
    """

    tokens: int
    hidden: int
    words: int
    hidden_bytes: float
    weight_bytes: float
    compute_bytes: float
    trained: bool
    triton: bool


def fused_head(sizes: HeadSizes) -> Head:
    """The bytes of TRL's head in tiles."""
    rows, columns = min(sizes.tokens, TOKENS), min(sizes.words, WORDS)
    # The buffer has the full width of a tile also where there are fewer words.
    tile = rows * WORDS * sizes.compute_bytes
    # Under autocast a tile's slice of the head, and its hidden states, are cast for the product and let go.
    weights = columns * sizes.hidden * sizes.compute_bytes if sizes.weight_bytes != sizes.compute_bytes else 0.0
    states = rows * sizes.hidden * sizes.compute_bytes if sizes.hidden_bytes != sizes.compute_bytes else 0.0
    copies = 0.0 if sizes.triton else rows * columns * 4.0
    # All scored tokens in a row: a copy, for it leaves out the last token of each row, and those not scored.
    copied = sizes.tokens * sizes.hidden * sizes.hidden_bytes
    numbers = sizes.tokens * NUMBERS * 4.0
    # Added up in float32 over all tiles, then cast to the states' dtype: for a moment both exist.
    gradients = sizes.tokens * sizes.hidden * (4.0 + (sizes.hidden_bytes if sizes.hidden_bytes != 4.0 else 0.0))
    # That of a trained head is whole, not a tile's: every tile adds to its columns.
    gradients += sizes.words * sizes.hidden * 4.0 if sizes.trained else 0.0
    return Head(
        # In the forward pass weights are cast for the product alone, before the tile is copied.
        forward=copied + numbers + tile + states + max(weights, COPIES_FORWARD * copies),
        kept=copied + numbers,
        backward=gradients + tile + states + weights + COPIES_BACKWARD * copies,
    )


def scores_of_words(tokens: int, words: int) -> float:
    """The bytes of sampling one token for each of `tokens` rows."""
    # 16-bit logits, and three in float32: the logits cast, sorted (top-p), and as probabilities.
    return tokens * words * (2.0 + 3 * 4.0)
