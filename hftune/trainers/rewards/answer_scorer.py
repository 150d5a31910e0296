"""A reward model that scores answers, as `hftune ask`, `evaluate` and `sample` use one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hftune.arguments.asking import TalkerFields
from hftune.data.counts import Context
from hftune.data.encode_rewards import ScoringEncoder
from hftune.data.messages import Message
from hftune.data.readers.base import Row
from hftune.data.turn_tokens import mode_for_answers
from hftune.trainers.rewards.loading import load_reward_model, reward_head, step_separator
from hftune.trainers.rewards.score_batches import run_batches


class AnswerScorer:
    """Raw scores of answers; of a process model the least probability that a step is right.

    Args:
        path: Of an outcome or a process reward model.
        args: Of the command: `use_cpu`, `trust_remote_code`, `borders_in_text`.
    """

    def __init__(self, path: str, args: TalkerFields) -> None:
        trusted = args.trust_remote_code
        steps = reward_head(path, trust_remote_code=trusted) == "steps"
        self.model, self.tokenizer = load_reward_model(path, torch.float32, trust_remote_code=trusted)
        if torch.cuda.is_available() and not args.use_cpu:
            self.model.to("cuda")  # transformers wraps `to` without its types
        mode = mode_for_answers(args.borders_in_text)
        separator = step_separator(path)
        options: dict[str, Any] = {"separator": separator, "borders_in_text": mode}
        context = Context.of(self.model, self.tokenizer)
        self.make = ScoringEncoder(self.tokenizer, steps=steps, context=context, **options)

    def __call__(self, conversations: Sequence[list[Message]], name: str = "answer") -> list[float | None]:
        """The score of each conversation's last turn; None for an empty one, which has no token to score.

        Args:
            name: What the conversations are called in messages.
        """
        rows = [Row({"messages": one}, name, number) for number, one in enumerate(conversations, start=1)]
        found = [self.make(row) if row.value["messages"][-1]["content"] else [] for row in rows]
        run_batches(self.model, [one for scored in found for one in scored], self.tokenizer.pad_token_id)
        return [min(scored[0].outputs) if scored and scored[0].outputs else None for scored in found]
