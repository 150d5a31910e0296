"""The config of a saved adapter, also of one that a newer peft has written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
from peft import PEFT_TYPE_TO_CONFIG_MAPPING, LoraConfig, PeftConfig

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
