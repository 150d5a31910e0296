"""Real tokens a second, and the share of the device's arithmetic that training reaches (MFU), in every log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from hftune.constants import FILLER, IGNORE_INDEX
from hftune.distributed import zero
from hftune.models.structure import attention_layers, expert_count, experts_per_token, head_size
from hftune.preflight.devices import known_gpu
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run, plain_model
from hftune.trainers.features.sums import MetricSums
from hftune.trainers.progress import peak_memory

COUNTED = ("tokens", "squares", "labels", "of_data")
"""All tokens, squared lengths of documents, labels, and tokens that do not only fill up a batch."""


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of training: forward, to the inputs and, where trained, to the weights.

    Recomputed activations do not count (arXiv:2204.02311, appendix B).

    Args:
        per_token: 2 for each weight and pass (arXiv:2001.08361, section 2.1); of experts those that a token is sent to.
        per_label: Of the head, which is applied to what predicts a label alone.
        per_square: For each squared length of a document: causal attention, both ways.
    """

    per_token: float
    per_label: float
    per_square: float

    @classmethod
    def of(cls, model: Any) -> Cost:
        """Of a model, with an adapter around it or not."""
        plain: PreTrainedModel = plain_model(model)
        experts, chosen = expert_count(plain.config), experts_per_token(plain.config)
        head = plain.get_output_embeddings()
        of_head = {id(one) for one in head.parameters()} if head is not None else set()
        embeddings = {id(one) for one in plain.get_input_embeddings().parameters()} - of_head
        total = {True: 0.0, False: 0.0}  # of the head, and of all else
        for parameter in model.parameters():
            if id(parameter) in embeddings or len(getattr(parameter, "ds_shape", parameter.shape)) < 2:
                continue
            stacked = len(getattr(parameter, "ds_shape", parameter.shape)) == 3
            share = chosen / experts if experts and stacked else 1.0
            passes = 6 if parameter.requires_grad else 4
            total[id(parameter) in of_head] += share * zero.full_numel(parameter) * passes
        width = sum(head_size(layer) * layer.num_attention_heads for layer in attention_layers(plain.config))
        return cls(total[False], total[True], 6.0 * width)

    def of_batches(self, tokens: float, squares: float, labels: float) -> float:
        """Of all tokens, the squared lengths of their documents, and all labels."""
        return self.per_token * tokens + self.per_square * squares + self.per_label * labels


def lengths_of(inputs: Mapping[str, Any]) -> torch.Tensor | None:
    """Tokens of each document of a batch, padding left out; None where it is of no kind known here."""
    borders, mask, ids = (inputs.get(name) for name in ("cu_seq_lens_q", "attention_mask", "input_ids"))
    if isinstance(borders, torch.Tensor):
        return borders.diff()
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        return mask.sum(dim=1)
    if isinstance(ids, torch.Tensor) and ids.dim() == 2:
        return torch.full((len(ids),), ids.shape[1], device=ids.device)
    return None


