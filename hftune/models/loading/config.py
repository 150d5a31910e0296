"""The config that a model is built from: the checkpoint's own, changed as the arguments ask."""

from __future__ import annotations

from typing import Any

from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    PreTrainedConfig,
)

from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError
from hftune.models.classes import causal_class, reads_text_alone
from hftune.models.kernels.dropout import set_dropout_fields
from hftune.models.loading.config_file import check_config
from hftune.models.loading.from_pretrained import pretrained
from hftune.on_demand import on_demand
from hftune.path_hints import cannot_load


def model_config(model_args: ModelArguments, training_args: StageArguments) -> PreTrainedConfig:
    """The config of `--model_name_or_path` with rope scaling and dropout as asked for. A new one each time.

    Raises:
        ArgumentError: There is none, it cannot be read, or it has no room for what was asked.
    """
    check_config(model_args.model_name_or_path)
    try:
        config = pretrained(
            AutoConfig,
            model_args.model_name_or_path,
            trust_remote_code=training_args.trust_remote_code,
            **file_options(model_args),
        )
    except (OSError, ValueError) as error:
        name = str(model_args.model_name_or_path)
        raise cannot_load(name, error, "--model_name_or_path", "config", offline=model_args.offline) from error
    _refuse_shapeless(config)
    if model_args.rope_scaling is not None or model_args.rope_factor is not None:
        on_demand("hftune.models.loading.rope:scale_rope")(config, model_args, row_length(training_args))
    set_dropout_fields(config, training_args)
    return config


def _refuse_shapeless(config: PreTrainedConfig) -> None:
    own_code = getattr(config, "auto_map", None) or not type(config).__module__.startswith("transformers.")
    known = causal_class(config) is not None or type(config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if not own_code and not (known and reads_text_alone(config)):
        raise ArgumentError(
            f"transformers has no class that reads a row of text alone and continues it for {config.model_type}",
            place="--model_name_or_path",
            fix="use a causal language model",
        )
    text = config.get_text_config()
    lacking = [name for name in ("hidden_size", "num_hidden_layers", "vocab_size") if not hasattr(text, name)]
    if lacking:
        raise ArgumentError(
            f"{config.model_type} is no decoder of text that hftune knows how to train: its config has no "
            + ", ".join(lacking),
            place="--model_name_or_path",
            fix="use a causal language model",
        )


def file_options(model_args: ModelArguments) -> dict[str, Any]:
    """What `from_pretrained` of a config, a tokenizer or a model needs to find its files: revision, cache, offline."""
    found: dict[str, Any] = {"revision": model_args.model_revision, "cache_dir": model_args.cache_dir}
    return found | ({"local_files_only": True} if model_args.offline else {})


def row_length(training_args: StageArguments) -> int | None:
    """Tokens of the longest row that a run may train on; None where nothing bounds it."""
    if hasattr(training_args, "block_size"):
        return int(training_args.block_size)
    if getattr(training_args, "max_length", None):
        return int(training_args.max_length)
    prompt, completion = (getattr(training_args, f"max_{part}_length", None) for part in ("prompt", "completion"))
    return prompt + completion if prompt and completion else None
