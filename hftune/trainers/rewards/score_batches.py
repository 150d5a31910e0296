"""Conversations through a reward model in batches by length."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.checkpoints.reward_scale import RewardScale
from hftune.data.collators import CausalCollator
from hftune.data.compared_answers import Solution
from hftune.data.encode_rewards import SINGLE, Scored, ScoringEncoder
from hftune.data.messages import Message
from hftune.distributed import phases

BATCH_TOKENS = 8192


@torch.no_grad()
def run_batches(model: PreTrainedModel, found: list[Scored], pad: int, batch_tokens: int = BATCH_TOKENS) -> None:
    """Fill in `outputs`, longest conversations first, so that batches have next to no padding.

    Args:
        model: With the head that the conversations' `ends` ask for; on its device.
        found: Changed in place.
        pad: Fills rows.
        batch_tokens: Of a batch, padding included; a longer conversation goes alone.
    """
    # What memory is needed is needed by the first batch.
    order = sorted(found, key=lambda one: -len(one.ids))
    collate = CausalCollator(pad)
    while order:
        phases.keep_alive()
        size = max(1, batch_tokens // max(1, len(order[0].ids)))
        batch, order = order[:size], order[size:]
        rows = collate([{"input_ids": one.ids, "labels": one.ids} for one in batch])
        inputs = {name: rows[name].to(model.device) for name in ("input_ids", "attention_mask")}
        logits = model(**inputs, use_cache=False).logits.float().cpu()
        for one, row in zip(batch, logits, strict=True):
            one.outputs = row.tolist() if one.ends is None else row[one.ends].softmax(-1)[:, 1].tolist()


class StepReward:
    """A process reward model as a reward function of RL: the least probability that a step of the answer is right.

    The minimum is what arXiv:2312.08935 ranks answers by. An answer without a step gets 0.

    Args:
        model: From `load_reward_model`.
        tokenizer: Its own.
        separator: Between steps.
        scale: Of the scores; None: they stay as they are.
        device: Where the model goes.
        name: As it is logged.
        borders: What becomes of turn borders in contents, a mode of `Borders`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        separator: str,
        scale: RewardScale | None,
        device: Any,
        name: str,
        borders: str = "split",
    ) -> None:
        self.model, self.pad, self.scale = model.to(device), tokenizer.pad_token_id, scale
        self.separator = separator
        self.conversations = ScoringEncoder(tokenizer, steps=True, separator=separator, borders_in_text=borders)
        self.__name__ = name

    def __call__(self, prompts: list[list[Message]], completions: list[list[Message]], **columns: Any) -> list[float]:
        """One reward a completion, as TRL calls reward functions; prompts and completions are messages."""
        found: list[Scored | None] = []
        for prompt, completion in zip(prompts, completions, strict=True):
            *before, answer = completion
            parts = str(answer.get("content") or "").split(self.separator)
            # An answer may end with a separator, or have two in a row.
            steps = [part.strip() for part in parts if part.strip()]
            solution = Solution([*prompt, *before], steps, [None] * len(steps), None)
            found.append(self.conversations.solution(SINGLE, solution) if steps else None)
        run_batches(self.model, [one for one in found if one is not None], self.pad)
        scores = [min(one.outputs) if one is not None and one.outputs else 0.0 for one in found]
        return [score if self.scale is None else self.scale.normalise(score) for score in scores]
