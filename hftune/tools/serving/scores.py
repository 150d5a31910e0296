"""A reward model's scores of conversations, one request at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hftune.checkpoints.reward_scale import read_scale
from hftune.data.preferences.scoring import ScoringEncoder
from hftune.data.tokenizing.context import context_of
from hftune.errors import DataError
from hftune.tools.serving.arguments import ServeArguments
from hftune.tools.serving.errors import RequestError, too_long
from hftune.tools.serving.requests import Asked, refused
from hftune.trainers.rewards.loading import load_reward_model, reward_head, step_separator
from hftune.trainers.rewards.score_batches import run_batches


class Judge:
    """A reward model, outcome or process, under the name of its folder."""

    def __init__(self, folder: str, args: ServeArguments) -> None:
        self.name, trusted = Path(folder).name, args.trust_remote_code
        dtype = torch.float32 if args.dtype == "auto" else getattr(torch, args.dtype)
        steps = reward_head(folder, "--reward_model", trust_remote_code=trusted) == "steps"
        self.model, self.tokenizer = load_reward_model(
            folder,
            dtype,
            flag="--reward_model",
            trust_remote_code=trusted,
            template_arguments=args.template_arguments,
        )
        self.model.to("cuda" if torch.cuda.is_available() and not args.use_cpu else "cpu")
        self.encode = ScoringEncoder(
            self.tokenizer, steps=steps, separator=step_separator(folder), borders_in_text=args.borders_in_text
        )
        self.scale = read_scale(folder)
        self.longest = context_of(self.model, self.tokenizer)

    def score(self, asked: Asked) -> tuple[dict[str, Any], int]:
        """The scores of a conversation's last turn, and its tokens.

        Returns:
            `data`, the raw score, or one a step; `score`, the least of them; `normalized_score` where the model knows
            its scale.

        Raises:
            RequestError: The template refuses it, it has no steps, or it is too long.
        """
        assert asked.row is not None
        try:
            (found,) = self.encode(asked.row)
        except DataError as error:
            raise refused(error) from error
        if self.longest and len(found.ids) > self.longest:
            raise too_long(self.longest, len(found.ids))
        run_batches(self.model, [found], self.tokenizer.pad_token_id)
        if not found.outputs:
            raise RequestError("there is nothing to score", param="messages")
        score = min(found.outputs)
        said = {"data": found.outputs, "score": score}
        if self.scale is not None:
            said["normalized_score"] = self.scale.normalise(score)
        return said, len(found.ids)
