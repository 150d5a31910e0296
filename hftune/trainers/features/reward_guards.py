"""What shows that rewards teach nothing or the wrong thing: repetition, equal rewards, cut answers, drifting judges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from hftune.logging import notice
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run
from hftune.trainers.online.dynamic_sampling import groups_that_differ
from hftune.trainers.rewards.loading import Rewards

PATIENCE = 10
"""Batches of answers in a row that are rewarded alike before it is said."""
_MOST_CUT = 0.5


def distinct_ngrams(ids: Sequence[int], n: int = 3) -> float:
    """Share of different n-grams among all of an answer (arXiv:1510.03055): 1 without repetition, 1 for short ones."""
    grams = [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


@dataclass
class AllAlike:
    """Notices that nothing can be learned: no answer of a prompt is rewarded otherwise than the others of that prompt.

    Advantages are then 0 and so is the loss, step after step, without an error.

    Attributes:
        count: Batches of answers in a row.
    """

    count: int = 0

    def measure(
        self, differ: Sequence[bool], *, means: Mapping[str, float], asked: bool, cut: float, limit: int
    ) -> str | None:
        """What to say after this batch, if anything: once, after `PATIENCE` batches.

        Args:
            differ: For each prompt, whether the rewards of its answers do.
            means: The mean of each reward by its name.
            asked: Whether the prompts have a system text.
            cut: Share of answers that are cut at `limit` tokens.
        """
        self.count = 0 if any(differ) else self.count + 1
        # Said once: a run that stays so would say it with every batch.
        if self.count != PATIENCE:
            return None
        figures = ", ".join(f"{name} {mean:.3g}" for name, mean in means.items())
        return (
            f"in {PATIENCE} batches of answers in a row all answers of a prompt got one reward (means: {figures}): the "
            f"loss is 0 and nothing is learned. {_likely(means, asked, cut, limit)}"
        )


def _likely(means: Mapping[str, float], asked: bool, cut: float, limit: int) -> str:
    """The likely causes, each with its way out."""
    causes = []
    if cut > _MOST_CUT:
        causes.append(f"{cut:.0%} of the answers are cut at --max_completion_length {limit}: raise it")
    if means.get("format") == 0.0:
        begin = "begin with a model that was trained to write it"
        ask = 'no prompt asks for it: --system_prompt "..." does, or a "system" text in the records'
        causes.append(f"no answer has the form <think>...</think> and then the answer: {begin if asked else ask}")
    if all(map(math.isnan, means.values())):
        causes.append("no reward function scores an answer (each gives None): see which columns of the data it needs")
    if not causes:
        causes.append("the prompts are too hard or too easy for this model: give others, or raise --num_generations")
    return f"Likely: {'; '.join(causes)}"


@dataclass
class Drift:
    """How far the trained reward has run ahead of a judge that is not trained on (arXiv:2210.10760).

    Both are measured in their own standard deviations since the first batch: drift = z(reward) - z(judge). Around 0 the
    judge agrees with what was gained; large, the gain is one that only the trained reward sees.

    Attributes:
        first: Mean and standard deviation of the first batch, of reward and judge.
    """

    first: dict[str, tuple[float, float]] = field(default_factory=dict)

    def measure(self, reward: Sequence[float], judge: Sequence[float]) -> float:
        """Drift of a batch, over the answers that both have scored; NaN where there are none.

        Args:
            reward, judge: One an answer, NaN where it has none.
        """
        both = [pair for pair in zip(reward, judge, strict=True) if not any(map(math.isnan, pair))]
        if not both:
            return math.nan
        rewards, judged = zip(*both, strict=True)
        found = {"reward": _mean_and_std(rewards), "judge": _mean_and_std(judged)}
        # The first batch is where both are still the base's; a checkpoint keeps it.
        self.first = self.first or found
        gained = {name: (found[name][0] - mean) / max(std, 1e-6) for name, (mean, std) in self.first.items()}
        return gained["reward"] - gained["judge"]


def _mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


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
