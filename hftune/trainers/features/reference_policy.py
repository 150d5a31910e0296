"""The reference of a preference trainer: which one, when it is computed, and how it is renewed and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from peft import PeftModel
from safetensors.torch import save_file
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState
from trl.models import prepare_deepspeed
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

from hftune.distributed import phases, ranks, zero
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.opening.safetensors_file import load_tensors
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run

COPY = "ref"
"""The name of an adapter that is a copy of the trained one as it was."""

RENEWED_NAME = "reference.safetensors"
"""In a checkpoint, the reference as it was renewed."""

NONE, PRECOMPUTED, ADAPTER, MODEL = "none", "precomputed", "adapter", "model"


class ReferencePolicy(Feature):
    """The cheapest reference that is exact, or the one asked for.

    none         no loss asks for it
    precomputed  once, before training: each step is one pass through the policy, and no second model is kept
    adapter      a pass in each step with the adapter off, or with a copy of an adapter that is resumed
    model        a pass in each step through a second model

    Args:
        run: The trainer; its second model is `ref_model`, None where there is none.

    Attributes:
        kind: One of these four.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.kind = NONE
        self._engine: Any = None  # DeepSpeed's, before training
        self._adapter_off = True  # whether the reference is the model without its adapter
        self._renewed = False

    def choose(self, ref_model: PreTrainedModel | None, starts_as_base: bool) -> None:
        """Choose, say which it is and why, and make what it needs."""
        run, args = self.run, self.run.args
        if not args.needs_reference:
            why = "--reference_free" if args.reference_free else f"{' + '.join(args.loss_type)} needs none"
            notice(f"reference: none ({why})")
            return
        adapted = isinstance(run.model, PeftModel)
        self._adapter_off = starts_as_base
        # Before anything is made: what is said here is what a user can change by a flag.
        self.kind, why = self._choose_kind(adapted, ref_model)
        notice(f"reference: {WORDS[self.kind]} ({why})")
        if self.kind == ADAPTER and (args.sync_ref_model or not starts_as_base):
            add_copy(run.model)
        if ref_model is not None:
            run.ref_model = self._prepared(ref_model)
        if args.sync_ref_model:
            alpha = args.ref_model_mixup_alpha
            if adapted and alpha != 1.0:
                notice(f"the reference is renewed by mixing each factor of the adapters, {alpha:g} of the trained one")
            # From here on a checkpoint needs the reference as well: where the run began it is no longer.
            self._renewed = True
            run.add_callback(RenewReference(self.parameters, alpha))

    # Hooks.

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """Compute the reference where that is done once, or load one that was renewed.

        Raises:
            ArgumentError: The checkpoint has no renewed one.
        """
        self.precompute()
        if self._renewed and checkpoint is not None:
            self._load(Path(checkpoint) / RENEWED_NAME)

    def before_evaluate(self, run: Run) -> None:
        """An evaluation may come before training."""
        self.precompute()

    def save_files(self, run: Run, folder: Path) -> None:
        """A reference that is renewed cannot be made again from where the run began; the main process writes it."""
        if not self._renewed:
            return
        found = {}
        for number, (parameter, _) in enumerate(self.parameters()):
            with zero.gathered([parameter]):
                if ranks.is_main():
                    # By number: names of an adapter's copy, of a second model and of the policy differ.
                    found[str(number)] = parameter.detach().cpu().clone()
        if ranks.is_main():
            save_file(found, folder / RENEWED_NAME)

    @torch.no_grad()
    def _load(self, file: Path) -> None:
        if not file.is_file():
            raise ArgumentError(
                f"{file.parent} has no {file.name}: its reference was not renewed in training",
                place="--resume_from_checkpoint",
                fix="resume as it was begun, without --sync_ref_model",
            )
        found = load_tensors(file)
        for number, (parameter, _) in enumerate(self.parameters()):
            with zero.gathered([parameter], write=True):
                parameter.data.copy_(found[str(number)])

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """In the block the adapter has no copy: peft saves all that a model has, each into a folder of its name."""
        configs = self.run.model.peft_config if isinstance(self.run.model, PeftModel) else {}
        copied = configs.pop(COPY, None)
        try:
            yield
        finally:
            if copied is not None:
                configs[COPY] = copied

    # What losses ask for.

    def sums(self, inputs: Inputs) -> list[torch.Tensor]:
        """log pi_ref of chosen and rejected answers, (B,) each, without gradient."""
        if self.kind == PRECOMPUTED and "ref_chosen_logps" in inputs:
            return [inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]]
        return list(self._live(inputs).chunk(2))

    def of_answers(self, inputs: Inputs) -> torch.Tensor:
        """log pi_ref of single answers, (B,), without gradient."""
        if self.kind == PRECOMPUTED and "ref_logps" in inputs:
            return inputs["ref_logps"]
        return self._live(inputs)

    def of_mismatched(self, inputs: Inputs) -> torch.Tensor:
        """log pi_ref of answers to other prompts, (B,), without gradient."""
        if self.kind == PRECOMPUTED and "ref_kl_logps" in inputs:
            return inputs["ref_kl_logps"]
        return self._live(inputs["kl"])

    def _live(self, inputs: Inputs) -> torch.Tensor:
        if self.kind == NONE:
            # Zeros cancel: losses without a reference never read them, and metrics then compare the policy alone.
            return torch.zeros(len(inputs["answer_lengths"]), device=self.run.args.device)
        return self.log_probs(self.run.model_wrapped, inputs)

    def log_probs(self, model: nn.Module, inputs: Inputs) -> torch.Tensor:
        """log pi_ref of all answers of a batch, (answers,).

        Args:
            model: The policy as it is wrapped; a second model takes its place.
        """
        run = self.run
        plain = run.accelerator.unwrap_model(run.model)
        # A resumed adapter is the reference itself, until it is trained: computed before training it stays on.
        off = self._adapter_off or self.kind != PRECOMPUTED
        with as_reference_model(plain, run.args, adapter_off=off), run.accelerator.autocast():
            return run.answer_sums(run.ref_model or model, inputs)

    def parameters(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Each parameter of a live reference with that of the policy."""
        unwrap = self.run.accelerator.unwrap_model
        if self.run.ref_model is None:
            yield from adapter_parameters(unwrap(self.run.model))
        else:
            yield from zip(unwrap(self.run.ref_model).parameters(), unwrap(self.run.model).parameters(), strict=True)

    # Computing it once.

    def precompute(self) -> None:
        """Give all records the reference's numbers, once; nothing where they have them, or need none."""
        run = self.run
        if self.kind != PRECOMPUTED or has_reference(run.train_dataset):
            return
        # The flags of this are checked where it is chosen; here a loss of the reference would go unnoticed.
        assert run.state.global_step == 0, "the model is no longer its own reference"
        run.train_dataset = self._with_reference(run.train_dataset, "train")
        if isinstance(run.eval_dataset, Dataset):
            run.eval_dataset = self._with_reference(run.eval_dataset, "eval")
        elif run.eval_dataset is not None:
            run.eval_dataset = {name: self._with_reference(dataset, name) for name, dataset in run.eval_dataset.items()}
        if self._engine is not None:
            # Its hooks would stay on the modules, and under ZeRO-3 follow the training engine's passes as their own.
            self._engine.destroy()
            self._engine = None
        run.ref_model = None  # its memory is for training

    def add_to_others(self, dataset: Dataset, name: str) -> Dataset:
        """Other records than the trainer was given, with the reference's numbers.

        Raises:
            ArgumentError: The model was trained, and nothing is left of its reference.
        """
        if self.kind != PRECOMPUTED or has_reference(dataset):
            return dataset
        if self.run.state.global_step and not (isinstance(self.run.model, PeftModel) and self._adapter_off):
            raise ArgumentError(
                "the reference of these records was to be computed before training",
                place=f"evaluate({name})",
                fix="give them to the trainer as held-out records, or use --precompute_ref_log_probs False",
            )
        return self._with_reference(dataset, name)

    def _with_reference(self, dataset: Dataset, name: str) -> Dataset:
        columns = {name: values.cpu().numpy() for name, values in self.compute(dataset, name).items()}
        return concatenate_datasets([dataset, Dataset.from_dict(columns)], axis=1)

    def compute(self, dataset: Dataset, name: str) -> dict[str, torch.Tensor]:
        """The reference's columns, float64, a number a record, the same on all ranks; each computes a share."""
        run = self.run
        # No gradients are kept, so that the batch of an evaluation fits.
        size = run.args.precompute_ref_batch_size or run.args.eval_batch_size
        # Long records first: what memory is needed is needed at once. As many batches for all ranks, under ZeRO-3.
        lengths = dataset["length"][:] if "length" in dataset.column_names else [0] * len(dataset)
        order = sorted(range(len(dataset)), key=lambda row: -lengths[row])
        chunks = [order[start : start + size] for start in range(0, len(order), size)]
        # Under ZeRO-3 every forward pass needs all ranks: those with nothing left score a record again, and drop it.
        chunks += [[]] * (-len(chunks) % ranks.world_size())
        model = self._for_computing()
        names = ["ref_logps"] if "label" in dataset.column_names else ["ref_chosen_logps", "ref_rejected_logps"]
        names += ["ref_kl_logps"] if "kl_ids" in dataset.column_names else []
        # float64 and a sum: each rank fills its own places, all others are 0.
        found = torch.zeros(len(names), len(dataset), dtype=torch.float64, device=run.args.device)
        mine = chunks[ranks.rank() :: ranks.world_size()]
        for rows in tqdm(mine, desc=f"reference ({name})", disable=not ranks.is_main() or run.args.disable_tqdm):
            phases.keep_alive()
            batch = run._prepare_inputs(run.data_collator([dataset[row] for row in rows or order[:1]]))
            sums = [self.log_probs(model, batch)]
            sums += [self.log_probs(model, batch["kl"])] if "kl" in batch else []
            if rows:
                found[:, rows] = torch.cat(sums).view(-1, len(rows)).double()
        return dict(zip(names, run.accelerator.reduce(found, "sum"), strict=True))

    def _for_computing(self) -> Any:
        """The reference before training began: DeepSpeed's engine for training is not there yet."""
        run = self.run
        if run.ref_model is not None:
            return run.ref_model
        if not run.is_deepspeed_enabled:
            return run.model
        if run.state.global_step:
            return run.model_wrapped
        if self._engine is None:
            self._engine = prepare_deepspeed(run.model, run.accelerator)
        return self._engine

    # Choosing.

    def _choose_kind(self, adapted: bool, ref_model: Any) -> tuple[str, str]:
        args, live = self.run.args, MODEL if ref_model is not None else ADAPTER
        asked = args.precompute_ref_log_probs
        if asked is not None and not (asked and args.sync_ref_model):
            return (PRECOMPUTED if asked else live), "as asked"
        if args.sync_ref_model:
            return live, "it is renewed in training"
        if not adapted or ref_model is not None:
            return PRECOMPUTED, "no second model is kept in training"
        if other := _trained_elsewhere(self.run.model):
            return PRECOMPUTED, f"{other} is trained next to the adapter, and cannot be switched off"
        # With one pass, computing ahead is as much work.
        passes = self._passes()
        if passes > 1:
            return PRECOMPUTED, f"{passes:.3g} passes over the records"
        return live, "records are seen once"

    def _passes(self) -> float:
        """How often a record is seen in training and evaluation, on average."""
        args = self.run.args
        if args.max_steps <= 0:
            return float(args.num_train_epochs)
        # --max_steps ends a run in the middle of an epoch, or after several.
        records = args.max_steps * self.run.get_total_train_batch_size(args)
        return float(records / len(self.run.train_dataset))

    def _prepared(self, ref_model: PreTrainedModel) -> Any:
        """A second model, where and as this run computes."""
        if self.run.is_deepspeed_enabled:
            return prepare_deepspeed(ref_model, self.run.accelerator)
        return self.run.accelerator.prepare_model(ref_model, evaluation_mode=True)


def has_reference(dataset: Dataset) -> bool:
    """Whether records have the reference's numbers."""
    return bool({"ref_chosen_logps", "ref_logps"} & {*dataset.column_names})


WORDS = {
    PRECOMPUTED: "computed once, before training",
    ADAPTER: "the model without what is trained of its adapter, in each step",
    MODEL: "a second model, in each step",
}


def _trained_elsewhere(model: PeftModel) -> str | None:
    """The first parameter that is trained and is no part of the adapter."""
    return next(
        (name for name, parameter in model.named_parameters() if parameter.requires_grad and ".default." not in name),
        None,
    )


def add_copy(model: PeftModel) -> None:
    """A frozen copy of the trained adapter next to it, as the reference of one that does not start as the base."""
    model.add_adapter(COPY, model.peft_config["default"])
    for target, source in adapter_parameters(model):
        with zero.gathered([target, source], write=True):
            target.data.copy_(source.data)
        target.requires_grad_(False)


def adapter_parameters(model: PeftModel) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """Each parameter of the copy, and the trained one that it is a copy of."""
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        if f".{COPY}." in name:
            yield parameter, named[name.replace(f".{COPY}.", ".default.")]


@contextmanager
def as_reference_model(model: nn.Module, args: Any, *, adapter_off: bool = True) -> Iterator[None]:
    """Run a model as its own reference: without gradients and dropout.

    Args:
        adapter_off: Without the trained adapter, or with its copy where there is one; else as it is.
    """
    was_training = model.training
    adapter: Any = nullcontext()
    if isinstance(model, PeftModel) and adapter_off:
        adapter = use_adapter(model, COPY if COPY in model.peft_config else None)
    # Nothing is recomputed without gradients, and reentrant checkpointing would warn in each pass.
    checkpointing = disable_gradient_checkpointing(model, args.gradient_checkpointing_kwargs)
    with torch.no_grad(), checkpointing, adapter:
        model.eval()
        try:
            yield
        finally:
            model.train(was_training)


class RenewReference(TrainerCallback):
    """Every so many steps: reference = alpha * policy + (1 - alpha) * reference (TR-DPO, arXiv:2404.09656).

    Args:
        pairs: Gives each parameter of the reference with that of the policy.
    """

    def __init__(self, pairs: Callable[[], Iterator[tuple[nn.Parameter, nn.Parameter]]], alpha: float) -> None:
        self.pairs, self.alpha = pairs, alpha

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Renew it where the step asks for it."""
        if state.global_step % args.ref_model_sync_steps == 0:
            self.renew()

    @torch.no_grad()
    def renew(self) -> None:
        """One parameter at a time, so that ZeRO-3 gathers one at a time."""
        for target, source in self.pairs():
            with zero.gathered([target, source], write=True):
                # In the reference's dtype, which may be another than the policy's.
                target.data.mul_(1 - self.alpha).add_(source.data.to(target.dtype), alpha=self.alpha)
