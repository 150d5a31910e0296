"""Saved adapters: their config, which a newer peft may have written, and their weights, loaded or folded in."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
from peft import PEFT_TYPE_TO_CONFIG_MAPPING, LoraConfig, PeftConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel

from hftune.distributed import zero
from hftune.errors import ArgumentError, shown
from hftune.logging import notice
from hftune.models.loading.from_pretrained import reporting_damage
from hftune.opening.model_files import read_checked
from hftune.path_hints import not_an_adapter

CHANGES_BASE = ("pissa", "olora", "corda", "lora_ga", "loftq")
"""Beginnings of `init_lora_weights` that take a part out of the base."""

# The values that peft writes for a field that was not used.
_NOTHING: tuple[Any, ...] = (None, False, {}, [], "")
# How an adapter runs, not what it is: peft (0.18 and later) never reads it from a file either.
_NOT_READ = {"runtime_config"}


@contextmanager
def usable_quantisers() -> Iterator[None]:
    """In the block, an ImportError of peft about a quantiser's version becomes the one message.

    Raises:
        ArgumentError: A quantiser that is installed is too old for peft (peft 0.21: torchao below 0.16).
    """
    # peft looks at the versions of all quantisers that are installed, also where none is used.
    try:
        yield
    except ImportError as error:
        fix = "upgrade that package, or uninstall it: an adapter needs none"
        raise ArgumentError(" ".join(str(error).split()), place="--use_peft", fix=fix) from error


def read_adapter_config(folder: str | Path, flag: str = "--peft_path") -> PeftConfig:
    """The config in `adapter_config.json`, without fields of a newer peft that were not used.

    Raises:
        ArgumentError: No or an unreadable config, a kind of adapter or a field that this peft does not know.
    """
    file = Path(folder) / "adapter_config.json"
    values = _read(file, flag)
    config_class = PEFT_TYPE_TO_CONFIG_MAPPING.get(values.get("peft_type"))
    if config_class is None:
        raise ArgumentError(
            f"the kind of adapter {values.get('peft_type')!r} is not known to peft {peft.__version__}",
            place=f"{flag}: {file}",
            fix="use a peft that knows it" + _written_by(values),
        )
    known = {field.name for field in dataclasses.fields(config_class)} - _NOT_READ
    # peft adds fields with most releases, and ignores those that it does not know, with a warning. A field with a value
    # would then mean another adapter than was trained; one without is harmless.
    unknown = {name: value for name, value in values.items() if name not in known | _NOT_READ}
    said = {name: value for name, value in unknown.items() if value not in _NOTHING}
    if said:
        held = ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(said.items()))
        raise ArgumentError(
            f"the adapter uses what peft {peft.__version__} does not know: {held}",
            place=f"{flag}: {file}",
            fix="install the peft that it was made with" + _written_by(values),
        )
    if unknown:
        notice(f"{file}: fields of a newer peft that were not used are left out: {', '.join(sorted(unknown))}")
    try:
        with reporting_damage(file):
            return config_class(**{name: value for name, value in values.items() if name in known})
    except ValueError as error:
        cause = f"peft {peft.__version__} refuses the adapter's config: {shown(error, 160)}"
        fix = "save the adapter again" + _written_by(values)
        raise ArgumentError(cause, place=f"{flag}: {file}", fix=fix) from error


def read_lora_config(folder: str | Path, flag: str = "--peft_path") -> LoraConfig:
    """The config of an adapter that hftune trains further or folds: LoRA and its variants.

    Raises:
        ArgumentError: As `read_adapter_config`; another kind of adapter, or one of a base that it has changed itself.
    """
    config = read_adapter_config(folder, flag)
    if not isinstance(config, LoraConfig):
        raise ArgumentError(
            f"the adapter in {folder} is of the kind {config.peft_type}",
            place=flag,
            fix="only LoRA adapters are continued; merge this one with peft and start from the result",
        )
    # aLoRA waits for its invocation tokens, arrow chooses among experts: neither is one sum for all tokens.
    for named in (name for name in ("alora_invocation_tokens", "arrow_config") if getattr(config, name, None)):
        raise ArgumentError(
            f"the adapter in {folder} acts on some tokens and not on others ({named})",
            place=flag,
            fix="use it with peft itself: it can be neither continued here nor folded into its base",
        )
    start = config.init_lora_weights
    if isinstance(start, str) and start.lower().startswith(CHANGES_BASE):
        raise ArgumentError(
            f"the adapter in {folder} was saved as {start}: it belongs to a base that has lost a part of itself",
            place=flag,
            fix="save it with peft's path_initial_model_for_weight_conversion; hftune saves every adapter for the "
            "unchanged base",
        )
    return config


def _read(file: Path, flag: str) -> dict[str, Any]:
    if not file.is_file():
        raise not_an_adapter(file.parent, flag)
    return read_checked(file, error=ArgumentError, fix=f"save the adapter again, or give another one with {flag}")


def _written_by(values: dict[str, Any]) -> str:
    version = values.get("peft_version")
    return f" (it says {version})" if version else ""


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
