"""A loaded model has a row for every token of its tokenizer, or grows, or the run is refused."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError
from hftune.models.vocabulary.growth import Growth, new_tokens
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
    if model_args.grows or adapter_args.adapter_chain:
        grow_for_run = on_demand("hftune.models.vocabulary.growing:grow_for_run")
        grow_for_run(model, tokenizer, model_args, adapter_args, training_args)
    rows, highest = vocabulary_rows(model), token_rows(tokenizer) - 1
    if highest >= rows:
        raise ArgumentError(
            f"the tokenizer has ids up to {highest} ({len(tokenizer)} tokens), the model has {rows} embeddings",
            place="--tokenizer_name_or_path",
            fix="use the tokenizer that belongs to the model, or add --resize_vocab if this one extends it",
        )
    forbid_rows_without_token(model, tokenizer)
    # What `--train_new_tokens_only` trains: new tokens of this run, else those of the runs before it.
    growth: Growth | None = getattr(model, "vocabulary_growth", None)
    model.trained_token_ids = (
        growth.ids if growth and growth.ids else new_tokens(manifest_of(model_args.model_name_or_path))
    )
