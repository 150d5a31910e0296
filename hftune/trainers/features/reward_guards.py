"""What shows that rewards teach nothing: they are all alike, or all answers are cut and none of those is trained."""

from __future__ import annotations

import torch

from hftune.logging import notice
from hftune.trainers.features.run import Run
from hftune.trainers.online.dynamic_sampling import groups_that_differ

PATIENCE = 10
"""Batches of answers in a row that are rewarded alike before it is said."""


class RewardGuards:
    """Looks at every batch of answers: neither a gradient nor an error would come of what is said here."""

    def __init__(self) -> None:
        self._alike = 0  # batches in a row

    def look_at(self, run: Run, rewards: torch.Tensor, scores: torch.Tensor, ids: list[list[int]]) -> None:
        """Look at a batch.

        Args:
            rewards: (completions of all ranks, functions).
            scores: Their weighted sums, (completions of all ranks,); NaN where no function had an opinion.
            ids: This rank's answers.
        """
        if run.model.training:
            self._notice_equal_rewards(run, rewards, scores)
        if run.mask_truncated_completions and not share_ended(run, ids):
            notice(
                f"no answer of a batch ends within --max_completion_length {run.max_completion_length}, and "
                "--mask_truncated_completions trains on none that is cut: such steps train nothing"
            )

    def _notice_equal_rewards(self, run: Run, rewards: torch.Tensor, scores: torch.Tensor) -> None:
        """Say that no answer of a prompt is rewarded otherwise than the others: advantages and loss are 0."""
        group = run.num_generations if run.num_generations > 1 else len(scores)  # PPO: one answer a prompt
        self._alike = 0 if any(groups_that_differ(scores, group)) else self._alike + 1
        # Said once: a run that stays so would say it with every batch.
        if self._alike == PATIENCE:
            means = zip(run.reward_func_names, rewards.nanmean(dim=0).tolist(), strict=True)
            notice(
                f"in {PATIENCE} batches of answers in a row all answers of a prompt got one reward (means: "
                f"{', '.join(f'{name} {mean:.3g}' for name, mean in means)}): the loss is 0 and nothing is learned. "
                "See completions.jsonl: are answers cut (raise --max_completion_length), is their form asked for "
                "(--system_prompt), or are prompts too hard or too easy (give others, or raise --num_generations)?"
            )


def share_ended(run: Run, ids: list[list[int]]) -> float:
    """Share of the answers of all ranks that end by themselves."""
    ends = {*run.eos_token_ids, run.processing_class.pad_token_id}
    ended = torch.tensor([sum(one[-1] in ends for one in ids if one) / len(ids)], device=run.accelerator.device)
    return float(run.accelerator.gather(ended).mean())
