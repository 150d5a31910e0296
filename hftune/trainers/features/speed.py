"""Real tokens a second, and the share of the device's arithmetic that training reaches (MFU), in every log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from hftune.constants import IGNORE_INDEX
from hftune.distributed import zero
from hftune.models.experts import expert_count, experts_per_token
from hftune.models.layer_values import attention_layers, head_size
from hftune.preflight.devices import known_gpu
from hftune.trainers.features.answer_loss import tokens_of
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run, plain_model
from hftune.trainers.progress import peak_memory


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


class Meter:
    """What went through the model since it was last read. Adding waits for no device."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)
        self.all_tokens = 0.0
        self.began: float | None = None

    def add(self, inputs: Any) -> None:
        """A micro batch; of one that this does not know (prompts of RL), nothing."""
        lengths = lengths_of(inputs) if isinstance(inputs, Mapping) else None
        if lengths is not None:
            self.began = self.began or time.perf_counter()
            lengths = lengths.double()
            # A batch of a stream is on the CPU until the Trainer's own step.
            counts = [_labels_of(inputs).to(lengths), tokens_of(inputs).to(lengths)]
            sums = torch.stack([lengths.sum(), lengths.square().sum(), *counts])
            self.sums += sums.to(self.sums.device, non_blocking=True)

    def pause(self, seconds: float) -> None:
        """Leave out seconds in which something else was done."""
        if self.began is not None:
            self.began += seconds

    def take(self, accelerator: Any) -> tuple[tuple[float, float, float], float, float]:
        """Tokens, squared lengths and labels of all processes, tokens of the data alone, and seconds.

        Every rank must ask, with some counted. What only fills up a batch is read, and is not of the data.
        """
        assert self.began is not None
        tokens, squares, labels, of_data = accelerator.reduce(self.sums, "sum").tolist()
        seconds = time.perf_counter() - self.began
        self.sums, self.began = torch.zeros_like(self.sums), None
        self.all_tokens += tokens
        return (tokens, squares, labels), of_data, seconds


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


def _labels_of(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Tokens of a batch that the head predicts, a scalar: labels, or the answers of pairs."""
    if isinstance(ids := inputs.get("answer_ids"), torch.Tensor):
        return torch.tensor(len(ids))
    labels = inputs.get("shift_labels", inputs.get("labels"))
    return (labels != IGNORE_INDEX).sum() if isinstance(labels, torch.Tensor) else torch.tensor(0)


class Speed(Feature):
    """Logs `tokens_per_second`, over all processes and without evaluation and saving, and `mfu`.

    `mfu` is there where the device's data sheet is known. At the end: `train_tokens_per_second` over all of training,
    and `train_peak_memory_gb`.

    Attributes:
        tokens: Of the data that were trained on up to the last log, over all processes and interruptions.
    """

    def __init__(self) -> None:
        self.tokens = 0.0
        self._meter: Meter | None = None
        self._cost: Cost | None = None
        self._evaluates_since = 0.0

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """What a token costs is counted before processes share matrices or experts."""
        self._cost = Cost.of(run.model)

    def before_step(self, run: Run, model: Any, inputs: Inputs) -> None:
        """Count the batch."""
        if self._meter is None:
            self._meter = Meter(run.args.device)
        self._meter.add(inputs)

    def before_evaluate(self, run: Run) -> None:
        """What follows is no training."""
        self._evaluates_since = time.perf_counter()

    def after_evaluate(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """Leave the evaluation out."""
        if self._meter is not None:
            self._meter.pause(time.perf_counter() - self._evaluates_since)

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """The speed, next to the training loss."""
        if self._meter is None:
            return
        args, copies = run.args, _copies(run)
        if "loss" in logs and self._meter.began is not None:
            counts, of_data, seconds = self._meter.take(run.accelerator)
            self.tokens += of_data / copies
            logs["tokens_per_second"] = round(counts[0] / copies / seconds, 1)
            tflops = known_gpu().tflops if args.device.type == "cuda" else None
            if tflops is not None and self._cost is not None:
                work = self._cost.of_batches(*counts)
                logs["mfu"] = round(work / copies / seconds / (tflops * 1e12 * args.world_size), 4)
        if "train_runtime" in logs:
            logs["train_peak_memory_gb"] = round(peak_memory() / 1e9, 3)
            if self._meter.all_tokens and logs["train_runtime"]:
                logs["train_tokens_per_second"] = round(self._meter.all_tokens / copies / logs["train_runtime"], 1)

    def counts(self, run: Run) -> dict[str, Any]:
        """With what is not logged yet."""
        meter = self._meter or Meter(run.args.device)
        return {"tokens_read": self.tokens + run.accelerator.reduce(meter.sums, "sum")[3].item() / _copies(run)}

    def resume_counts(self, run: Run, saved: dict[str, Any]) -> None:
        """Go on with that; checkpoints of earlier versions have none."""
        self.tokens = saved.get("tokens_read", 0.0)


def _copies(run: Run) -> int:
    """Processes that see the same rows."""
    return int(run.args.world_size // run.args.data_parallel_size)
