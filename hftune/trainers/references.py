"""Which reference a preference trainer uses, and when it is computed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash
from datasets import Dataset
from peft import PeftModel
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from trl.models import prepare_deepspeed

import hftune
from hftune.distributed import phases, ranks
from hftune.logging import notice
from hftune.trainers.reference import (
    COPY,
    RENEWED_NAME,
    Numbers,
    RenewReference,
    adapter_parameters,
    add_copy,
    as_reference,
    data_fingerprint,
    load_parameters,
    save_parameters,
    weights_fingerprint,
    with_reference,
)

NONE, PRECOMPUTED, ADAPTER, MODEL = "none", "precomputed", "adapter", "model"
IDS = ("prompt_ids", "chosen_ids", "rejected_ids", "completion_ids", "kl_ids")


class ReferenceMixin:
    """Put before a preference trainer: the cheapest reference that is exact, or the one asked for.

    none         no loss asks for it
    precomputed  once, before training, cached: each step is one pass through the policy, and no second model is kept
    adapter      a pass in each step with the adapter off, or with a copy of an adapter that goes on
    model        a pass in each step through a second model
    """

    ref_model: Any = None
    reference = NONE
    _engine: Any = None
    _adapter_off = True
    _renewed = False

    def settle_reference(self: Any, ref_model: PreTrainedModel | None, starts_as_base: bool) -> None:
        """Choose, say which it is and why, and make what it needs."""
        if not self.args.needs_reference:
            why = "--reference_free" if self.args.reference_free else f"{' + '.join(self.args.loss_type)} needs none"
            notice(f"reference: none ({why})")
            return
        adapted = isinstance(self.model, PeftModel)
        self._adapter_off = starts_as_base
        self.reference, why = self._choose(adapted, ref_model)
        notice(f"reference: {WORDS[self.reference]} ({why})")
        if self.reference == ADAPTER and (self.args.sync_ref_model or not starts_as_base):
            add_copy(self.model)
        if ref_model is not None:
            self.ref_model = self._placed(ref_model)
        if self.args.sync_ref_model:
            alpha = self.args.ref_model_mixup_alpha
            if adapted and alpha != 1.0:
                notice(f"the reference is renewed by mixing each factor of the adapters, {alpha:g} of the trained one")
            self._renewed = True
            self.add_callback(RenewReference(self._reference_parameters, alpha))

    def _choose(self: Any, adapted: bool, ref_model: Any) -> tuple[str, str]:
        live = MODEL if ref_model is not None else ADAPTER
        asked = self.args.precompute_ref_log_probs
        if asked is not None and not (asked and self.args.sync_ref_model):
            return (PRECOMPUTED if asked else live), "as asked"
        if self.args.sync_ref_model:
            return live, "it is renewed in training"
        if not adapted or ref_model is not None:
            return PRECOMPUTED, "no second model is kept in training"
        if beside := _trained_beside(self.model):
            return PRECOMPUTED, f"{beside} is trained beside the adapter, and cannot be switched off"
        passes = self._passes()
        if passes > 1:
            return PRECOMPUTED, f"{passes:.3g} passes over the records, and cached for the next run"
        return live, "records are seen once"

    def _passes(self: Any) -> float:
        """How often a record is seen in training and evaluation, on average."""
        if self.args.max_steps <= 0:
            return float(self.args.num_train_epochs)
        records = self.args.max_steps * self.get_total_train_batch_size(self.args)
        return float(records / len(self.train_dataset))

    def _placed(self: Any, ref_model: PreTrainedModel) -> Any:
        """A second model, where and as this run computes."""
        if self.is_deepspeed_enabled:
            return prepare_deepspeed(ref_model, self.accelerator)
        return self.accelerator.prepare_model(ref_model, evaluation_mode=True)

    def _reference_parameters(self: Any) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        model = self.accelerator.unwrap_model(self.model)
        if self.ref_model is None:
            yield from adapter_parameters(model)
        else:
            yield from zip(self.accelerator.unwrap_model(self.ref_model).parameters(), model.parameters(), strict=True)

    def reference_sums(self: Any, inputs: dict[str, Any]) -> list[torch.Tensor]:
        """log pi_ref of chosen and rejected answers, (B,) each, without gradient."""
        if self.reference == PRECOMPUTED and "ref_chosen_logps" in inputs:
            return [inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]]
        if self.reference == NONE:
            return list(torch.zeros(len(inputs["answer_lengths"]), device=self.args.device).chunk(2))
        return list(self.computed_reference(self.model_wrapped, inputs).chunk(2))

    def reference_of_answers(self: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """log pi_ref of single answers, (B,), without gradient."""
        if self.reference == PRECOMPUTED and "ref_logps" in inputs:
            return inputs["ref_logps"]
        if self.reference == NONE:
            return torch.zeros(len(inputs["answer_lengths"]), device=self.args.device)
        return self.computed_reference(self.model_wrapped, inputs)

    def mismatched_reference(self: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """log pi_ref of answers to other prompts, (B,), without gradient."""
        if self.reference == PRECOMPUTED and "ref_kl_logps" in inputs:
            return inputs["ref_kl_logps"]
        if self.reference == NONE:
            return torch.zeros(len(inputs["kl"]["answer_lengths"]), device=self.args.device)
        return self.computed_reference(self.model_wrapped, inputs["kl"])

    def computed_reference(self: Any, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """log pi_ref of all answers of a batch, (answers,).

        Args:
            model: The policy as it is wrapped; a second model takes its place.
        """
        plain = self.accelerator.unwrap_model(self.model)
        off = self._adapter_off or self.reference != PRECOMPUTED
        with as_reference(plain, self.args, adapter_off=off), self.accelerator.autocast():
            sums: torch.Tensor = self.answer_sums(self.forward_answers(self.ref_model or model, inputs), inputs)
        return sums

    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, after the reference has been computed where that is done once."""
        self.precompute()
        checkpoint = kwargs.get("resume_from_checkpoint", args[0] if args else None)
        if self._renewed and isinstance(checkpoint, str):
            load_parameters(Path(checkpoint) / RENEWED_NAME, (target for target, _ in self._reference_parameters()))
        return super().train(*args, **kwargs)  # type: ignore[misc]

    def _save_beside(self: Any, folder: Path) -> None:
        """A reference that is renewed: it cannot be made again from where the run began."""
        super()._save_beside(folder)  # type: ignore[misc]
        if self._renewed:
            save_parameters(folder / RENEWED_NAME, (target for target, _ in self._reference_parameters()))

    def _save(self: Any, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """As the Trainer's, without the copy of the adapter: peft saves all that a model has."""
        super()._save(output_dir, state_dict)  # type: ignore[misc]
        if self.args.should_save:
            shutil.rmtree(Path(output_dir or self.args.output_dir) / COPY, ignore_errors=True)

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As the Trainer's, likewise."""
        self.precompute()
        metrics: dict[str, float] = super().evaluate(*args, **kwargs)  # type: ignore[misc]
        return metrics

    def precompute(self: Any) -> None:
        """Give all records the reference's numbers, once; nothing where they have them, or need none."""
        if self.reference != PRECOMPUTED or {"ref_chosen_logps", "ref_logps"} & {*self.train_dataset.column_names}:
            return
        assert self.state.global_step == 0, "the model is no longer its own reference"
        weights = weights_fingerprint(self.ref_model or self.model, adapter_off=self._adapter_off)
        self.train_dataset = self._with_reference(self.train_dataset, weights, "train")
        if isinstance(self.eval_dataset, Dataset):
            self.eval_dataset = self._with_reference(self.eval_dataset, weights, "eval")
        elif self.eval_dataset is not None:
            self.eval_dataset = {
                name: self._with_reference(dataset, weights, name) for name, dataset in self.eval_dataset.items()
            }
        self._engine = None
        self.ref_model = None  # its memory is for training

    def _with_reference(self: Any, dataset: Dataset, weights: str, name: str) -> Dataset:
        columns = [column for column in IDS if column in dataset.column_names]
        about = (
            hftune.__version__,
            weights,
            data_fingerprint(dataset, columns),
            f"{self.args.ld_alpha} {self.args.normalize_logps}",
            str(self.accelerator.mixed_precision),
        )
        key = xxhash.xxh3_128_hexdigest("\0".join(about).encode())
        return with_reference(dataset, key, lambda: self._compute(dataset, name))

    def _compute(self: Any, dataset: Dataset, name: str) -> Numbers:
        """The reference's columns, every rank a share of the records."""
        size = self.args.precompute_ref_batch_size or self.args.eval_batch_size
        # Long records first: what memory is needed is needed at once. As many batches for all ranks, under ZeRO-3.
        lengths = dataset["length"][:] if "length" in dataset.column_names else [0] * len(dataset)
        order = sorted(range(len(dataset)), key=lambda row: -lengths[row])
        chunks = [order[start : start + size] for start in range(0, len(order), size)]
        chunks += [[]] * (-len(chunks) % ranks.world_size())
        model = self._for_computing()
        names = ["ref_logps"] if "label" in dataset.column_names else ["ref_chosen_logps", "ref_rejected_logps"]
        names += ["ref_kl_logps"] if "kl_ids" in dataset.column_names else []
        found = torch.zeros(len(names), len(dataset), dtype=torch.float64, device=self.args.device)
        mine = chunks[ranks.rank() :: ranks.world_size()]
        for rows in tqdm(mine, desc=f"reference ({name})", disable=not ranks.is_main() or self.args.disable_tqdm):
            phases.alive()
            batch = self._prepare_inputs(self.data_collator([dataset[row] for row in rows or order[:1]]))
            sums = [self.computed_reference(model, batch)]
            sums += [self.computed_reference(model, batch["kl"])] if "kl" in batch else []
            if rows:
                found[:, rows] = torch.cat(sums).view(-1, len(rows)).double()
        return dict(zip(names, self.accelerator.reduce(found, "sum"), strict=True))

    def _for_computing(self: Any) -> Any:
        """The reference before training began: DeepSpeed's engine for training is not there yet."""
        if self.ref_model is not None:
            return self.ref_model
        if not self.is_deepspeed_enabled:
            return self.model
        if self._engine is None:
            self._engine = prepare_deepspeed(self.model, self.accelerator)
        return self._engine


WORDS = {
    PRECOMPUTED: "computed once, before training",
    ADAPTER: "the model without what is trained of its adapter, in each step",
    MODEL: "a second model, in each step",
}


def _trained_beside(model: PeftModel) -> str | None:
    """The first parameter that is trained and is no part of the adapter."""
    return next(
        (name for name, parameter in model.named_parameters() if parameter.requires_grad and ".default." not in name),
        None,
    )
