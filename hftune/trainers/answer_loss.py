"""The loss of PT and SFT: computed where labels are and nowhere else, without logits in the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel

from hftune.constants import IGNORE_INDEX
from hftune.models.answer_head import AnswerOutput, add_answer_head


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
    (batch, length), a factor of each label. What needs logits (label smoothing, a loss or metrics of one's own) and
    sequence parallelism keep to the trainer's own way.
    """

    measures_tokens = False
    """Whether entropy and accuracy of the trained tokens are wanted."""

    def __init__(self: Any, *positional: Any, **kwargs: Any) -> None:
        super().__init__(*positional, **kwargs)
        plain = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        add_answer_head(plain)
        self.token_sums = {mode: TokenSums(self.args.device) for mode in ("train", "eval")}

    def compute_loss(
        self: Any, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """A float32 scalar: sum of weights times -log p, over `num_items_in_batch`, or over the labels of the batch."""
        if return_outputs or not self._finds_answers(inputs):
            parent = super().compute_loss  # type: ignore[misc]
            return parent(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        inputs = dict(inputs)
        at, ids = answers_of(inputs.pop("labels"))
        weights = inputs.pop("loss_weights", None)
        count = max(len(ids), 1) if num_items_in_batch is None else num_items_in_batch
        scale = self._processes_averaged() if num_items_in_batch is not None else 1
        factors = torch.full(ids.shape, float(scale), device=ids.device) / count
        if weights is not None:
            factors = factors * weights[:, 1:].reshape(-1)[_without_first(at, weights.shape[1])]
        dft = getattr(self.args, "loss_type", None) == "dft"
        outputs: AnswerOutput = model(
            **inputs,
            answer_at=at,
            answer_ids=ids,
            answer_factors=factors,
            answer_dft=dft,
            answer_detail=1 if self.measures_tokens else 0,
        )
        if self.measures_tokens:
            mode = "train" if self.model.training else "eval"
            self.token_sums[mode].add(outputs, _tokens_of(inputs))
        return outputs.loss

    def _finds_answers(self: Any, inputs: dict[str, Any]) -> bool:
        """Whether this batch's loss can be had from the places of its labels."""
        plan = getattr(self.accelerator, "parallelism_config", None)
        return (
            "labels" in inputs
            and self.label_smoother is None
            and self.compute_loss_func is None
            and not (plan is not None and plan.sp_enabled)
            and not getattr(getattr(self.model, "active_peft_config", None), "is_prompt_learning", False)
        )

    def _processes_averaged(self: Any) -> int:
        """Over how many processes gradients are averaged, where the count of tokens is that of all of them."""
        if not self.args.average_tokens_across_devices:
            return 1
        return int(self.accelerator.num_processes) // int(getattr(self.args, "tensor_parallel_size", 1))


def answers_of(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Places (in the flattened input) whose hidden state predicts a label, and those labels, (labels,) each.

    Args:
        labels: (batch, length); IGNORE_INDEX where nothing is trained. Position t predicts label t + 1.
    """
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX).reshape(-1)
    at = (shifted != IGNORE_INDEX).nonzero().squeeze(1)
    return at, shifted[at]


def _without_first(at: torch.Tensor, length: int) -> torch.Tensor:
    """Places in rows of `length` as places in rows of `length - 1`, of which none is the last."""
    return at - at // length


def _tokens_of(inputs: dict[str, Any]) -> torch.Tensor:
    """Tokens of a batch that are no padding, a scalar."""
    mask = inputs.get("attention_mask")
    ids = inputs["input_ids"]
    return mask.sum() if isinstance(mask, torch.Tensor) else torch.full((), ids.numel(), device=ids.device)
