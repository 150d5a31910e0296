"""The loss of PT and SFT: computed where labels are and nowhere else, without logits in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hftune.constants import FILLER, IGNORE_INDEX, LABEL_COUNT, TEACHER_ROWS
from hftune.data.batches.collators import shifted
from hftune.distributed import ranks
from hftune.models.kernels.answer_head import AnswerOutput, add_answer_head
from hftune.models.vocabulary import vocabulary_rows
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run, plain_model, say_if_nothing_learnt

OF_LABELS = ("labels", "shift_labels", "loss_weights", TEACHER_ROWS, FILLER, LABEL_COUNT)
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


class AnswerLoss(Feature):
    """For trainers whose loss is the mean negative log-likelihood of labelled tokens.

    The model is called with the places of the labels (`models/kernels/answer_head.py`). A batch may have `loss_weights`
    (batch, length), a factor of each label. What needs logits (label smoothing, a loss of one's own) keeps to the
    trainer's own way.

    Args:
        measures_tokens: Whether entropy and accuracy of the trained tokens are wanted.

    Attributes:
        sums: Of training ("train") and evaluation ("eval").
    """

    def __init__(self, *, measures_tokens: bool) -> None:
        self.measures_tokens = measures_tokens
        self.sums: dict[str, TokenSums] = {}

    def on_built(self, run: Run) -> None:
        """Have the model take the places of labels."""
        add_answer_head(plain_model(run.model))
        self.sums = {mode: TokenSums(run.args.device) for mode in ("train", "eval")}

    def make_loss(self, run: Run, model: Any, inputs: Inputs, counted: Any) -> tuple[torch.Tensor, Any] | None:
        """A float32 scalar: sum of weights times -log p, over `counted`, or over the labels of the batch."""
        if not finds_answers(run, inputs):
            return None
        # One row of all tokens: the head is applied at the labels only, wherever they lie in the batch.
        labels = next_tokens(inputs).reshape(-1)
        scored, known = labels != IGNORE_INDEX, inputs.get(LABEL_COUNT)
        # Without their number the host waits for the device, which has the micro batch before this one to compute.
        at = (scored.nonzero() if known is None else torch.nonzero_static(scored, size=known)).squeeze(1)
        # A batch without labels has the loss 0, not 0 / 0; its gradient is 0 as well.
        count = max(len(at), 1) if counted is None else counted
        # Weights and the division go into factors of single tokens, so that the head can sum chunk by chunk.
        factors = torch.ones(at.shape, device=at.device) / count
        if run.args.average_tokens_across_devices and counted is not None:
            # The count is that of all processes, and gradients are averaged over them.
            factors = factors * (run.accelerator.num_processes // run.get_tp_size())
        if "loss_weights" in inputs:
            factors = factors * next_values(inputs, "loss_weights", 0.0).reshape(-1)[at]
        others = {name: value for name, value in inputs.items() if name not in OF_LABELS}
        outputs: AnswerOutput = model(
            **others,
            answer_at=at,
            answer_ids=labels[at],
            answer_factors=factors,
            answer_dft=getattr(run.args, "loss_type", None) == "dft",
            # Entropy and accuracy need a second pass over the vocabulary: only where somebody reads them.
            answer_detail=1 if self.measures_tokens or not run.model.training else 0,
            **self.more(run, inputs, at),
        )
        if self.measures_tokens:
            self.sums["train" if run.model.training else "eval"].add(outputs, tokens_of(inputs))
        assert outputs.loss is not None, "factors were given"
        return outputs.loss, outputs

    def more(self, run: Run, inputs: Inputs, at: torch.Tensor) -> dict[str, Any]:
        """Further arguments of the model's answer head.

        Args:
            inputs: The batch.
            at: (tokens,), places of the predictions of labels in the flattened batch.
        """
        return {}

    def make_prediction(self, run: Run, model: Any, inputs: Inputs, loss_only: bool) -> tuple[Any, ...] | None:
        """In place of logits the predicted tokens, as far as is known: -1 for a wrong one."""
        # With labels smoothed, or a loss of the user's own, the Trainer must see logits.
        if loss_only or not finds_answers(run, inputs):
            return None
        inputs = run._prepare_inputs(inputs)
        with torch.no_grad(), run.compute_loss_context_manager():
            loss, outputs = run.compute_loss(model, inputs, return_outputs=True)
        labels = next_tokens(inputs)
        predicted = torch.full_like(labels, -1)
        scored = labels != IGNORE_INDEX
        predicted[scored] = torch.where(outputs.is_top1, labels[scored], -1)
        # Metrics compare what is predicted at a place with the label at the next one.
        if "shift_labels" not in inputs:
            return loss.detach(), predicted, inputs["labels"]
        pad = torch.nn.functional.pad
        return loss.detach(), pad(predicted, (0, 1), value=-1), pad(labels, (1, 0), value=IGNORE_INDEX)

    def after_train(self, run: Run) -> None:
        """Whether the model knows more than that there are tokens."""
        say_if_nothing_learnt(run, math.log(vocabulary_rows(plain_model(run.model))))

    def counts(self, run: Run) -> dict[str, Any]:
        """Sums since the last log, over all ranks: what `resume_counts` takes."""
        sums = self.sums["train"]
        own = torch.zeros(4, dtype=torch.float64, device=sums.device) if sums.sums is None else sums.sums.clone()
        # Added up over ranks, since a resumed run may have others; one rank takes the sum again.
        whole = run.accelerator.reduce(own, "sum").tolist()
        return {"sums": whole if any(whole) else None}

    def resume_counts(self, run: Run, saved: dict[str, Any]) -> None:
        """Sums over all processes are given to one of them."""
        if saved["sums"] is not None:
            sums = self.sums["train"]
            whole = torch.tensor(saved["sums"], dtype=torch.float64, device=sums.device)
            sums.sums = whole if ranks.is_main() else torch.zeros_like(whole)


def finds_answers(run: Run, inputs: Inputs) -> bool:
    """Whether this batch's loss can be had from the places of its labels."""
    return (
        "labels" in inputs
        and run.label_smoother is None
        and run.compute_loss_func is None
        # Prompt learning puts virtual tokens before the labels, so that places in the input are others than in the
        # labels.
        and not getattr(getattr(run.model, "active_peft_config", None), "is_prompt_learning", False)
    )


def next_tokens(inputs: dict[str, Any]) -> torch.Tensor:
    """(batch, tokens): the label that is to be predicted at each place."""
    return inputs["shift_labels"] if "shift_labels" in inputs else shifted(inputs["labels"], IGNORE_INDEX)


def next_values(inputs: dict[str, Any], name: str, filler: float) -> torch.Tensor:
    """(batch, tokens): what belongs to the label that is to be predicted at each place."""
    values: torch.Tensor = inputs[name]
    return values if "shift_labels" in inputs else shifted(values, filler)  # slices come shifted like their labels


def tokens_of(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Tokens of a batch that are neither padding nor of rows that only fill it up, a scalar; all those of pairs."""
    mask, ids, filler = inputs.get("attention_mask"), inputs["input_ids"], inputs.get(FILLER)
    read = mask.bool() if isinstance(mask, torch.Tensor) else torch.ones_like(ids, dtype=torch.bool)
    return (read if filler is None or filler.shape != read.shape else read & ~filler).sum()
