"""Which critic a run of PPO has, and what it begins as."""

from __future__ import annotations

from collections.abc import Callable

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from hftune.arguments.rl_algorithms import PPOArguments
from hftune.checkpoints.reward_scale import read_scale
from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.vocabulary import vocabulary_rows
from hftune.trainers.ppo.critic import (
    Critic,
    critic_from_reward,
    critic_like,
    needs_reading_again,
    shared_critic,
    trained_parameters,
)
from hftune.trainers.rewards.loading import load_reward_model


def build_critic(
    policy: PreTrainedModel | PeftModel, args: PPOArguments, read_again: Callable[[], PreTrainedModel] | None
) -> Critic:
    """The critic that --critic and --critic_init ask for.

    Raises:
        ArgumentError: A reward model with another vocabulary, or weights that cannot be copied.
    """
    critic = shared_critic(policy) if args.critic == "shared" else _own_critic(policy, args, read_again)
    notice(f"critic: {args.critic}, {sum(map(zero.full_numel, trained_parameters(critic))):,} weights are trained")
    return critic


def _own_critic(
    policy: PreTrainedModel | PeftModel, args: PPOArguments, read_again: Callable[[], PreTrainedModel] | None
) -> Critic:
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
