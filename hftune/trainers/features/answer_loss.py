"""The loss of PT and SFT: computed where labels are and nowhere else, without logits in the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hftune.constants import IGNORE_INDEX
from hftune.data.slices import shifted
from hftune.models.answer_head import AnswerOutput, add_answer_head
from hftune.trainers.features.tiling import plain_model

OF_LABELS = ("labels", "shift_labels", "loss_weights")
"""What of a batch does not go to the model."""


@dataclass
class TokenSums:
    """Sums over tokens, kept where the model is: reading them waits for the device, adding to them does not."""

    device: torch.device
    sums: torch.Tensor | None = None

    def add(self, outputs: AnswerOutput, read: torch.Tensor) -> None:
        """A micro batch; `read` is the number of its tokens, trained or not."""
        assert outputs.entropy is not None and outputs.is_top1 is not None
        trained = torch.full((), len(outputs.entropy), dtype=torch.float64, device=self.device)
        parts = [outputs.entropy.double().sum(), outputs.is_top1.double().sum(), trained, read.double()]
        more = torch.stack([part.detach() for part in parts])
        self.sums = more if self.sums is None else self.sums + more

    def take(self, accelerator: Any) -> tuple[dict[str, float], int]:
        """Means over the trained tokens of all processes since the last time, and all tokens; every rank must ask."""
        own = torch.zeros(4, dtype=torch.float64, device=self.device) if self.sums is None else self.sums
        self.sums = None
        entropy, hits, trained, read = accelerator.reduce(own, "sum").tolist()
        count = max(trained, 1.0)
        return {"entropy": entropy / count, "mean_token_accuracy": hits / count}, round(read)


class AnswerLossMixin:
    """Put right before a `Trainer` whose loss is the mean negative log-likelihood of labelled tokens.

    The model is called with the places of the labels (`models/answer_head.py`). A batch may have `loss_weights`
    (batch, length), a factor of each label. What needs logits (label smoothing, a loss of one's own) keeps to the
    trainer's own way.
    """

    measures_tokens = False
    """Whether entropy and accuracy of the trained tokens are wanted."""

    def __init__(self: Any, *positional: Any, **kwargs: Any) -> None:
        super().__init__(*positional, **kwargs)
        add_answer_head(plain_model(self.model))
        self.token_sums = {mode: TokenSums(self.args.device) for mode in ("train", "eval")}

    def compute_loss(
        self: Any, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """A float32 scalar: sum of weights times -log p, over `num_items_in_batch`, or over the labels of the batch."""
        if not self._finds_answers(inputs):
            parent = super().compute_loss  # type: ignore[misc]
            return parent(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        labels = next_tokens(inputs).reshape(-1)
        at = (labels != IGNORE_INDEX).nonzero().squeeze(1)
        count = max(len(at), 1) if num_items_in_batch is None else num_items_in_batch
        factors = torch.ones(at.shape, device=at.device) / count
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            # The count is that of all processes, and gradients are averaged over them.
            factors = factors * (self.accelerator.num_processes // self.get_tp_size())
        if "loss_weights" in inputs:
            factors = factors * next_values(inputs, "loss_weights", 0.0).reshape(-1)[at]
        others = {name: value for name, value in inputs.items() if name not in OF_LABELS}
        outputs: AnswerOutput = model(
            **others,
            answer_at=at,
            answer_ids=labels[at],
            answer_factors=factors,
            answer_dft=getattr(self.args, "loss_type", None) == "dft",
            answer_detail=1 if self.measures_tokens or not self.model.training else 0,
        )
        if self.measures_tokens:
            self.token_sums["train" if self.model.training else "eval"].add(outputs, _tokens_of(inputs))
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def prediction_step(
        self: Any, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> Any:
        """As the Trainer's; in place of logits the tokens foretold, as far as is known: -1 for a wrong one."""
        if prediction_loss_only or not self._finds_answers(inputs):
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)  # type: ignore[misc]
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        labels = next_tokens(inputs)
        foretold = torch.full_like(labels, -1)
        scored = labels != IGNORE_INDEX
        foretold[scored] = torch.where(outputs.is_top1, labels[scored], -1)
        # Metrics compare what is foretold at a place with the label at the next one.
        if "shift_labels" not in inputs:
            return loss.detach(), foretold, inputs["labels"]
        pad = torch.nn.functional.pad
        return loss.detach(), pad(foretold, (0, 1), value=-1), pad(labels, (1, 0), value=IGNORE_INDEX)

    def _finds_answers(self: Any, inputs: dict[str, Any]) -> bool:
        """Whether this batch's loss can be had from the places of its labels."""
        return (
            "labels" in inputs
            and self.label_smoother is None
            and self.compute_loss_func is None
            and not getattr(getattr(self.model, "active_peft_config", None), "is_prompt_learning", False)
        )


def next_tokens(inputs: dict[str, Any]) -> torch.Tensor:
    """(batch, tokens): the label that is to be foretold at each place."""
    return inputs["shift_labels"] if "shift_labels" in inputs else shifted(inputs["labels"], IGNORE_INDEX)


def next_values(inputs: dict[str, Any], name: str, filler: float) -> torch.Tensor:
    """(batch, tokens): what belongs to the label that is to be foretold at each place."""
    values: torch.Tensor = inputs[name]
    return values if "shift_labels" in inputs else shifted(values, filler)  # slices come shifted like their labels


def _tokens_of(inputs: dict[str, Any]) -> torch.Tensor:
    """Tokens of a batch that are no padding, a scalar."""
    mask = inputs.get("attention_mask")
    ids = inputs["input_ids"]
    return mask.sum() if isinstance(mask, torch.Tensor) else torch.full((), ids.numel(), device=ids.device)
