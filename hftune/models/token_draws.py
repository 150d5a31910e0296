"""The tokens that are drawn from a model's logits: which, how likely each was, and random numbers drawn meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear
from transformers import GenerationConfig

from hftune.compat.installing import method_replaced

PIECE = 1024
"""Rows of a wide head that are multiplied at once."""


class Draws:
    """Draws tokens as `torch.multinomial` does for all answers, those that have left the batch included.

    It divides probabilities by exponential random numbers and takes the largest. torch draws these numbers on one core,
    16 answers of 49,152 tokens in 15 ms: on a CPU that is done while the model computes.

    Args:
        rows: Answers at the beginning. So many numbers are drawn, which keeps each answer's as they are.
        pool: Where numbers may be drawn before they are needed; None where others may draw some in between.
    """

    def __init__(self, rows: int, pool: ThreadPoolExecutor | None) -> None:
        self.rows, self._pool = rows, pool
        self._noise: torch.Tensor | None = None
        self._coming: Future[torch.Tensor] | None = None

    def begin(self) -> None:
        """Another token will be drawn: its numbers may be."""
        if self._pool is not None and self._noise is not None:
            self._coming = self._pool.submit(self._noise.exponential_, 1)

    def pick(self, scores: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        """A token (answers,) for each answer in the batch, of these numbers, by its scores (answers, vocabulary)."""
        probs = scores.softmax(dim=-1)
        if not bool(probs[:, 0].isfinite().all()):
            # One NaN among the logits makes the whole row NaN; torch says what is wrong.
            return torch.multinomial(probs, num_samples=1).squeeze(1)
        noise = self._numbers(probs)
        if len(here) < self.rows:
            noise = noise[here]
        return torch.div(probs, noise, out=noise).argmax(dim=-1)

    def _numbers(self, like: torch.Tensor) -> torch.Tensor:
        if self._coming is not None:
            coming, self._coming = self._coming, None
            return coming.result()
        if self._noise is None:
            self._noise = torch.empty((self.rows, like.shape[1]), dtype=like.dtype, device=like.device)
        return self._noise.exponential_(1)


class LogProbs:
    """Collects the log-probabilities of tokens as they are drawn."""

    def __init__(self, config: GenerationConfig, rows: int) -> None:
        self.temperature, self.rows = float(config.temperature or 1.0), rows
        self.columns: list[torch.Tensor] = []

    def add(self, logits: torch.Tensor, tokens: torch.Tensor, here: torch.Tensor) -> None:
        """Of the next token of the answers that are left, by logits (answers, vocabulary); 0 for all others."""
        logits = logits / self.temperature
        said = logits.gather(1, tokens[:, None]).squeeze(1) - logits.logsumexp(dim=-1)
        self.columns.append(said.new_zeros(self.rows).index_copy(0, here, said))

    def together(self) -> torch.Tensor:
        """(rows, tokens)."""
        return torch.stack(self.columns, dim=1)


def random_state(device: torch.device) -> torch.Tensor:
    """What dropout changes, wherever in a model it is; with it no two passes say the same."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def head_in_pieces(head: Any) -> Iterator[None]:
    """In the block a wide head gives the same, to the bit, sooner: over a few rows MKL is slow with so many columns."""
    if type(head) is not nn.Linear or "forward" in vars(head) or head.weight.device.type != "cpu":
        yield
        return
    with method_replaced(head, "forward", _by_pieces):
        yield


def _by_pieces(head: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    weights = head.weight.split(PIECE)
    biases = [None] * len(weights) if head.bias is None else head.bias.split(PIECE)
    return torch.cat([linear(states, *piece) for piece in zip(weights, biases, strict=True)], dim=-1)
