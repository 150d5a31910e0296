"""What shows that rewards teach nothing or the wrong thing: repetition, equal rewards, cut answers, drifting judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from hftune.logging import notice
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run
from hftune.trainers.online.dynamic_sampling import groups_that_differ
from hftune.trainers.rewards.guards import AllAlike, Drift, distinct_ngrams
from hftune.trainers.rewards.loading import Rewards


class RewardGuards(Feature):
    """Measures every batch of answers; judges are scored and logged, and never trained on.

    Attributes:
        judges: As `load_rewards` returns them.
        names: One a judge, as it is logged.
    """

    def __init__(self) -> None:
        self.judges: Rewards = ([], [])
        self.names: list[str] = []
        self.drift, self.alike = Drift(), AllAlike()

    def set_judges(self, judges: Rewards, device: torch.device) -> None:
        """Take on judges, placed where the trained rewards are."""
        functions, tokenizers = judges
        self.names = [
            Path(source.config.name_or_path).name if isinstance(source, PreTrainedModel) else source.__name__
            for source in functions
        ]
        placed = [source.to(device) if isinstance(source, torch.nn.Module) else source for source in functions]
        self.judges, self.drift, self.alike = (placed, tokenizers), Drift(), AllAlike()

    def state(self, run: Run) -> dict[str, Any]:
        """What judges are compared with."""
        return {"first": self.drift.first}

    def load_state(self, run: Run, saved: dict[str, Any]) -> None:
        """A run that resumes keeps what it compares with."""
        if self.judges[0]:
            self.drift = Drift(
                {name: (float(mean), float(std)) for name, (mean, std) in saved.get("first", {}).items()}
            )

    def measure(
        self, run: Run, rewards: torch.Tensor, scores: torch.Tensor, prompts: list[Any], ids: list[list[int]]
    ) -> None:
        """Look at a batch of answers.

        Args:
            rewards: (completions of all ranks, functions).
            scores: Their weighted sums, (completions of all ranks,); NaN where no function had an opinion.
            prompts: This rank's.
            ids: This rank's answers.
        """
        metrics = run._metrics["train" if run.model.training else "eval"]
        distinct = torch.tensor([distinct_ngrams(one) for one in ids], device=run.accelerator.device)
        metrics["completions/distinct_3"].append(run.accelerator.gather(distinct).mean().item())
        if run.model.training:
            self._notice_equal_rewards(run, rewards, scores, prompts, ids)
        if run.mask_truncated_completions and not share_ended(run, ids):
            # Neither a gradient nor an error would come of it.
            notice(
                f"no answer of a batch ends within --max_completion_length {run.max_completion_length}, and "
                "--mask_truncated_completions trains on none that is cut: such steps train nothing"
            )

    def compare(self, run: Run, scores: torch.Tensor, judged: torch.Tensor) -> None:
        """Log what judges say, (completions of all ranks, judges), and how far scores have run ahead of them."""
        metrics = run._metrics["train" if run.model.training else "eval"]
        for column, name in enumerate(self.names):
            metrics[f"judge/{name}/mean"].append(judged[:, column].nanmean().item())
        metrics["judge/drift"].append(self.drift.measure(scores.tolist(), judged.nanmean(dim=1).tolist()))

    def _notice_equal_rewards(
        self, run: Run, rewards: torch.Tensor, scores: torch.Tensor, prompts: list[Any], ids: list[list[int]]
    ) -> None:
        """Say that nothing is learned: there is neither a gradient nor an error."""
        group = run.num_generations if run.num_generations > 1 else len(rewards)  # PPO: one answer a prompt
        said = self.alike.measure(
            groups_that_differ(scores, group),
            means=dict(zip(run.reward_func_names, rewards.nanmean(dim=0).tolist(), strict=True)),
            asked=any(isinstance(prompt, list) and prompt[0]["role"] == "system" for prompt in prompts),
            cut=1.0 - share_ended(run, ids),
            limit=run.max_completion_length,
        )
        if said:
            notice(said)


def share_ended(run: Run, ids: list[list[int]]) -> float:
    """Share of the answers of all ranks that end by themselves."""
    ends = {*run.eos_token_ids, run.processing_class.pad_token_id}
    ended = torch.tensor([sum(one[-1] in ends for one in ids if one) / len(ids)], device=run.accelerator.device)
    return float(run.accelerator.gather(ended).mean())