def tokens_of(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Tokens of a batch that are neither padding nor of rows that only fill it up, a scalar; all those of pairs."""
    mask, ids, filler = inputs.get("attention_mask"), inputs["input_ids"], inputs.get(FILLER)
    read = mask.bool() if isinstance(mask, torch.Tensor) else torch.ones_like(ids, dtype=torch.bool)
    return (read if filler is None or filler.shape != read.shape else read & ~filler).sum()


def _labels_of(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Tokens of a batch that the head predicts, a scalar: labels, or the answers of pairs."""
    if isinstance(ids := inputs.get("answer_ids"), torch.Tensor):
        return torch.tensor(len(ids))
    if isinstance(shifted := inputs.get("shift_labels"), torch.Tensor):
        return (shifted != IGNORE_INDEX).sum()
    labels = inputs.get("labels")
    # Nothing predicts the first token of a row.
    return (labels[..., 1:] != IGNORE_INDEX).sum() if isinstance(labels, torch.Tensor) else torch.tensor(0)


class Speed(Feature):
    """Logs `tokens_per_second`, over all processes and without evaluation and saving, and `mfu`.

    `mfu` is there where the device's data sheet is known. At the end: `train_tokens_per_second` over all of training,
    and `train_peak_memory_gb`.

    Attributes:
        tokens: Of the data that were trained on up to the last log, over all processes and interruptions.
    """

    def __init__(self) -> None:
        self.tokens = self._labels = 0.0
        self._sums: MetricSums | None = None
        self._began: float | None = None  # when the first batch since the last log came
        self._all_tokens = 0.0
        self._cost: Cost | None = None
        self._evaluates_since = 0.0

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """What a token costs is counted before processes share matrices or experts."""
        self._cost = Cost.of(run.model)

    def before_step(self, run: Run, model: Any, inputs: Inputs) -> None:
        """Count the batch; of one that this does not know (prompts of RL), nothing. Waits for no device."""
        sums = self._sums = self._sums or MetricSums(run.args.device, COUNTED)
        lengths = lengths_of(inputs) if isinstance(inputs, Mapping) else None
        if lengths is not None:
            self._began = self._began or time.perf_counter()
            counted = (lengths, lengths.double().square(), _labels_of(inputs), tokens_of(inputs))
            for name, values in zip(COUNTED, counted, strict=True):
                sums.add(name, values)

    def before_evaluate(self, run: Run) -> None:
        """What follows is no training."""
        self._evaluates_since = time.perf_counter()

    def after_evaluate(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """Leave the evaluation out."""
        if self._began is not None:
            self._began += time.perf_counter() - self._evaluates_since

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """The speed, next to the training loss."""
        if self._sums is None:
            return
        args = run.args
        if "loss" in logs and self._began is not None:
            totals = self._totals(run)
            self._sums = MetricSums(args.device, COUNTED)
            seconds, self._began = time.perf_counter() - self._began, None
            self._all_tokens += totals["tokens"]
            self.tokens += totals["of_data"]
            self._labels += totals["labels"]
            logs["tokens_per_second"] = round(totals["tokens"] / seconds, 1)
            tflops = known_gpu().tflops if args.device.type == "cuda" else None
            if tflops is not None and self._cost is not None:
                work = self._cost.of_batches(totals["tokens"], totals["squares"], totals["labels"])
                logs["mfu"] = round(work / seconds / (tflops * 1e12 * args.world_size), 4)
        if "train_runtime" in logs:
            logs["train_peak_memory_gb"] = round(peak_memory() / 1e9, 3)
            if self._all_tokens and logs["train_runtime"]:
                logs["train_tokens_per_second"] = round(self._all_tokens / logs["train_runtime"], 1)

    def trained_tokens(self, run: Run) -> int:
        """Labels that were trained, over all processes and interruptions; every rank must ask."""
        return round(self._labels + self._totals(run)["labels"])

    def state(self, run: Run) -> dict[str, Any]:
        """With what is not logged yet."""
        totals = self._totals(run)
        return {"tokens_read": self.tokens + totals["of_data"], "labels": self._labels + totals["labels"]}

    def load_state(self, run: Run, saved: dict[str, Any]) -> None:
        """Go on with that."""
        self.tokens, self._labels = saved.get("tokens_read", 0.0), saved.get("labels", 0.0)

    def _totals(self, run: Run) -> dict[str, float]:
        """What all processes have counted since the last log."""
        sums = self._sums or MetricSums(run.args.device, COUNTED)
        # Processes that share matrices have counted the same; of rows that are shared each its own tokens and labels,
        # and all lengths.
        alike = int(run.args.world_size // run.args.data_parallel_size)
        copies = {"tokens": alike, "squares": alike}
        found = sums.totals(run.accelerator)
        return {name: total / copies.get(name, run.args.tensor_parallel_size) for name, (total, _) in found.items()}
