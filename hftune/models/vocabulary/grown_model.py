"""A loaded model takes a `Growth`: embeddings, head and config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from hftune.distributed.zero import gathered
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.vocabulary.growth import Growth, recorded_growth
from hftune.models.vocabulary.resized_rows import resized_rows
from hftune.models.vocabulary.size import manifest_of


def grow_as_recorded(model: PreTrainedModel, adapters: Sequence[str | Path]) -> None:
    """Give a base the rows that a chain of adapters was trained with; nothing where none recorded a growth."""
    growths = [growth for growth in (recorded_growth(manifest_of(folder)) for folder in adapters) if growth is not None]
    if growths:
        # Each adapter above the one that added tokens records the same growth of the base.
        grow(model, growths[0])


def grow(model: PreTrainedModel, growth: Growth) -> None:
    """Give embeddings, head and config of a loaded model the rows of `growth`, in place.

    Under ZeRO-3 the old rows are gathered; the new weight is whole on every rank until the engine partitions it.

    Raises:
        ArgumentError: Embeddings that are quantised, or a model with more tables a token than these.
    """
    inputs, head = model.get_input_embeddings(), model.get_output_embeddings()
    _refuse_what_cannot_grow(model, growth)
    # Asked before the first of them grows: afterwards they are two parameters whatever they were.
    tied = head is not None and head.weight is inputs.weight
    _grow_module(inputs, growth)
    inputs.num_embeddings = growth.rows
    if head is not None:
        if tied:
            head.weight = inputs.weight
            _grow_parameter(head, "bias", growth)
        else:
            _grow_module(head, growth)
        head.out_features = growth.rows
    _tell_size(model, growth)
    _forbid_padding(model, growth)
    model.vocabulary_growth = growth
    added = f"{len(growth.ids)} new tokens ({growth.init})" if growth.ids else "no new token"
    notice(f"vocabulary: {growth.base_rows} rows become {growth.rows}, {added}; tied: {tied}")


def _grow_module(module: nn.Module, growth: Growth) -> None:
    _grow_parameter(module, "weight", growth)
    _grow_parameter(module, "bias", growth)


def _grow_parameter(module: nn.Module, name: str, growth: Growth) -> None:
    old = getattr(module, name, None)
    if old is None:
        return
    with gathered([old]), torch.no_grad():
        new = resized_rows(old, growth)
    setattr(module, name, nn.Parameter(new, requires_grad=old.requires_grad))


def _tell_size(model: PreTrainedModel, growth: Growth) -> None:
    """Write the number of rows wherever it is kept: in configs, and in modules whose loss reads their `vocab_size`."""
    for config in {id(one): one for one in (model.config, model.config.get_text_config())}.values():
        if getattr(config, "vocab_size", None) is not None:
            config.vocab_size = growth.rows
    for module in model.modules():
        if module.__dict__.get("vocab_size") == growth.base_rows:
            module.vocab_size = growth.rows


def _refuse_what_cannot_grow(model: PreTrainedModel, growth: Growth) -> None:
    inputs = model.get_input_embeddings()
    if not inputs.weight.dtype.is_floating_point:
        raise ArgumentError(
            "the embeddings are quantised, new rows cannot be written into them",
            place="--add_tokens",
            fix="leave the tokens out, or train the original model (without quantisation)",
        )
    for name, module in model.named_modules():
        rows = module.num_embeddings if isinstance(module, nn.Embedding) and module is not inputs else 0
        if rows == growth.base_rows:
            raise ArgumentError(
                f"{model.config.model_type} has a second table with a row a token ({name})",
                place="--add_tokens",
                fix="its vocabulary cannot grow; use the tokenizer as it is",
            )


def _forbid_padding(model: PreTrainedModel, growth: Growth) -> None:
    """Keep rows behind the last token from being sampled, by the generation config that is saved with the model."""
    last = max([growth.base_tokens - 1, *growth.ids])
    if last + 1 < growth.rows and getattr(model, "generation_config", None) is not None:
        model.generation_config.suppress_tokens = list(range(last + 1, growth.rows))
