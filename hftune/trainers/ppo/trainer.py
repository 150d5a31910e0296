"""PPO: answers with values and advantages, then epochs of clipped steps on policy and critic."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from hftune.arguments import PPOArguments
from hftune.distributed import ranks
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.checkpointing import recompute
from hftune.opening.model_files import read_checked
from hftune.trainers.ppo.critic import FOLDER, Critic, attach, detached, load_critic, save_critic
from hftune.trainers.ppo.maths import (
    KLController,
    explained_variance,
    gae,
    kl_estimate,
    masked_mean,
    policy_losses,
    token_rewards,
    value_losses,
    whiten,
)
from hftune.trainers.rollouts import Answers, Batch, RolloutTrainer

STATE = "ppo_state.json"
"""The file of a checkpoint with the KL coefficient."""


class PPOTrainer(RolloutTrainer):
    """Proximal policy optimisation with a critic; arXiv:1707.06347, 1909.08593 and the details of 2403.17031.

    The loss of a token is policy + vf_coef * value - entropy_coef * entropy; tokens count
    alike over micro-batches and ranks, so the loss does not depend on how answers are divided into them.

    Args:
        critic: Not attached to the policy yet; `critic_like` and its like build it.
    """

    args: PPOArguments

    def __init__(self, *positional: Any, critic: Critic, **kwargs: Any) -> None:
        super().__init__(*positional, **kwargs)
        args = self.args
        if not self.is_deepspeed_enabled:
            critic.to(args.device)
        if args.recomputation is not None and critic.body is not None:
            reentrant = bool((args.gradient_checkpointing_kwargs or {}).get("use_reentrant"))
            recompute(critic.body, args.recomputation, reentrant=reentrant, on_cpu=args.use_cpu)
        attach(self.model, critic)
        self.controller = KLController(args.beta, args.kl_target, args.kl_horizon)
        if args.beta == 0.0:
            notice("--beta 0: no reference, so KL is neither held nor logged")

    @property
    def critic(self) -> Critic:
        """The child of the policy."""
        critic: Critic = self.accelerator.unwrap_model(self.model).critic
        return critic

    def listening(self) -> AbstractContextManager[None]:
        """In the block, forward passes of the policy return values."""
        return self.critic.listening()

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """As TRL's (1.16). vLLM is sent all weights of the model that it is given, and knows no critic."""
        with detached(self.model) if self.use_vllm else nullcontext():
            return super()._generate_single_turn(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        """Answers with old log-probabilities and values, advantages and returns: each (B, C)."""
        answers = self.answer(inputs)
        assert answers.values is not None, "the critic listens"
        mask = answers.completion_mask * answers.scored[:, None]
        if self.mask_truncated_completions:
            mask = mask * answers.ended[:, None]
        reference = answers.logps if answers.ref_logps is None else answers.ref_logps
        kl = kl_estimate(answers.logps, reference, self.args.kl_estimator)
        rewards = token_rewards(answers.scores, kl, answers.completion_mask, self.controller.beta)
        if self.args.whiten_rewards:
            rewards = whiten(rewards, mask, shift_mean=False, reduce=self.sum_over_ranks)
        advantages, returns = gae(
            rewards, answers.values, answers.completion_mask, gamma=self.args.gamma, lam=self.args.lam
        )
        self._log_rollout(answers, rewards, returns, mask)
        if self.args.normalize_advantages:
            advantages = whiten(advantages, mask, reduce=self.sum_over_ranks)
        pieces = self.args.steps_per_generation if self.model.training else 1
        count = self.sum_over_ranks(mask.sum().float()) / (pieces * ranks.world_size())
        return answers.tokens() | {
            "mask": mask,
            "logps": answers.logps,
            "values": answers.values,
            "advantages": advantages,
            "returns": returns,
            "tokens": count.clamp(min=1),
        }

    def _compute_loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        """The loss of a micro-batch: a sum over its tokens, by the mean number of tokens of all micro-batches."""
        body = self.critic.body
        if body is not None and hasattr(body, "recomputing"):
            # Switching the policy's off and on around generation does so with all modules below it.
            body.recomputing.switch(body, on=self.model.training)
        with self.listening():
            logps, entropies, values = self.forward_answers(model, inputs)
        assert values is not None, "the critic listens"
        args, mask = self.args, inputs["mask"]
        policy, clipped = policy_losses(
            logps.float(), inputs["logps"], inputs["advantages"], low=self.epsilon_low, high=self.epsilon_high
        )
        value, value_clipped = value_losses(values, inputs["values"], inputs["returns"], clip=args.cliprange_value)
        losses = policy + args.vf_coef * value - args.entropy_coef * entropies
        self._log_step(
            mask,
            policy_loss=policy,
            value_loss=value,
            entropy=entropies,
            approx_kl=kl_estimate(inputs["logps"], logps.float(), "k3"),
            ratio=(logps - inputs["logps"]).exp(),
            **{"clip_ratio/policy": clipped.float(), "clip_ratio/value": value_clipped.float()},
        )
        return (losses * mask).sum() / inputs["tokens"]

    def _log_step(self, mask: torch.Tensor, **values: torch.Tensor) -> None:
        """Means over the tokens of a micro-batch of all ranks."""
        mode = "train" if self.model.training else "eval"
        for name, value in values.items():
            mean = masked_mean(value.detach().float(), mask, self.sum_over_ranks)
            self._metrics[mode][name].append(mean.item())

    def _log_rollout(self, answers: Answers, rewards: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> None:
        """Rewards, KL to the reference, and how much of the returns the critic foresaw; moves the KL coefficient."""
        mode = "train" if self.model.training else "eval"
        metrics, written = self._metrics[mode], answers.completion_mask
        self.note(answers, (returns - answers.values)[:, 0] if answers.values is not None else answers.scores)
        if answers.ref_logps is not None:
            log_ratio = (answers.logps - answers.ref_logps) * written
            metrics["kl"].append(masked_mean(log_ratio, written, self.sum_over_ranks).item())
            per_answer = self.accelerator.gather(log_ratio.sum(dim=1))
            metrics["kl_sequence"].append(per_answer.mean().item())
            metrics["beta"].append(self.controller.beta)
            if mode == "train":
                self.controller.update(per_answer.mean().item(), len(per_answer))
        total = self.accelerator.gather((rewards * written).sum(dim=1))
        metrics["reward_with_kl"].append(total.mean().item())
        assert answers.values is not None, "the critic listens"
        metrics["explained_variance"].append(explained_variance(answers.values, returns, mask, self.sum_over_ranks))

    # What is saved is the policy, a model like any other; the critic and the coefficient lie beside it.

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = output_dir or str(self.args.output_dir)
        with detached(self.model) as critic:
            if state_dict is None:
                state, policy = dict(critic.state_dict()), None
            else:
                begins = f"{FOLDER}."
                state = {name.removeprefix(begins): t for name, t in state_dict.items() if name.startswith(begins)}
                policy = {name: tensor for name, tensor in state_dict.items() if not name.startswith(begins)}
            super()._save(output_dir, policy)
            if self.args.should_save:
                save_critic(critic, folder, state)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with detached(self.model) as critic:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            load_critic(critic, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        with detached(self.model):
            super()._load_best_model()

    def _save_beside(self, folder: Path) -> None:
        super()._save_beside(folder)
        if ranks.is_main():
            (folder / STATE).write_text(json.dumps({"beta": self.controller.beta}), encoding="utf-8")

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As the Trainer's; the KL coefficient goes on where it was."""
        if isinstance(resume_from_checkpoint, str):
            file = Path(resume_from_checkpoint) / STATE
            if not file.is_file():
                raise ArgumentError(
                    f"{resume_from_checkpoint} was not written by PPO",
                    place="--resume_from_checkpoint",
                    fix="go on with the algorithm that wrote it",
                )
            self.controller.beta = float(read_checked(file)["beta"])
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
