"""Answers of the policy with what is known of them: log-probabilities, the reference's, values and scores.

What PPO and online DPO share. Generation, rewards, samplers and batches are those of TRL's `RLOOTrainer` (1.16), of
which parts are used here that TRL does not promise to keep, `_generate` and `_calculate_rewards` first of all.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import trl
from accelerate.utils import gather_object
from peft import PeftModel
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import pad, shuffle_sequence_dict, split_tensor_dict, use_adapter

from hftune.distributed import phases
from hftune.trainers.online.base import OnlineTrainer

Batch = dict[str, Any]


@dataclass
class Answers:
    """What one process has drawn: B answers of at most C tokens to prompts of at most P tokens.

    Attributes:
        prompt_ids, prompt_mask: (B, P), padded on the left.
        completion_ids, completion_mask: (B, C), padded on the right; the end token counts.
        logps, ref_logps, values: (B, C), float32; None where there is no reference or critic.
        scores: (B,) weighted sums of the rewards, after clipping and the penalty for a missing end; 0 where `scored`
            is not.
        scored: (B,), whether any reward function had an opinion.
        ended: (B,), whether the answer ends by itself.
        rewards: (N, functions) of all ranks, as the functions gave them.
        prompts, completions: As text or messages.
    """

    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    completion_ids: torch.Tensor
    completion_mask: torch.Tensor
    logps: torch.Tensor
    ref_logps: torch.Tensor | None
    values: torch.Tensor | None
    scores: torch.Tensor
    scored: torch.Tensor
    ended: torch.Tensor
    rewards: torch.Tensor
    prompts: list[Any]
    completions: list[Any]

    def tokens(self) -> Batch:
        """The tensors that a forward pass reads."""
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
        return {name: getattr(self, name) for name in names}


class RolloutTrainer(OnlineTrainer, trl.RLOOTrainer):
    """TRL's loop of answering and training, for losses that are not RLOO's.

    A batch of answers is gone through `num_iterations` times, in another order each time (as in arXiv:1707.06347), and
    divided into `steps_per_generation` micro-batches.
    """

    has_critic = False

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        """Overrides TRL's: the micro-batch that is due; new answers where the last ones have been gone through."""
        if not self.model.training:
            return self._generate_and_score_completions(generation_batch)
        steps = self.args.steps_per_generation
        if self.rollout is None or self._step % (steps * self.num_iterations) == 0:
            self.rollout = self._generate_and_score_completions(generation_batch)
            # Else the last answers, shuffled, would be trained once more.
            self._buffered_inputs = None
        if self._buffered_inputs is None or self._step % steps == 0:
            self._buffered_inputs = split_tensor_dict(shuffle_sequence_dict(self.rollout), steps)
        return self._buffered_inputs[self._step % steps]

    def answer(self, inputs: list[dict[str, Any]]) -> Answers:
        """Let the policy answer, and score what it says. Every rank must take part."""
        prompts = [row["prompt"] for row in inputs]
        prompt_ids, completion_ids, completions = self._generate(prompts)
        tokens = self._tensors(prompt_ids, completion_ids)
        # What the policy said before any of the steps on these answers: ratios are to this.
        with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            phases.enter(phases.OLD)
            logps, values = self._old(tokens)
            ref_logps = self._reference(tokens)
        rewards = self._calculate_rewards(inputs, prompts, completions, completion_ids)
        ends = torch.tensor([*self.eos_token_ids, self.processing_class.pad_token_id], device=self.accelerator.device)
        last = torch.tensor([ids[-1] for ids in completion_ids], device=self.accelerator.device)
        ended = torch.isin(last, ends)
        scores, scored = self._scores(ended)
        return Answers(
            **tokens,
            logps=logps,
            ref_logps=ref_logps,
            values=values,
            scores=scores,
            scored=scored,
            ended=ended,
            rewards=rewards,
            prompts=prompts,
            completions=completions,
        )

    def returning_values(self) -> AbstractContextManager[None]:
        """In the block, forward passes of the policy also return what this algorithm needs of them."""
        return nullcontext()

    def forward_answers(self, model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Log-probabilities, entropies and, from a critic that listens, values: each (B, C)."""
        length = batch["completion_ids"].shape[1]
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        # TRL's fused head (1.16) takes labels for the tokens to score, and shifts them itself.
        labels = ids.masked_fill(attention == 0, -100)
        labels[:, :-length] = -100
        with self.accelerator.autocast():
            # TRL patches this argument into the forward pass: log-probabilities without the logits of all tokens.
            output = model(input_ids=ids, attention_mask=attention, labels=labels, fused_lm_head=True)
        values = output.get("state_values")
        # TRL gives the reference's head no entropies, and nothing asks for them.
        entropies = torch.zeros_like(output.log_probs) if output.entropy is None else output.entropy
        return (
            output.log_probs[:, -length:],
            entropies[:, -length:],
            None if values is None else values[:, -length:],
        )

    def note(self, answers: Answers, advantages: torch.Tensor) -> None:
        """Put rewards and samples into the log; `advantages` (B,) are shown with each sample, NaN for none."""
        mode = "train" if self.model.training else "eval"
        for column, name in enumerate(self.reward_func_names):
            given = answers.rewards[:, column]
            given = given[~given.isnan()]
            self._metrics[mode][f"rewards/{name}/mean"].append(given.mean().item() if len(given) else float("nan"))
            self._metrics[mode][f"rewards/{name}/std"].append(given.std().item() if len(given) > 1 else 0.0)
            self._logs["rewards"][name].extend(answers.rewards[:, column].tolist())
        scores = self.accelerator.gather(answers.scores)[self.accelerator.gather(answers.scored)]
        self._metrics[mode]["reward"].append(scores.mean().item() if len(scores) else float("nan"))
        self._metrics[mode]["reward_std"].append(scores.std().item() if len(scores) > 1 else 0.0)
        self._logs["prompt"].extend(gather_object(answers.prompts))
        self._logs["completion"].extend(gather_object(answers.completions))
        self._logs["advantages"].extend(self.accelerator.gather(advantages).tolist())
        self._flush_what_functions_logged(mode)

    def log_kl(self, answers: Answers) -> None:
        """Log the KL to the reference, in nats: a token and an answer."""
        assert answers.ref_logps is not None, "beta is above 0"
        log_ratio = (answers.logps - answers.ref_logps) * answers.completion_mask
        self.log_means({"kl": log_ratio}, answers.completion_mask)
        per_answer = self.accelerator.gather(log_ratio.sum(dim=1))
        self._metrics["train" if self.model.training else "eval"]["kl_sequence"].append(per_answer.mean().item())

    def log_means(self, values: dict[str, torch.Tensor], weights: torch.Tensor) -> None:
        """Log weighted means over all since the last log: one a micro-batch would depend on how answers are divided.

        Args:
            values: Each of the shape of `weights`, of this rank's micro-batch.
            weights: 0 for what is left out.
        """
        for name, value in values.items():
            self.sums["train" if self.model.training else "eval"].add(name, value, weights)

    def sum_over_ranks(self, tensor: torch.Tensor) -> torch.Tensor:
        """The `Reduce` of this run."""
        summed: torch.Tensor = self.accelerator.reduce(tensor, reduction="sum")
        return summed

    def _tensors(self, prompt_ids: list[list[int]], completion_ids: list[list[int]]) -> Batch:
        device, padding = self.accelerator.device, self.processing_class.pad_token_id
        both = (("prompt", prompt_ids, "left"), ("completion", completion_ids, "right"))
        batch = {}
        for name, lists, side in both:
            tensors = [torch.tensor(ids, dtype=torch.long) for ids in lists]
            ones = [torch.ones_like(ids) for ids in tensors]
            batch[f"{name}_ids"] = pad(tensors, padding_value=padding, padding_side=side).to(device)
            batch[f"{name}_mask"] = pad(ones, padding_value=0, padding_side=side).to(device)
        return batch

    def _old(self, tokens: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities of the policy that has drawn, which may be known; values where a critic listens."""
        if not self.has_critic:
            ids = torch.cat([tokens["prompt_ids"], tokens["completion_ids"]], dim=1)
            mask = torch.cat([tokens["prompt_mask"], tokens["completion_mask"]], dim=1)
            known = self.drawn_log_probs(ids, mask, tokens["completion_ids"].shape[1])
            if known is not None:
                return known, None
        with self.returning_values():
            return self._in_pieces(self.model, tokens)

    def _in_pieces(self, model: Any, tokens: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities and values in micro-batches: a batch of answers is larger than what a step trains on."""
        args, training = self.args, self.model.training
        size = args.per_device_train_batch_size if training else args.per_device_eval_batch_size
        rows = range(0, len(tokens["prompt_ids"]), size)
        found = []
        for row in rows:
            phases.keep_alive()
            piece = {key: tensor[row : row + size] for key, tensor in tokens.items()}
            found.append(self.forward_answers(model, piece))
        values = [piece[2] for piece in found if piece[2] is not None]
        return torch.cat([piece[0] for piece in found]).float(), torch.cat(values) if values else None

    def _reference(self, tokens: Batch) -> torch.Tensor | None:
        """Log-probabilities under the model that training began with; None with --beta 0."""
        if self.beta == 0.0:
            return None
        phases.enter(phases.REFERENCE)
        if self.ref_model is not None:
            return self._in_pieces(self.ref_model, tokens)[0]
        plain = self.accelerator.unwrap_model(self.model)
        # Without a copy called "ref" the reference is the base, which the adapter began as.
        is_adapter = isinstance(plain, PeftModel)
        name = "ref" if is_adapter and "ref" in plain.peft_config else None
        with use_adapter(plain, adapter_name=name) if is_adapter else nullcontext():
            return self._in_pieces(self.model, tokens)[0]

    def _scores(self, ended: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's scores, clipped and less the penalty for a missing end, and which of them mean anything."""
        own = self.own_scores(len(ended))
        scored, scores = ~own.isnan(), own.nan_to_num()
        if self.reward_clip_range:
            scores = scores.clamp(min=self.reward_clip_range[0], max=self.reward_clip_range[1])
        if self.args.missing_eos_penalty is not None:
            scores = scores - self.args.missing_eos_penalty * (~ended)
        # Those without an opinion are left out of the loss by their mask; 0 keeps NaN out of the sums.
        return scores * scored, scored

    def _flush_what_functions_logged(self, mode: str) -> None:
        """Means of what reward functions handed to `log_metric`; columns of `log_extra`, of all ranks."""
        for name, values in self._pending_metrics.items():
            self.sums[mode].add(name, torch.tensor(values, dtype=torch.float64))
        for column in sorted(set(gather_object(list(self._pending_extra_logs)))):
            self._logs["extra"][column].extend(gather_object(self._pending_extra_logs.get(column, [])))
        self._pending_metrics.clear()
        self._pending_extra_logs.clear()
