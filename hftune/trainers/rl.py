"""Reinforcement learning from a reward model or functions: GRPO and RLOO on TRL's trainers."""

from __future__ import annotations

from typing import Any

import trl
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments import GRPOArguments, RLOOArguments
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


class GRPOTrainer(_CountsCompletions, HftuneTrainerMixin, trl.GRPOTrainer):
    """Group relative policy optimisation (arXiv:2402.03300)."""


class RLOOTrainer(_CountsCompletions, HftuneTrainerMixin, trl.RLOOTrainer):
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
    return trainer_class(
        model=model,
        args=args,
        processing_class=tokenizer,
        train_dataset=data.train,
        eval_dataset=data.evaluation,
        reward_funcs=functions,
        reward_processing_classes=tokenizers,
        **kwargs,
    )
