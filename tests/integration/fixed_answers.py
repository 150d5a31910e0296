"""A reward function that tests name on the command line. Its module makes answers the same on any number of processes.

Where all answers to a prompt are greedy they are equal, and neither GRPO nor RLOO nor DPO learns a thing from them.
Here the token with the highest logit plus noise is taken, where the noise depends on the text so far and on the
answer's number in the batch of all processes alone: a sample at temperature 1 (Gumbel's trick), the same everywhere.
"""

from __future__ import annotations

import functools
import os
import zlib
from typing import Any

import torch
from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList

plain = GenerationMixin._get_logits_processor


class NoiseOfText(LogitsProcessor):
    """Adds Gumbel noise that is a function of a row's tokens, without padding, and of its number."""

    def __init__(self, padding: int | None) -> None:
        self.padding = padding

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        first = int(os.environ.get("RANK", "0")) * len(input_ids)
        noise = [self.noise(ids.tolist(), first + row, scores.shape[1]) for row, ids in enumerate(input_ids)]
        return scores + torch.stack(noise).to(scores)

    def noise(self, ids: list[int], number: int, size: int) -> torch.Tensor:
        """(size,), of the distribution that makes the highest sum a sample."""
        key = repr(([token for token in ids if token != self.padding], number)).encode()
        drawn = torch.rand(size, generator=torch.Generator().manual_seed(zlib.crc32(key)), dtype=torch.float64)
        return -(-drawn.clamp(1e-12, 1 - 1e-12).log()).log()


@functools.wraps(plain)
def with_noise(self: Any, generation_config: Any, *args: Any, **kwargs: Any) -> LogitsProcessorList:
    """transformers' own processors behind the noise; `--top_k 1` among them takes the highest."""
    own = plain(self, generation_config, *args, **kwargs)
    assert generation_config.top_k == 1, "tests give --top_k 1"
    return LogitsProcessorList([NoiseOfText(generation_config.pad_token_id), *own])


GenerationMixin._get_logits_processor = with_noise


def even_tokens(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The share of even token ids."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]
