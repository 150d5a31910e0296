"""A model gets the rows that its tokenizer needs, by transformers' own `resize_token_embeddings`, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.vocabulary.growth import Growth, new_tokens, recorded_growth
from hftune.models.vocabulary.size import forbid_rows_without_token, manifest_of, token_rows, vocabulary_rows
from hftune.on_demand import on_demand


def fit_to_tokenizer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
) -> None:
    """Grow the model where that was asked for, and refuse token ids that it has no rows for.

    An adapter that is trained further needs the rows that it was trained with: those of its `hftune.json`.

    Raises:
        ArgumentError: The tokenizer has ids without a row, or does not extend the model's own.
    """
    # First: what this run adds comes after the rows that the adapter was trained with.
    grow_as_recorded(model, adapter_args.adapter_chain)
    if model_args.grows:
        # Its module imports this one's.
        own = on_demand("hftune.models.loading.tokenizer:load_plain_tokenizer")(model_args, training_args)
        growth = plan_growth(own, tokenizer, vocabulary_rows(model), model_args.pad_vocab_to_multiple_of)
        if growth is None:
            notice(f"vocabulary: the model has rows for its {len(tokenizer)} tokens already, it does not grow")
        else:
            grow(model, growth)
    rows, highest = vocabulary_rows(model), token_rows(tokenizer) - 1
    if highest >= rows:
        raise ArgumentError(
            f"the tokenizer has ids up to {highest} ({len(tokenizer)} tokens), the model has {rows} embeddings",
            place="--tokenizer_name_or_path",
            fix="use the tokenizer that belongs to the model, or add --resize_vocab if this one extends it",
        )
    forbid_rows_without_token(model, tokenizer)
    # What `--train_new_tokens_only` trains: new tokens of this run, else those of the runs before it.
    known: Growth | None = getattr(model, "vocabulary_growth", None)
    model.trained_token_ids = (
        known.ids if known and known.ids else new_tokens(manifest_of(model_args.model_name_or_path))
    )


def plan_growth(
    base: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase, base_rows: int, multiple: int | None = None
) -> Growth | None:
    """What a model of `base_rows` rows and the tokenizer `base` needs for `tokenizer`; None where nothing changes.

    Args:
        multiple: Round the rows up to a multiple of this, Megatron's `make_vocab_size_divisible_by`.

    Raises:
        ArgumentError: A token of `base` has another id in `tokenizer`: its row would be read for another token.
    """
    before, after = base.get_vocab(), tokenizer.get_vocab()
    moved = next((token for token, number in before.items() if after.get(token) != number), None)
    if moved is not None:
        raise ArgumentError(
            f"the tokenizer does not extend the model's own: {moved!r} is {before[moved]} there, "
            f"here it is {after.get(moved, 'not a token')}",
            place="--tokenizer_name_or_path",
            fix="extend the model's own tokenizer, so that every id stays: --add_tokens does",
        )
    added = sorted(number for token, number in after.items() if token not in before)
    rows = max(base_rows, max(after.values()) + 1)
    rows = -(-rows // multiple) * multiple if multiple else rows
    return Growth(base_rows, rows, added) if added or rows > base_rows else None


def grow_as_recorded(model: PreTrainedModel, adapters: Sequence[str | Path]) -> None:
    """Give a base the rows that a chain of adapters was trained with; nothing where none recorded a growth."""
    growths = [growth for growth in (recorded_growth(manifest_of(folder)) for folder in adapters) if growth is not None]
    if growths:
        # Each adapter above the one that added tokens records the same growth of the base.
        grow(model, growths[0])


def grow(model: PreTrainedModel, growth: Growth) -> None:
    """Give embeddings, head and config of a loaded model the rows of `growth`, in place, as the mean of the old ones.

    Raises:
        ArgumentError: Embeddings that are quantised, or a model with more tables a token than these.
    """
    _refuse_what_cannot_grow(model, growth)
    # transformers draws around the mean (by a thousandth of a percent): all processes, and a merge later, draw alike.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.resize_token_embeddings(growth.rows, mean_resizing=True)
    model.vocabulary_growth = growth
    added = f"{len(growth.ids)} new tokens" if growth.ids else "no new token"
    notice(f"vocabulary: {growth.base_rows} rows become {growth.rows}, {added}")


def _refuse_what_cannot_grow(model: PreTrainedModel, growth: Growth) -> None:
    inputs = model.get_input_embeddings()
    if not inputs.weight.dtype.is_floating_point:
        raise ArgumentError(
            "the embeddings are quantised, new rows cannot be written into them",
            place="--add_tokens",
            fix="leave the tokens out, or train the model that is not quantised",
        )
    for name, module in model.named_modules():
        rows = module.num_embeddings if isinstance(module, nn.Embedding) and module is not inputs else 0
        if rows == growth.base_rows:
            raise ArgumentError(
                f"{model.config.model_type} has a second table with a row a token ({name})",
                place="--add_tokens",
                fix="its vocabulary cannot grow; use the tokenizer as it is",
            )
