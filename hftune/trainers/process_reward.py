"""Process reward model: each step of an answer is right or wrong (arXiv:2305.20050)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, Trainer
from trl.trainer import disable_dropout_in_model

from hftune.arguments.preference import RMArguments
from hftune.constants import IGNORE_INDEX
from hftune.data.pair_collators import StepCollator
from hftune.data.splits import Splits
from hftune.losses.reward_model import step_loss
from hftune.trainers.features.run import Inputs
from hftune.trainers.reward import RewardTrainer, ScoredTrainer
from hftune.trainers.rewards.held_out import step_figures, step_report


class ProcessRewardTrainer(ScoredTrainer, Trainer):
    """`transformers.Trainer` on answers in steps; TRL (1.16) has none.

    The loss is a mean over all steps of a global batch, however they are spread over answers, ranks and accumulation.
    """

    extra_columns = ("ends", "step_labels", "index")

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: RMArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        **kwargs: Any,
    ) -> None:
        if args.disable_dropout:
            disable_dropout_in_model(model)
        collator = StepCollator(tokenizer.pad_token_id, flat=args.flat_batches)
        super().__init__(model, args, tokenizer, data, collator, **kwargs)

    def stage_loss(self, model: Any, inputs: Inputs, return_outputs: bool, num_items_in_batch: Any) -> Any:
        """The loss of a batch of answers; with `return_outputs` also the log-odds that each step is right, (steps,)."""
        labels = inputs.pop("labels")
        logits = self.step_logits(model, inputs)
        losses = step_loss(logits, labels, label_smoothing=self.args.label_smoothing)
        if num_items_in_batch is None:
            loss = losses.mean()
        else:
            # A mean over the steps of all micro batches: answers have unlike many.
            loss = losses.sum() / num_items_in_batch
            if self.args.average_tokens_across_devices:
                loss = loss * self.accelerator.num_processes  # which the mean over ranks divides by again
        return (loss, logits[:, 1].float() - logits[:, 0].float()) if return_outputs else loss

    def step_logits(self, model: Any, inputs: Inputs) -> torch.Tensor:
        """Logits of the classes wrong and right of each step in a batch, (steps, 2)."""
        ends = inputs.pop("ends")
        for name in ("steps", "index"):
            inputs.pop(name, None)
        logits: torch.Tensor = model(**{**inputs, "use_cache": False}).logits
        return logits.flatten(0, 1)[ends]

    def stage_prediction(
        self, model: Any, inputs: Inputs, loss_only: bool, ignore_keys: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Loss; log-odds of the steps, (answers, steps), padded; and the number of each answer before its labels."""
        inputs = self._prepare_inputs(inputs)
        index, labels, sizes = inputs["index"], inputs["labels"], inputs["steps"].tolist()
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, odds = self.compute_loss(model, inputs, return_outputs=True)
        # One number before the odds, so that both arrays have rows of the same length.
        said = [torch.cat([torch.ones_like(part[:1]), part]) for part in odds.split(sizes)]
        wanted = [torch.cat([n[None], part.double()]) for n, part in zip(index, labels.split(sizes), strict=True)]
        return loss, _rows(said), _rows(wanted)

    def score_figures(self, prediction: EvalPrediction) -> dict[str, float]:
        """Figures over all held-out answers; the report of them is kept for the manifest."""
        numbered_labels, odds = np.asarray(prediction.label_ids), np.asarray(prediction.predictions)
        answers: Dataset = self.scored[numbered_labels[:, 0].astype(int)]
        # From the records: what was gathered is padded, and rounded to the model's dtype.
        labels = [np.asarray(each, dtype=np.float32) for each in answers["step_labels"]]
        found = [row[1 : 1 + len(each)] for row, each in zip(odds, labels, strict=True)]
        with np.errstate(over="ignore"):
            right = [1 / (1 + np.exp(-each.astype(np.float64))) for each in found]
        self.report = step_report(right, labels, answers["source"])
        self.all_scores = np.array([each.min() for each in right])
        flat = torch.tensor(np.concatenate(found)).float()
        logits = torch.stack([torch.zeros_like(flat), flat], dim=1)
        losses = step_loss(logits, torch.tensor(np.concatenate(labels)), label_smoothing=self.args.label_smoothing)
        self.whole_loss = float(losses.double().mean())
        return step_figures(right, labels)


def _rows(parts: list[torch.Tensor]) -> torch.Tensor:
    """(answers, longest), filled up as the Trainer fills what it gathers."""
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=IGNORE_INDEX)


def reward_trainer(
    model: PreTrainedModel | PeftModel,
    args: RMArguments,
    tokenizer: PreTrainedTokenizerBase,
    data: Splits,
    **kwargs: Any,
) -> RewardTrainer | ProcessRewardTrainer:
    """The trainer of `--reward_kind`."""
    kind = ProcessRewardTrainer if args.reward_kind == "process" else RewardTrainer
    return kind(model, args, tokenizer, data, **kwargs)
