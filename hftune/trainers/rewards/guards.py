"""What shows that a reward is being gamed: repetition, and a held-out judge that does not follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


def distinct_ngrams(ids: Sequence[int], n: int = 3) -> float:
    """Share of different n-grams among all of an answer (arXiv:1510.03055): 1 without repetition, 1 for short ones."""
    grams = [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


PATIENCE = 10
"""Batches of answers in a row that are rewarded alike before it is said."""
_MOST_CUT = 0.5


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
