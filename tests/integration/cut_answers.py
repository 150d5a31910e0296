"""As `fixed_answers`, and each answer ends at its third token, but those whose numbers `CUT_ANSWERS` names.

An answer's number counts those of all processes. With `--max_completion_length 4` the others are cut.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList

from tests.integration.fixed_answers import even_tokens

__all__ = ["even_tokens"]

CUT = [int(number) for number in os.environ.get("CUT_ANSWERS", "").split(",") if number]
TOKENS = 3

plain = GenerationMixin._get_logits_processor


class EndOfAnswers(LogitsProcessor):
    """The third token of an answer is its last one; those that are cut never end."""

    def __init__(self, end: int, prompt: int) -> None:
        self.end, self.prompt = end, prompt

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        first = int(os.environ.get("RANK", "0")) * len(input_ids)
        ends = input_ids.shape[1] == self.prompt + TOKENS - 1
        for row in range(len(input_ids)):
            if ends and first + row not in CUT:
                scores[row] = scores[row].fill_(-torch.inf).index_fill(0, torch.tensor(self.end), 0.0)
            else:
                scores[row, self.end] = -torch.inf
        return scores


@functools.wraps(plain)
def with_ends(self: Any, generation_config: Any, input_ids_seq_length: int, *args: Any, **kwargs: Any) -> Any:
    """The end before all others, of which one takes the most likely token."""
    own = plain(self, generation_config, input_ids_seq_length, *args, **kwargs)
    end = generation_config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    return LogitsProcessorList([EndOfAnswers(int(end), input_ids_seq_length), *own])


GenerationMixin._get_logits_processor = with_ends
