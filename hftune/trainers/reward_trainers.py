"""The trainer of each kind of reward model."""

from __future__ import annotations

from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.preference import RMArguments
from hftune.data.splits import Splits
from hftune.trainers.process_reward import ProcessRewardTrainer
from hftune.trainers.reward import RewardTrainer


def reward_trainer(
    model: PreTrainedModel | PeftModel,
    args: RMArguments,
    tokenizer: PreTrainedTokenizerBase,
    data: Splits,
    **kwargs: Any,
) -> RewardTrainer | ProcessRewardTrainer:
    """The trainer of `--reward_kind`."""
    kinds: dict[str, Any] = {"outcome": RewardTrainer, "process": ProcessRewardTrainer}
    trainer: RewardTrainer | ProcessRewardTrainer = kinds[args.reward_kind](model, args, tokenizer, data, **kwargs)
    return trainer
