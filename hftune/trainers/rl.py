"""Reinforcement learning from rewards: GRPO and RLOO on TRL's trainers, PPO and online DPO on its loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import trl
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.rl_algorithms import GRPOArguments, OnlineDPOArguments, PPOArguments, RLOOArguments
from hftune.checkpoints.reward_scale import read_scale
from hftune.data.splits import Splits
from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.vocabulary.size import vocabulary_rows
from hftune.trainers.online.base import OnlineTrainer
from hftune.trainers.online.dpo import OnlineDPOTrainer
from hftune.trainers.online.dynamic_sampling import DynamicSampling
from hftune.trainers.ppo.critic import (
    Critic,
    critic_from_reward,
    critic_like,
    needs_reading_again,
    shared_critic,
    trained_parameters,
)
from hftune.trainers.ppo.trainer import PPOTrainer
from hftune.trainers.rewards.loading import Rewards, load_reward_model

RLTrainer: TypeAlias = "GRPOTrainer | RLOOTrainer | PPOTrainer | OnlineDPOTrainer"
RLArguments: TypeAlias = GRPOArguments | RLOOArguments | PPOArguments | OnlineDPOArguments


class GRPOTrainer(OnlineTrainer, trl.GRPOTrainer):
    """Group relative policy optimisation (arXiv:2402.03300), with `--dynamic_sampling` (DAPO)."""

    _sampling: DynamicSampling | None = None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Overrides TRL's: in training, groups of equal rewards may be replaced."""
        generate = super()._generate_and_score_completions
        output: dict[str, Any] = generate(inputs)
        if not (self.args.dynamic_sampling and self.model.training):
            return output
        # Late: the constructor of TRL's trainer does not generate, and the sampler needs all of it.
        self._sampling = self._sampling or DynamicSampling(self, generate)
        return self._sampling.fill(output, len(inputs))


class RLOOTrainer(OnlineTrainer, trl.RLOOTrainer):
    """REINFORCE leave-one-out (arXiv:2402.14740)."""


TRAINERS: dict[str, Any] = {
    "grpo": GRPOTrainer,
    "rloo": RLOOTrainer,
    "ppo": PPOTrainer,
    "online_dpo": OnlineDPOTrainer,
}


def rl_trainer(
    model: PreTrainedModel | PeftModel,
    args: RLArguments,
    tokenizer: PreTrainedTokenizerBase,
    data: Splits,
    rewards: Rewards,
    *,
    judges: Rewards = ([], []),
    tools: Sequence[Callable[..., Any]] = (),
    starts_as_base: bool = False,
    read_again: Callable[[], PreTrainedModel] | None = None,
    **kwargs: Any,
) -> RLTrainer:
    """The trainer of `--rl_algorithm`.

    Args:
        rewards: What `load_rewards` returned.
        judges: Likewise; scored and logged only.
        tools: What `load_tools` returned; GRPO only.
        starts_as_base: The model with its adapter off is the reference: no copy of the adapter is kept for it.
        read_again: Reads the model once more, for a critic in full training under ZeRO-3.
    """
    _check_prompts(data, args)
    functions, tokenizers = rewards
    if tools:
        kwargs["tools"] = list(tools)
    if isinstance(args, PPOArguments):
        critic = kwargs["critic"] = build_critic(model, args, read_again)
        notice(f"critic: {args.critic}, {sum(map(zero.full_numel, trained_parameters(critic))):,} weights are trained")
    trainer: RLTrainer = TRAINERS[args.rl_algorithm](
        model=model,
        args=args,
        processing_class=tokenizer,
        train_dataset=data.train,
        eval_dataset=data.evaluation,
        reward_funcs=functions,
        reward_processing_classes=tokenizers,
        **kwargs,
    )
    trainer.record_order.mixture = data.mixture
    _say_gathered(model, args)
    # Behind the constructor, which would train on whatever it is given.
    trainer.guards.set_judges(judges, args.device)
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
            fix=_smaller_batch(len(data.train), args),
        )
    if rest := len(data.train) % needed:
        notice(f"{rest} of {len(data.train)} prompts, other ones each epoch, are left out: a batch takes {needed}")


def _smaller_batch(prompts: int, args: RLArguments) -> str:
    """A size of micro batches for which there are prompts enough."""
    others = args.generation_batch_size // args.per_device_train_batch_size  # processes x steps
    size = prompts // others * args.num_generations
    if size:
        return f"write --per_device_train_batch_size {size}, or give more prompts"
    return f"lower --gradient_accumulation_steps {args.gradient_accumulation_steps}, or give more prompts"


def _say_gathered(model: PreTrainedModel | PeftModel, args: RLArguments) -> None:
    """What ZeRO-3 holds whole on every process while answers are made: all weights, the critic's own included."""
    if args.zero_stage == 3 and args.ds3_gather_for_generation:
        size = sum(zero.full_numel(parameter) * parameter.element_size() for parameter in model.parameters())
        notice(
            f"ZeRO-3: {size / 2**30:.2f} GiB of weights are whole on every process while answers are made; "
            "--ds3_gather_for_generation False gathers layer by layer instead, and is slower"
        )


def build_critic(
    policy: PreTrainedModel | PeftModel, args: PPOArguments, read_again: Callable[[], PreTrainedModel] | None
) -> Critic:
    """The critic that --critic and --critic_init ask for.

    Raises:
        ArgumentError: A reward model with another vocabulary, or weights that cannot be copied.
    """
    if args.critic == "shared":
        return shared_critic(policy)
    if args.critic_init == "policy":
        again = read_again() if read_again is not None and _copy_is_impossible(policy) else None
        return critic_like(policy, again)
    assert args.reward_model_path, "preflight asks for one"
    # Of several the first: one critic begins as one model.
    path = args.reward_model_path[0]
    reward, _ = load_reward_model(path, torch.float32, trust_remote_code=args.trust_remote_code)
    if reward.config.num_labels != 1:
        raise ArgumentError(
            f"{path} scores steps, not conversations", place="--critic_init reward", fix="use --critic_init policy"
        )
    if vocabulary_rows(reward) != vocabulary_rows(policy):
        raise ArgumentError(
            f"{path} reads another vocabulary than the policy writes",
            place="--critic_init reward",
            fix="use --critic_init policy",
        )
    notice(f"the critic begins as {path}, read whole by every process")
    scale = read_scale(path) if args.normalize_rewards else None
    return critic_from_reward(policy, reward, *((scale.mean, scale.std) if scale else ()))


def _copy_is_impossible(policy: PreTrainedModel | PeftModel) -> bool:
    return not isinstance(policy, PeftModel) and needs_reading_again(policy)
