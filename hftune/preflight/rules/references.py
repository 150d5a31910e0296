"""What is loaded beside the model, or under it, must be built as the model is: a reference, an adapter's base."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedConfig

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.preference import DPOArguments
from hftune.arguments.training import StageArguments
from hftune.checkpoints.manifest import read_manifest
from hftune.errors import ArgumentError, ManifestError, UserError
from hftune.models.loading.config import model_config
from hftune.preflight.sizes import has_reference


def check_reference(
    config: PreTrainedConfig,
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
) -> Iterator[UserError]:
    """TRL loads a reference model from the same name, and knows nothing of how the model itself was loaded.

    With an adapter the reference is the model with its adapter off, which is right whatever was asked; preference
    optimisation loads its own.
    """
    if adapter_args.use_peft or isinstance(training_args, DPOArguments) or not has_reference(training_args):
        return
    on_hub = not Path(str(model_args.model_name_or_path)).is_dir()
    told = {
        "--from_config": model_args.from_config,
        "--gguf_file": model_args.gguf_file is not None,
        "--model_revision": on_hub and model_args.model_revision != "main",
        "--rope_scaling": _is_scaled_here(config, model_args, training_args),
    }
    if lost := [flag for flag, is_lost in told.items() if is_lost]:
        yield ArgumentError(
            f"the reference model would be loaded without {', '.join(lost)}, and be another model",
            place=", ".join(lost),
            fix="add --use_peft, or save the model as it is to be (run_sft.py) and name that folder",
        )


def _is_scaled_here(config: PreTrainedConfig, model_args: ModelArguments, training_args: StageArguments) -> bool:
    if model_args.rope_scaling is None:
        return False
    plain = model_config(dataclasses.replace(model_args, rope_scaling=None, rope_factor=None), training_args)
    return bool(plain.get_text_config().rope_parameters != config.get_text_config().rope_parameters)


def check_adapter_rope(config: PreTrainedConfig, adapter_args: AdapterArguments) -> Iterator[UserError]:
    """Adapters that were trained on stretched positions are used on the same ones."""
    for folder in adapter_args.adapter_chain:
        recorded = (read_manifest(folder) or {}).get("rope")
        if recorded and recorded["rope_parameters"] != config.get_text_config().rope_parameters:
            yield ManifestError(
                f"the adapter in {folder} was trained with other rotary positions than the model now has",
                place="--rope_scaling",
                fix=f"give the same: --rope_scaling '{json.dumps(recorded['rope_parameters'])}'",
            )
