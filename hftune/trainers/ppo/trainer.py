"""PPO: answers with values and advantages, then epochs of clipped steps on policy and critic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from hftune.arguments.rl_algorithms import PPOArguments
from hftune.distributed import ranks
from hftune.logging import notice
from hftune.models.kernels.activation_checkpointing import recompute
from hftune.trainers.online.rollouts import Answers, Batch, RolloutTrainer
from hftune.trainers.ppo.critic import FOLDER, Critic, attach, detached, load_critic, save_critic
from hftune.trainers.ppo.maths import (
    explained_variance,
    gae,
    kl_estimate,
    policy_losses,
    token_rewards,
    value_losses,
    whiten,
)


class PPOTrainer(RolloutTrainer):
    """Proximal policy optimisation with a critic; arXiv:1707.06347, 1909.08593 and the details of 2403.17031.

    The loss of a token is policy + vf_coef * value - entropy_coef * entropy; tokens count
    alike over micro-batches and ranks, so the loss does not depend on how answers are divided into them.

    Args:
        critic: Not attached to the policy yet; `critic_like` and its like build it.
    """

    args: PPOArguments
    has_critic = True
    _gathered: dict[str, torch.Tensor] | None = None  # the critic's part of what is being saved

    def __init__(self, *, critic: Critic, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        args = self.args
        if not self.is_deepspeed_enabled:
            # DeepSpeed moves all parameters itself, with those that it offloads.
            critic.to(args.device)
        if args.recomputation is not None and critic.body is not None:
            reentrant = bool((args.gradient_checkpointing_kwargs or {}).get("use_reentrant"))
            recompute(critic.body, args.recomputation, reentrant=reentrant, on_cpu=args.use_cpu)
        attach(self.model, critic)
        if args.beta == 0.0:
            notice("--beta 0: no reference, so KL is neither held nor logged")

    def own_weights(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The policy's alone; DeepSpeed has gathered the critic's with them."""
        # As the child is called in the policy: DeepSpeed gathers all in one.
        begins = f"{FOLDER}."
        self._gathered = {name.removeprefix(begins): t for name, t in weights.items() if name.startswith(begins)}
        return {name: tensor for name, tensor in weights.items() if not name.startswith(begins)}

    @contextmanager
    def saving_weights(self, folder: Path) -> Iterator[None]:
        """Save the policy without its critic, and that in a folder of its own."""
        # Without DeepSpeed nothing was gathered, and the critic has all of its tensors.
        state, self._gathered = self._gathered, None
        with detached(self.model) as critic:
            yield
            if self.args.should_save:
                save_critic(critic, folder, dict(critic.state_dict()) if state is None else state)

    @contextmanager
    def loading_weights(self, checkpoint: str | None) -> Iterator[None]:
        """Load the policy without its critic; the best weights are the policy's alone."""
        with detached(self.model) as critic:
            yield
            if checkpoint is not None:
                load_critic(critic, checkpoint)

    @property
    def critic(self) -> Critic:
        """The child of the policy."""
        critic: Critic = self.accelerator.unwrap_model(self.model).critic
        return critic

    def returning_values(self) -> AbstractContextManager[None]:
        """In the block, forward passes of the policy return values."""
        return self.critic.returning_values()

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """Overrides TRL's (1.16): vLLM is sent all weights of the model that it is given, and knows no critic."""
        with detached(self.model) if self.use_vllm else nullcontext():
            return super()._generate_single_turn(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        """Overrides TRL's: answers with old log-probabilities and values, advantages and returns: each (B, C)."""
        answers = self.answer(inputs)
        assert answers.values is not None, "the critic listens"
        # Answers without a score are read by the critic, and train nothing.
        mask = answers.completion_mask * answers.scored[:, None]
        if self.mask_truncated_completions:
            mask = mask * answers.ended[:, None]
        reference = answers.logps if answers.ref_logps is None else answers.ref_logps
        kl = kl_estimate(answers.logps, reference, self.args.kl_estimator)
        rewards = token_rewards(answers.scores, kl, answers.completion_mask, self.args.beta)
        if self.args.whiten_rewards:
            rewards = whiten(rewards, mask, shift_mean=False, reduce=self.sum_over_ranks)
        advantages, returns = gae(
            rewards, answers.values, answers.completion_mask, gamma=self.args.gamma, lam=self.args.lam
        )
        if self.args.normalize_advantages:
            advantages = whiten(advantages, mask, reduce=self.sum_over_ranks)
        self.note(answers, advantages[:, 0].masked_fill(~mask.bool().any(dim=1), torch.nan))
        self._log_rollout(answers, rewards, returns, mask)
        pieces = self.args.steps_per_generation if self.model.training else 1
        # The mean of micro batches over the whole batch: sums divided by it weigh tokens alike.
        count = self.sum_over_ranks(mask.sum().float()).clamp(min=1) / (pieces * ranks.world_size())
        return answers.tokens() | {
            "mask": mask,
            "logps": answers.logps,
            "values": answers.values,
            "advantages": advantages,
            "returns": returns,
            "tokens": count,
        }

    def _compute_loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        """Overrides TRL's: a sum over a micro-batch's tokens, by the mean number of tokens of all micro-batches."""
        body = self.critic.body
        if body is not None and hasattr(body, "recomputing"):
            # Switching the policy's off and on around generation does so with all modules below it.
            body.recomputing.switch(body, on=self.model.training)
        with self.returning_values():
            logps, entropies, values = self.forward_answers(model, inputs)
        assert values is not None, "the critic listens"
        args, mask = self.args, inputs["mask"]
        policy, clipped = policy_losses(
            logps.float(), inputs["logps"], inputs["advantages"], low=self.epsilon_low, high=self.epsilon_high
        )
        value, value_clipped = value_losses(values, inputs["values"], inputs["returns"], clip=args.cliprange_value)
        losses = policy + args.vf_coef * value - args.entropy_coef * entropies
        figures = {"policy_loss": policy, "value_loss": value, "entropy": entropies}
        figures |= {"clip_ratio/policy": clipped.float(), "clip_ratio/value": value_clipped.float()}
        figures["approx_kl"] = kl_estimate(inputs["logps"], logps.float(), "k3")
        figures["ratio"] = (logps - inputs["logps"]).exp()
        self.log_means(figures, mask)
        return (losses * mask).sum() / inputs["tokens"]

    def _log_rollout(self, answers: Answers, rewards: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> None:
        """Rewards, KL to the reference, and how much of the returns the critic foresaw."""
        mode = "train" if self.model.training else "eval"
        metrics, written = self._metrics[mode], answers.completion_mask
        if answers.ref_logps is not None:
            self.log_kl(answers)
        # What is maximised: scores less the penalty for KL.
        total = self.accelerator.gather((rewards * written).sum(dim=1))[self.accelerator.gather(answers.scored)]
        metrics["reward_with_kl"].append(total.mean().item())
        assert answers.values is not None, "the critic listens"
        metrics["explained_variance"].append(explained_variance(answers.values, returns, mask, self.sum_over_ranks))
