"""Adapters from folders: loaded onto a model to be trained further, or folded into its weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel

from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.models.adapters.saved_config import read_lora_config, usable_quantisers
from hftune.models.loading.from_pretrained import reporting_damage


def load_adapter(
    model: PreTrainedModel, folder: str, *, is_trainable: bool, autocast_adapter_dtype: bool = True
) -> PeftModel:
    """The model with the adapter in `folder`; an adapter with missing tensors is an error (peft warns).

    Raises:
        ArgumentError: Its config or its tensors are not what this peft can use on this model.
    """
    config = read_lora_config(folder)
    config.base_model_name_or_path = model.name_or_path
    if config.task_type == "CAUSAL_LM" and hasattr(model, "score"):
        # peft's class for causal LMs wants a model that generates; a reward model does not.
        config.task_type = None
    with warnings.catch_warnings(record=True) as said, reporting_damage(folder), usable_quantisers():
        warnings.simplefilter("always")  # also those that this process has seen before
        try:
            adapted = PeftModel.from_pretrained(
                model,
                folder,
                config=config,
                is_trainable=is_trainable,
                autocast_adapter_dtype=autocast_adapter_dtype,
            )
        except (ValueError, RuntimeError) as error:
            first = str(error).strip().splitlines()
            raise ArgumentError(
                f"the adapter in {folder} does not fit {model.name_or_path}: {' '.join(first[:2])[:300]}",
                place="--peft_path",
                fix="give the base that it was trained on",
            ) from error
    missing = [str(entry.message) for entry in said if "missing adapter keys" in str(entry.message)]
    if missing:
        raise ArgumentError(
            f"{folder} lacks tensors of the adapter: {missing[0][:200]}",
            place="--peft_path",
            fix="save the adapter again; a checkpoint written by a full disk looks like this",
        )
    return adapted


def fold_adapters(model: PreTrainedModel, folders: Iterable[str]) -> PreTrainedModel:
    """The model with the adapters in `folders` folded into its weights, in this order; partitioned or not.

    Each sum is rounded to the dtype of the weights.

    Raises:
        ArgumentError: As `load_adapter`, or an adapter with values that are not finite.
    """
    for folder in folders:
        adapted = load_adapter(model, folder, is_trainable=False)
        try:
            # First: what is merged here counts as merged, so that `merge_and_unload` only unwraps it.
            _fold_partitioned(adapted)
            model = adapted.merge_and_unload(safe_merge=True)
        except ValueError as error:
            raise ArgumentError(
                f"the adapter in {folder} cannot be folded into its base: {error}",
                place="--peft_path",
                fix="take an earlier checkpoint of its run, from before its weights broke, or train it again",
            ) from error
    return model


def _fold_partitioned(adapted: PeftModel) -> None:
    """Merge the layers whose weights ZeRO-3 has partitioned, one gathered layer at a time."""
    # peft adds to whatever is here of a weight, and of a partitioned one that is nothing.
    for module in adapted.modules():
        if isinstance(module, BaseTunerLayer):
            weights: list[Any] = [parameter for parameter in module.parameters() if zero.is_partitioned(parameter)]
            if weights:
                with zero.gathered(weights, write=True):
                    module.merge(safe_merge=True)
