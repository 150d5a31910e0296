"""Rewards of the matrix, named on the command line; their module makes answers the same, however the work is shared.

The noise is that of `tests.integration.fixed_answers`, with two changes: it depends on the number of an answer among
those to its prompt, so that more answers to each change none of the others, and on the prompt whether answers end at
all, so that there are batches of which all answers are cut.
"""

from __future__ import annotations

import os
import sys
import zlib
from typing import Any

import torch
from transformers import GenerationMixin, LogitsProcessorList

from tests.integration.fixed_answers import NoiseOfText, even_tokens, plain
from tests.matrix.commands import SCORED

_ENDS = 1e3


class NoiseOfAnswer(NoiseOfText):
    """As `NoiseOfText`, and the token that ends a text is certain or impossible."""

    def __init__(self, padding: int | None, ends: list[int]) -> None:
        super().__init__(padding)
        self.ends, self.prompt = ends, 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.prompt = self.prompt or input_ids.shape[1]
        return super().__call__(input_ids, scores)

    def noise(self, ids: list[int], number: int, size: int) -> torch.Tensor:
        """(size,), with what ends a text far above or below all others."""
        found = super().noise(ids, number % generations(), size)
        prompt = [token for token in ids[: self.prompt] if token != self.padding]
        answer = ids[self.prompt :]
        ends = _draw(prompt, 2) == 0 and bool(answer) and _draw([*prompt, *answer, number % generations()], 2) == 0
        found[self.ends] = _ENDS if ends else -_ENDS
        return found


def generations() -> int:
    """Answers to a prompt, as the command line says."""
    return int(sys.argv[sys.argv.index("--num_generations") + 1])


def _draw(ids: list[int], number: int) -> int:
    return zlib.crc32(repr(ids).encode()) % number


def with_noise(self: Any, generation_config: Any, *args: Any, **kwargs: Any) -> LogitsProcessorList:
    """transformers' own processors behind the noise; `--top_k 1` among them takes the highest."""
    own = plain(self, generation_config, *args, **kwargs)
    ends = generation_config.eos_token_id
    noise = NoiseOfAnswer(generation_config.pad_token_id, ends if isinstance(ends, list) else [ends])
    return LogitsProcessorList([noise, *own])


GenerationMixin._get_logits_processor = with_noise


def all_scored(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """The share of even token ids, and a part that no mean of others comes to.

    An advantage that is 0 but for rounding has either sign, and the clip ratios count answers by that sign.
    """
    shares = even_tokens(completion_ids)
    return [share + _draw(ids, 997) / 9970 for share, ids in zip(shares, completion_ids, strict=True)]


def some_scored(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """The same, and no opinion on a third of the answers."""
    return [
        None if _draw(ids, 3) == 0 else reward
        for ids, reward in zip(completion_ids, all_scored(completion_ids), strict=True)
    ]


def the_first_two(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """The same, and no opinion on all answers to a prompt but two."""
    first = int(os.environ.get("RANK", "0")) * len(completion_ids)
    return [
        reward if (first + place) % generations() < SCORED else None
        for place, reward in enumerate(all_scored(completion_ids))
    ]
