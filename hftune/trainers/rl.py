"""Reinforcement learning from rewards: GRPO and RLOO on TRL's trainers, PPO and online DPO on its loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.rl_algorithms import PPOArguments, RLArguments
from hftune.data.splits import Splits
from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.on_demand import on_demand
from hftune.trainers.online.base import OnlineTrainer
from hftune.trainers.rewards.loading import Rewards

TRAINERS = {
    "grpo": "hftune.trainers.online.grpo:GRPOTrainer",
    "rloo": "hftune.trainers.online.grpo:RLOOTrainer",
    "ppo": "hftune.trainers.ppo.trainer:PPOTrainer",
    "online_dpo": "hftune.trainers.online.dpo:OnlineDPOTrainer",
}
"""Algorithm to its trainer; those of other algorithms are not imported."""


def rl_trainer(
    model: PreTrainedModel | PeftModel,
    args: RLArguments,
    tokenizer: PreTrainedTokenizerBase,
    data: Splits,
    rewards: Rewards,
    *,
    tools: Sequence[Callable[..., Any]] = (),
    starts_as_base: bool = False,
    read_again: Callable[[], PreTrainedModel] | None = None,
    **kwargs: Any,
) -> OnlineTrainer:
    """The trainer of `--rl_algorithm`.

    Args:
        rewards: What `load_rewards` returned.
        tools: What `load_tools` returned; GRPO only.
        starts_as_base: The model with its adapter off is the reference: no copy of the adapter is kept for it.
        read_again: Reads the model once more, for a critic in full training under ZeRO-3.
    """
    _check_prompts(data, args)
    functions, tokenizers = rewards
    if tools:
        kwargs["tools"] = list(tools)
    if isinstance(args, PPOArguments):
        kwargs["critic"] = on_demand("hftune.trainers.ppo.critic:build_critic")(model, args, read_again)
    trainer: OnlineTrainer = on_demand(TRAINERS[args.rl_algorithm])(
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
    _say_gathered(model, args)
    if starts_as_base and isinstance(model, PeftModel) and "ref" in model.peft_config:
        # TRL copies any adapter that it did not make itself. One that changes nothing yet needs no copy.
        model.delete_adapter("ref")
    return trainer


def _check_prompts(data: Splits, args: RLArguments) -> None:
    """Refuse too few prompts: TRL's sampler leaves out what fills no batch of answers, and does not say so."""
    # Prompts of a batch of answers, each answered `num_generations` times.
    needed = args.generation_batch_size // args.num_generations
    if len(data.train) < needed:
        raise ArgumentError(
            f"{len(data.train)} prompts, and a batch of answers is drawn for {needed}",
            place="--per_device_train_batch_size / --num_generations",
            fix="lower one of them or --gradient_accumulation_steps, or give more prompts",
        )
    if rest := len(data.train) % needed:
        notice(f"{rest} of {len(data.train)} prompts, other ones each epoch, are left out: a batch takes {needed}")


def _say_gathered(model: PreTrainedModel | PeftModel, args: RLArguments) -> None:
    """What ZeRO-3 holds whole on every process while answers are made: all weights, the critic's own included."""
    if args.zero_stage == 3 and args.ds3_gather_for_generation:
        size = sum(zero.full_numel(parameter) * parameter.element_size() for parameter in model.parameters())
        notice(
            f"ZeRO-3: {size / 2**30:.2f} GiB of weights are whole on every process while answers are made; "
            "--ds3_gather_for_generation False gathers layer by layer instead, and is slower"
        )
