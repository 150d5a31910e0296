"""Preference optimisation (DPO, arXiv:2305.18290, and its relatives): one loss whatever the layout of a batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from peft import PeftModel
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer
from trl.models import get_act_offloading_ctx_manager
from trl.trainer.utils import disable_dropout_in_model

from hftune.arguments import DPOArguments
from hftune.data.splits import Splits
from hftune.models.answer_head import AnswerOutput, add_answer_head
from hftune.models.vocabulary import vocabulary_rows
from hftune.trainers.base import HftuneTrainerMixin
from hftune.trainers.losses.divergences import desensitised, scores
from hftune.trainers.losses.table import LOSSES, combined
from hftune.trainers.losses.terms import Settings, Terms
from hftune.trainers.pair_batches import COLUMNS, FILLER, PairCollator
from hftune.trainers.pair_metrics import PairMetrics
from hftune.trainers.references import ReferenceMixin
from hftune.trainers.shared_proof import prove_alike

OF_MODEL = ("input_ids", "attention_mask", "position_ids", "use_cache", "shared_prompts", "answer_at", "answer_ids")
"""What of a batch goes to the model, beside the borders of its runs."""


class DPOTrainer(ReferenceMixin, HftuneTrainerMixin, Trainer):
    """`transformers.Trainer` on pairs that hftune has tokenised, with the arguments and metrics of TRL's DPO trainer.

    TRL's own (1.16) pads, projects prompts onto the vocabulary on a CPU, and reads metrics back in every step.

    Args:
        model: As it is trained.
        args: Settled by `preflight.preference_checks.settle_rows`.
        ref_model: Another model as reference; None: the model as it is now.
        starts_as_base: Whether the model with its adapter off is what it is with it on.
    """

    # Means over pairs: the Trainer divides by accumulated batches itself.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: DPOArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        *,
        ref_model: PreTrainedModel | None = None,
        starts_as_base: bool = False,
        **kwargs: Any,
    ) -> None:
        self.metrics = {"train": PairMetrics(), "eval": PairMetrics()}
        self.seen_tokens = torch.zeros((), dtype=torch.long, device=args.device)
        self.settings = settings_of(args)
        assert isinstance(tokenizer.pad_token_id, int), "load_tokenizer gives it a pad token"
        collator = PairCollator(
            tokenizer.pad_token_id,
            flat=args.flat_batches,
            shared=bool(args.shared_prompts),
            pad_to_multiple_of=args.pad_to_multiple_of,
        )
        plain = model.get_base_model() if isinstance(model, PeftModel) else model
        plain.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        for each in (plain, ref_model):
            if each is not None:
                if args.disable_dropout:
                    disable_dropout_in_model(each)
                add_answer_head(each)
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            data_collator=collator,
            train_dataset=data.train,
            eval_dataset=data.evaluation,
            **kwargs,
        )
        self.model_accepts_loss_kwargs = False  # as `loss_is_scaled_for_ga`, before transformers 5.20
        self.mixture = data.mixture
        self.settle_reference(ref_model, starts_as_base)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the Trainer's; activations go to the CPU where that was asked for."""
        offloading = get_act_offloading_ctx_manager(self.model) if self.args.activation_offloading else nullcontext()
        with offloading:
            return super().training_step(*args, **kwargs)

    def _prove_apart(self, model: Any) -> None:
        """Once a run, where pairs lie side by side."""
        if self._proven_apart or not self.args.flat_batches:
            return
        self._proven_apart = True

        def score(batch: dict[str, Any]) -> torch.Tensor:
            log_probs = self.forward_answers(model, self._prepare_inputs(batch)).log_probs
            assert log_probs is not None
            return log_probs

        was_training = model.training
        model.eval()  # dropout is no leak
        with self.compute_loss_context_manager():
            prove_alike(score, self.data_collator, vocabulary_rows(self.model))
        model.train(was_training)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The weighted sum of the losses asked for, a scalar; metrics are added up on the way."""
        outputs = self.forward_answers(model, inputs)
        terms = self.terms(outputs, inputs)
        weights = self._likelihoods(outputs, inputs) if self.args.use_weighting else None
        names = self.args.loss_type
        loss = combined(terms, names, self.args.loss_weights or [1.0] * len(names), weights)
        self._measure(terms, outputs, inputs, loss)
        return (loss, outputs) if return_outputs else loss

    def forward_answers(self, model: nn.Module, inputs: dict[str, Any]) -> AnswerOutput:
        """Log-probabilities of the answers' tokens under any model."""
        borders = {name: value for name, value in inputs.items() if name.startswith(("cu_seq_lens", "max_length"))}
        output: AnswerOutput = model(**{name: inputs[name] for name in OF_MODEL if name in inputs}, **borders)
        return output

    def answer_sums(self, outputs: AnswerOutput, inputs: dict[str, Any]) -> torch.Tensor:
        """log pi of each answer, (answers,), with LD-DPO's weights."""
        assert outputs.log_probs is not None
        lengths = inputs["answer_lengths"]
        half = len(lengths) // 2
        shared = torch.minimum(lengths[:half], lengths[half:]).repeat(2) if self.args.ld_alpha is not None else lengths
        return desensitised(outputs.log_probs, lengths, shared, self.args.ld_alpha)

    def terms(self, outputs: AnswerOutput, inputs: dict[str, Any]) -> Terms:
        """What losses are computed from; without the records that only fill up an evaluation."""
        kept = inputs[FILLER].logical_not() if FILLER in inputs else slice(None)
        chosen, rejected = (part[kept] for part in self.answer_sums(outputs, inputs).chunk(2))
        ref_chosen, ref_rejected = (part[kept].to(chosen) for part in self.reference_sums(inputs))
        lengths = [part[kept] for part in inputs["answer_lengths"].chunk(2)]
        kind, alpha = self.args.f_divergence_type, self.args.f_alpha_divergence_coef
        differences = inputs.get("differences")
        return Terms(
            chosen=chosen,
            rejected=rejected,
            ref_chosen=ref_chosen,
            ref_rejected=ref_rejected,
            chosen_tokens=lengths[0].to(chosen.dtype),
            rejected_tokens=lengths[1].to(chosen.dtype),
            chosen_scores=scores(chosen - ref_chosen, kind, alpha),
            rejected_scores=scores(rejected - ref_rejected, kind, alpha),
            nll=self._nll(outputs, inputs, kept),
            differences=None if differences is None else differences[kept],
            settings=self.settings,
        )

    @staticmethod
    def _nll(outputs: AnswerOutput, inputs: dict[str, Any], kept: Any) -> torch.Tensor:
        """Mean over the tokens of the batch's chosen answers."""
        assert outputs.log_probs is not None
        lengths = inputs["answer_lengths"].chunk(2)[0]
        counts = torch.repeat_interleave(_ones(lengths, kept), lengths)
        total = (outputs.log_probs[: len(counts)] * counts).sum()
        return -total / counts.sum().clamp(min=1)

    def _likelihoods(self, outputs: AnswerOutput, inputs: dict[str, Any]) -> torch.Tensor:
        """WPO's factor of each pair, (B,), without gradient (arXiv:2406.11827, eq. 2 and 4)."""
        assert outputs.log_probs is not None and outputs.log_sum_sq is not None
        aligned = (outputs.log_probs - outputs.log_sum_sq).detach()
        lengths = inputs["answer_lengths"]
        means = desensitised(aligned, lengths, lengths, None) / lengths
        chosen, rejected = means.exp().chunk(2)
        weights = chosen * rejected
        return weights[inputs[FILLER].logical_not()] if FILLER in inputs else weights

    def _measure(self, terms: Terms, outputs: AnswerOutput, inputs: dict[str, Any], loss: torch.Tensor) -> None:
        """TRL's metrics, as sums."""
        metrics = self.metrics["train" if self.model.training else "eval"]
        if self.model.training:
            self.seen_tokens += inputs["num_tokens"]
        chosen, rejected = self.rewards(terms)
        metrics.add("loss", loss.expand(len(chosen)))
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
        counts = torch.repeat_interleave(_ones(lengths, self._kept(inputs, 2)), lengths)
        first = int(inputs["chosen_total"])
        assert outputs.entropy is not None and outputs.mean_logits is not None and outputs.is_top1 is not None
        metrics.add("entropy", outputs.entropy, counts)
        metrics.add("logits/chosen", outputs.mean_logits[:first], counts[:first])
        metrics.add("logits/rejected", outputs.mean_logits[first:], counts[first:])
        metrics.add("mean_token_accuracy", outputs.is_top1[:first].float(), counts[:first])

    @staticmethod
    def _kept(inputs: dict[str, Any], times: int) -> Any:
        return inputs[FILLER].logical_not().repeat(times) if FILLER in inputs else slice(None)

    def rewards(self, terms: Terms) -> tuple[torch.Tensor, torch.Tensor]:
        """Implicit rewards of both answers, (B,): what the losses compare, times beta."""
        beta = self.args.beta
        kinds = [LOSSES[name] for name in self.args.loss_type if name != "sft"]
        if any(kind.average for kind in kinds) and not any(kind.reference for kind in kinds):
            chosen, rejected = terms.averages
            return beta * chosen.detach(), beta * rejected.detach()
        return beta * terms.chosen_ratios.detach(), beta * terms.rejected_ratios.detach()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As `Trainer.log`, with the metrics since the last log beside the training loss."""
        if "loss" in logs:
            found = self.metrics["train"].read(self.accelerator)
            found.pop("loss", None)  # the Trainer's own, over accumulated batches
            logs |= found
            logs["num_tokens"] = float(self.accelerator.reduce(self.seen_tokens.double(), "sum"))
        super().log(logs, *args, **kwargs)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """As the Trainer's; loss and metrics are means over all pairs of all ranks, each counted once."""
        self.metrics["eval"] = PairMetrics()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        found = self.metrics["eval"].read(self.accelerator)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in found.items()})
        return output

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> Any:
        """The loss alone: logits of an evaluation are kept nowhere."""
        self._prove_apart(model)
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        return loss.detach(), None, None

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """As the Trainer's, with as many records as fill every rank's last batch; those are marked, and not counted."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        return super().get_eval_dataloader(marked(dataset, self.args.eval_batch_size * self.args.world_size))

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = [*COLUMNS, FILLER]
        super()._set_signature_columns_if_needed()


def settings_of(args: DPOArguments) -> Settings:
    """The numbers of the losses."""
    return Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__})


def marked(dataset: Dataset, multiple: int) -> Dataset:
    """The dataset with a column that marks copies of its first record, as many as lack to a multiple of `multiple`."""
    missing = -len(dataset) % multiple
    whole = concatenate_datasets([dataset, dataset.select([0] * missing)]) if missing else dataset
    return whole.add_column(FILLER, [False] * len(dataset) + [True] * missing)


def _ones(lengths: torch.Tensor, kept: Any) -> torch.Tensor:
    counts = torch.zeros(len(lengths), device=lengths.device)
    counts[kept] = 1
    return counts
