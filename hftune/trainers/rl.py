"""Reinforcement learning from a reward model or functions: GRPO and RLOO on TRL's trainers."""

from __future__ import annotations

from typing import Any

import trl
from peft import PeftModel
from torch.utils.data import Sampler
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments import GRPOArguments, RLOOArguments
from hftune.data.corpus.mixing import LookedUp, MixtureSampler
from hftune.data.splits import Splits
from hftune.trainers.base import HftuneTrainerMixin
from hftune.trainers.rewards import Rewards


class _CountsCompletions:
    def count_trained_tokens(self: Any) -> int:
        """Tokens of all completions that were trained on, over all ranks; from the logged mean lengths."""
        args = self.args
        per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        logged = [entry for entry in self.state.log_history if "completions/mean_length" in entry]
        steps = [0, *(entry["step"] for entry in logged)]
        return round(
            sum(
                entry["completions/mean_length"] * per_step * (step - before)
                for entry, before, step in zip(logged, steps, steps[1:], strict=False)
            )
        )


class _RepeatsMixture:
    """A mixture's order of prompts inside TRL's pattern of repeats (generations of a prompt, reuse of generations)."""

    def _get_train_sampler(self: Any, dataset: Any = None) -> Sampler:
        drawn = super()._get_train_sampler(dataset)  # type: ignore[misc]
        if not isinstance(drawn, MixtureSampler):
            return drawn
        # The pattern over the places 0, 1, 2, ... of an epoch; each place is then looked up in the epoch's order.
        pattern = super(HftuneTrainerMixin, self)._get_train_sampler(range(len(drawn)))  # type: ignore[misc]
        pattern.shuffle = False
        return LookedUp(pattern, drawn)


class GRPOTrainer(_CountsCompletions, _RepeatsMixture, HftuneTrainerMixin, trl.GRPOTrainer):
    """Group relative policy optimisation (arXiv:2402.03300)."""


class RLOOTrainer(_CountsCompletions, _RepeatsMixture, HftuneTrainerMixin, trl.RLOOTrainer):
    """REINFORCE leave-one-out (arXiv:2402.14740)."""


def rl_trainer(
    model: PreTrainedModel | PeftModel,
    args: GRPOArguments | RLOOArguments,
    tokenizer: PreTrainedTokenizerBase,
    data: Splits,
    rewards: Rewards,
    **kwargs: Any,
) -> GRPOTrainer | RLOOTrainer:
    """The trainer of `--rl_algorithm`, rewarded by what `load_rewards` returned."""
    trainer_class: Any = {"grpo": GRPOTrainer, "rloo": RLOOTrainer}[args.rl_algorithm]
    functions, tokenizers = rewards
    trainer: GRPOTrainer | RLOOTrainer = trainer_class(
        model=model,
        args=args,
        processing_class=tokenizer,
        train_dataset=data.train,
        eval_dataset=data.evaluation,
        reward_funcs=functions,
        reward_processing_classes=tokenizers,
        **kwargs,
    )
    trainer.mixture = data.mixture
    return trainer
