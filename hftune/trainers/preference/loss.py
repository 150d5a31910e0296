"""The loss of a batch of pairs, and what is measured on the way."""

from __future__ import annotations

import torch
from torch import nn

from hftune.constants import FILLER
from hftune.losses.preference import Parts, Terms, combined, desensitised, losses_with, of_answers, scores
from hftune.models.kernels.heads import AnswerOutput
from hftune.trainers.features.pair_figures import PairFigures
from hftune.trainers.features.reference_policy import ReferencePolicy
from hftune.trainers.features.run import Inputs, Run
from hftune.trainers.preference.batches import counts_of

OF_MODEL = ("input_ids", "attention_mask", "position_ids", "use_cache", "shared_prompts", "answer_at", "answer_ids")
"""What of a batch goes to the model, together with the borders of its runs."""


class PairLoss:
    """The loss of batches of `PairCollator`.

    Args:
        run: The trainer.
        reference_policy: Gives the reference's numbers.
        figures: Where metrics are added up on the way.
    """

    def __init__(self, run: Run, reference_policy: ReferencePolicy, figures: PairFigures) -> None:
        self.run, self.reference_policy, self.figures = run, reference_policy, figures
        self._step: list[Inputs] = []  # the micro batches of the step that is being trained
        self._step_kl: torch.Tensor | None = None

    def begin_step(self, batches: list[Inputs]) -> None:
        """Have what is one for a whole step taken over all of its micro batches."""
        self._step, self._step_kl = batches, None

    def loss(
        self, model: nn.Module, inputs: Inputs, counted: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, AnswerOutput]:
        """The weighted sum of the losses asked for, a scalar, and what the model said.

        Args:
            counted: Records and chosen tokens (2,) that means are taken over; None: of this batch.
        """
        args = self.run.args
        # Before the pass with gradients, so that its memory is free again.
        kl = self._reference_point(model, inputs, counted) if "kto" in args.loss_type else None
        outputs = forward_answers(model, inputs)
        if counted is None:
            counted = counts_of(inputs).clamp(min=1)
        if "label" in inputs:
            return self._of_answers(outputs, inputs, kl).over(counted), outputs
        terms = self.terms(outputs, inputs, kl)
        weights = likelihoods(outputs, inputs) if args.use_weighting else None
        names = args.loss_type
        parts = combined(terms, names, args.loss_weights or [1.0] * len(names), weights)
        self._measure(terms, outputs, inputs, parts)
        return parts.over(counted), outputs

    def answer_sums(self, outputs: AnswerOutput, inputs: Inputs) -> torch.Tensor:
        """log pi of each answer, (answers,), with LD-DPO's weights, or scaled as `--normalize_logps` says."""
        assert outputs.log_probs is not None
        lengths = inputs["answer_lengths"]
        half = len(lengths) // 2
        if not inputs["paired"]:
            return desensitised(outputs.log_probs, lengths, lengths, None)
        shared = torch.minimum(lengths[:half], lengths[half:]).repeat(2)
        sums = desensitised(outputs.log_probs, lengths, shared, self.run.args.ld_alpha)
        if not self.run.args.normalize_logps:
            return sums
        # Both answers of a pair by their common mean length: sums stay of the same size as without the flag.
        means = (lengths[:half] + lengths[half:]).repeat(2) / 2
        return sums * means / lengths

    def _reference_point(self, model: nn.Module, inputs: Inputs, counted: torch.Tensor | None) -> torch.Tensor:
        """KTO's, of all micro batches of a step in training, of the batch in evaluation."""
        if counted is None or not self._step:
            return self.divergence(model, [inputs])
        if self._step_kl is None:
            self._step_kl = self.divergence(model, [self.run._prepare_inputs(batch) for batch in self._step])
        return self._step_kl

    def divergence(self, model: nn.Module, batches: list[Inputs]) -> torch.Tensor:
        """KTO's estimate of KL(policy, reference), >= 0: the mean log ratio of mismatched answers over all ranks."""
        with torch.no_grad():
            ratios = torch.cat([self._mismatched_ratios(model, batch) for batch in batches])
            # Over all ranks: the estimate is a mean, and a rank may have few answers.
            sums = torch.stack([ratios.double().sum(), ratios.new_tensor(len(ratios)).double()])
            total, number = self.run.accelerator.reduce(sums, "sum")
        return (total / number.clamp(min=1)).clamp(min=0).to(ratios.dtype)

    def _mismatched_ratios(self, model: nn.Module, inputs: Inputs) -> torch.Tensor:
        """log pi / pi_ref of answers to other prompts, (answers that count,)."""
        assert "kl" in inputs, "records for KTO bring an answer to another prompt"
        policy = self.answer_sums(forward_answers(model, inputs["kl"]), inputs["kl"])
        kept = kept_records(inputs)
        return (policy - self.reference_policy.of_mismatched(inputs).to(policy))[kept]

    def _of_answers(self, outputs: AnswerOutput, inputs: Inputs, kl: torch.Tensor | None) -> Parts:
        """The weighted sum of losses of single answers; metrics are added up on the way."""
        kept = kept_records(inputs)
        policy, good = self.answer_sums(outputs, inputs)[kept], inputs["label"][kept]
        ratios = policy - self.reference_policy.of_answers(inputs)[kept].to(policy)
        names, kl = self.run.args.loss_type, torch.zeros_like(ratios.sum()) if kl is None else kl
        weights = self.run.args.loss_weights or [1.0] * len(names)
        losses = [of_answers(name, ratios, good, kl, self.run.args) for name in names]
        loss = sum((weight * each for weight, each in zip(weights, losses, strict=True)), torch.zeros_like(policy))
        metrics = self.figures.metrics["train" if self.run.model.training else "eval"]
        if self.run.model.training:
            self.figures.seen_tokens += inputs["num_tokens"][kept].sum()
        metrics.add("loss/pairs", loss)
        metrics.add("kl", kl.expand(len(good)))
        rewards = self.run.args.beta * ratios.detach()
        for name, which in (("chosen", good), ("rejected", good.logical_not())):
            metrics.add(f"rewards/{name}", rewards, which.double())
            metrics.add(f"logps/{name}", policy, which.double())
        metrics.add("rewards/accuracies", ((rewards > 0) == good).float())
        return Parts(loss)

    def terms(self, outputs: AnswerOutput, inputs: Inputs, kl: torch.Tensor | None = None) -> Terms:
        """What losses are computed from; without the records that only fill up an evaluation."""
        kept = kept_records(inputs)
        chosen, rejected = (part[kept] for part in self.answer_sums(outputs, inputs).chunk(2))
        ref_chosen, ref_rejected = (part[kept].to(chosen) for part in self.reference_policy.sums(inputs))
        lengths = [part[kept] for part in inputs["answer_lengths"].chunk(2)]
        kind, alpha = self.run.args.f_divergence_type, self.run.args.f_alpha_divergence_coef
        differences = inputs.get("differences")
        # Not `chosen`, whose tokens may have factors (LD-DPO).
        assert outputs.log_probs is not None
        answers = inputs["answer_lengths"].chunk(2)[0]
        nll = -desensitised(outputs.log_probs[: inputs["chosen_total"]], answers, answers, None)
        return Terms(
            chosen=chosen,
            rejected=rejected,
            ref_chosen=ref_chosen,
            ref_rejected=ref_rejected,
            chosen_tokens=lengths[0].to(chosen.dtype),
            rejected_tokens=lengths[1].to(chosen.dtype),
            chosen_scores=scores(chosen - ref_chosen, kind, alpha),
            rejected_scores=scores(rejected - ref_rejected, kind, alpha),
            nll=nll[kept],
            differences=None if differences is None else differences[kept],
            kl=kl,
            settings=self.run.args,
        )

    def _measure(self, terms: Terms, outputs: AnswerOutput, inputs: Inputs, parts: Parts) -> None:
        """TRL's metrics, as sums."""
        metrics = self.figures.metrics["train" if self.run.model.training else "eval"]
        if self.run.model.training:
            self.figures.seen_tokens += inputs["num_tokens"][kept_records(inputs)].sum()
        chosen, rejected = self.rewards(terms)
        metrics.add("loss/pairs", parts.of_pairs)
        if parts.of_tokens is not None:
            metrics.add("loss/tokens", parts.of_tokens / terms.chosen_tokens, terms.chosen_tokens)
        values = {
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/accuracies": (chosen > rejected).float(),
            "rewards/margins": chosen - rejected,
            "logps/chosen": terms.chosen,
            "logps/rejected": terms.rejected,
        }
        for name, numbers in values.items():
            metrics.add(name, numbers)
        lengths = inputs["answer_lengths"]
        first, total = inputs["chosen_total"], len(inputs["answer_ids"])
        kept = inputs[FILLER].logical_not().repeat(2) if FILLER in inputs else torch.ones_like(lengths)
        counts = torch.repeat_interleave(kept, lengths, output_size=total)
        assert outputs.entropy is not None and outputs.mean_logits is not None and outputs.is_top1 is not None
        metrics.add("entropy", outputs.entropy, counts)
        metrics.add("logits/chosen", outputs.mean_logits[:first], counts[:first])
        metrics.add("logits/rejected", outputs.mean_logits[first:], counts[first:])
        metrics.add("mean_token_accuracy", outputs.is_top1[:first].float(), counts[:first])

    def rewards(self, terms: Terms) -> tuple[torch.Tensor, torch.Tensor]:
        """Implicit rewards of both answers, (B,): what the losses compare, times beta."""
        beta = self.run.args.beta
        names = {*self.run.args.loss_type}
        # With several losses, rewards follow the one that has a reference.
        if names <= losses_with("reference", False) and names & losses_with("a_token"):
            chosen, rejected = terms.averages
            return beta * chosen.detach(), beta * rejected.detach()
        return beta * terms.chosen_ratios.detach(), beta * terms.rejected_ratios.detach()


def kept_records(inputs: Inputs) -> torch.Tensor | slice:
    """An index of the records of a batch without those that only fill up an evaluation."""
    return inputs[FILLER].logical_not() if FILLER in inputs else slice(None)


def forward_answers(model: nn.Module, inputs: Inputs) -> AnswerOutput:
    """Log-probabilities of the answers' tokens under any model."""
    borders = {name: value for name, value in inputs.items() if name.startswith(("cu_seq_lens", "max_length"))}
    output: AnswerOutput = model(**{name: inputs[name] for name in OF_MODEL if name in inputs}, **borders)
    return output


def likelihoods(outputs: AnswerOutput, inputs: Inputs) -> torch.Tensor:
    """WPO's factor of each pair, (B,), without gradient (arXiv:2406.11827, eq. 2 and 4)."""
    assert outputs.log_probs is not None and outputs.log_sum_sq is not None
    aligned = (outputs.log_probs - outputs.log_sum_sq).detach()
    lengths = inputs["answer_lengths"]
    means = desensitised(aligned, lengths, lengths, None) / lengths
    chosen, rejected = means.exp().chunk(2)
    weights = chosen * rejected
    return weights[kept_records(inputs)]
