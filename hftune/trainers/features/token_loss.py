"""The loss of PT and SFT: computed where labels are and nowhere else, without logits in the backward pass.

And of held-out data per token: the same number however the data are batched, packed or spread over ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset, concatenate_datasets

from hftune.constants import FILLER, IGNORE_INDEX, LABEL_COUNT, TEACHER_ROWS
from hftune.data.collators import shifted
from hftune.models.kernels.heads import AnswerOutput, add_answer_head
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run, plain_model
from hftune.trainers.features.speed import tokens_of
from hftune.trainers.features.sums import MetricSums

OF_LABELS = ("labels", "shift_labels", "loss_weights", TEACHER_ROWS, FILLER, LABEL_COUNT)
"""What of a batch does not go to the model."""

MEANS, READ = ("entropy", "mean_token_accuracy"), "read"


class TokenLoss(Feature):
    """The mean negative log-likelihood of labelled tokens, in training and of held-out data.

    The model is called with the places of the labels (`models/kernels/heads.py`). A batch may have `loss_weights`
    (batch, length), a factor of each label. What needs logits (label smoothing, a loss of one's own) keeps to the
    trainer's own way.

    transformers averages the means of held-out batches, which is another number for each way to form batches, and
    repeats records so that every rank has a full last batch. Here sums are added up; repeated records train nothing.

    Args:
        measures_tokens: Whether entropy and accuracy of the trained tokens are wanted, as TRL's trainers log them. Else
            held-out records alone are measured, `token_accuracy`.
        device: Where sums are kept.

    Attributes:
        sums: Of training ("train") and evaluation ("eval"): entropy and hits of tokens, and all tokens read.
        evaluates: Whether held-out batches are being measured.
    """

    def __init__(self, *, measures_tokens: bool, device: torch.device) -> None:
        self.measures_tokens = measures_tokens
        self.sums = {mode: MetricSums(device, (*MEANS, READ)) for mode in ("train", "eval")}
        self.evaluates = False
        self._held_out = MetricSums(device, ("loss",))  # the mean loss of batches, by their tokens

    def on_built(self, run: Run) -> None:
        """Have the model take the places of labels."""
        add_answer_head(plain_model(run.model))

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
        if outputs.is_top1 is not None:
            assert outputs.entropy is not None
            sums = self.sums["train" if run.model.training else "eval"]
            for name, values in zip((*MEANS, READ), (outputs.entropy, outputs.is_top1, tokens_of(inputs)), strict=True):
                sums.add(name, values)
        assert outputs.loss is not None, "factors were given"
        return outputs.loss, outputs

    def more(self, run: Run, inputs: Inputs, at: torch.Tensor) -> dict[str, Any]:
        """Further arguments of the model's answer head.

        Args:
            inputs: The batch.
            at: (tokens,), places of the predictions of labels in the flattened batch.
        """
        return {}

    def begin_loop(self, run: Run) -> None:
        """Begin to add up."""
        self.evaluates = True

    def end_loop(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """The loss over all tokens."""
        self.evaluates = False
        (losses, tokens) = self._held_out.take(run.accelerator)["loss"]
        # The Trainer's own alone: metrics of the user's may end in the same word.
        if f"{prefix}_loss" in metrics and tokens:
            metrics[f"{prefix}_loss"] = losses / tokens
        if not self.measures_tokens:
            hits, measured = self.sums["eval"].take(run.accelerator)["mean_token_accuracy"]
            metrics |= {f"{prefix}_token_accuracy": hits / measured} if measured else {}

    def add_batch(self, inputs: Inputs, result: tuple[Any, ...]) -> tuple[Any, ...]:
        """Add up loss and labels of a held-out batch; its result with a loss that is a number."""
        # The first label of a row has no token before it.
        predicted = inputs["shift_labels"] if "shift_labels" in inputs else inputs["labels"][..., 1:]
        loss, tokens = result[0], int((predicted != IGNORE_INDEX).sum())
        if not tokens:
            # 0 / 0 of a batch of filling; the Trainer takes the mean of all of these before we replace it.
            return (torch.zeros_like(loss), *result[1:])
        self._held_out.add("loss", loss, torch.full_like(loss, tokens, dtype=torch.float64))
        return result

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """Means over tokens, put where TRL's `SFTTrainer.log` (1.16) looks for what it logs; every rank."""
        if not self.measures_tokens:
            return
        mode = "train" if run.model.training else "eval"
        if not self.sums[mode].empty:
            totals = self.sums[mode].take(run.accelerator)
            if mode == "train":
                run._total_train_tokens += round(totals[READ][0]) // run._tp_size
            measured = {name: totals[name][0] / max(totals[name][1], 1.0) for name in MEANS}
            measured["num_tokens"] = run._total_train_tokens
            run._metrics[mode] |= {name: [value] for name, value in measured.items()}

    def state(self, run: Run) -> dict[str, Any]:
        """Sums since the last log, over all ranks: what `load_state` takes."""
        return {"sums": self.sums["train"].totals(run.accelerator)}

    def load_state(self, run: Run, saved: dict[str, Any]) -> None:
        """Sums over all processes are given to one of them."""
        self.sums["train"].restore(saved.get("sums", {}))


def finds_answers(run: Run, inputs: Inputs) -> bool:
    """Whether this batch's loss can be had from the places of its labels."""
    return (
        "labels" in inputs
        and run.label_smoother is None
        and run.compute_loss_func is None
        # Metrics of one's own read logits.
        and (run.model.training or run.compute_metrics is None)
    )


def next_tokens(inputs: dict[str, Any]) -> torch.Tensor:
    """(batch, tokens): the label that is to be predicted at each place."""
    return inputs["shift_labels"] if "shift_labels" in inputs else shifted(inputs["labels"], IGNORE_INDEX)


def next_values(inputs: dict[str, Any], name: str, filler: float) -> torch.Tensor:
    """(batch, tokens): what belongs to the label that is to be predicted at each place."""
    values: torch.Tensor = inputs[name]
    return values if "shift_labels" in inputs else shifted(values, filler)  # slices come shifted like their labels


def padded_with_ignored(dataset: Dataset, multiple: int) -> Dataset:
    """The dataset, with copies of its first record, labels masked, up to a multiple of `multiple` records."""
    missing = -len(dataset) % multiple
    if not missing or not len(dataset):
        return dataset
    first = dataset[0]
    # A real record, since a collator and a model may refuse an empty one.
    masked = {**first, "labels": [IGNORE_INDEX] * len(first["labels"])}
    columns = {name: [masked[name]] * missing for name in dataset.column_names}
    return concatenate_datasets([dataset, Dataset.from_dict(columns, features=dataset.features)])
