"""A loaded model and its tokenizer agree on the vocabulary, or the model grows, or the run is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.constants import MANIFEST_NAME
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.loading.tokenizer import load_plain_tokenizer
from hftune.models.vocabulary.growth import (
    grow,
    highest_id,
    new_tokens,
    plan_growth,
    recorded_growth,
    vocabulary_rows,
)
from hftune.opening.model_files import read_checked


def fit_to_tokenizer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
) -> None:
    """Grow the model where that was asked for, and refuse token ids that it has no rows for.

    An adapter that goes on needs the rows that it was trained with: those of its `hftune.json`.

    Raises:
        ArgumentError: The tokenizer has ids without a row, or does not extend the model's own.
    """
    grow_as_recorded(model, adapter_args.adapter_chain)
    if model_args.grows:
        base = load_plain_tokenizer(model_args, training_args)
        growth = plan_growth(
            base,
            tokenizer,
            vocabulary_rows(model),
            init=model_args.init_new_embeddings,
            multiple=model_args.pad_vocab_to_multiple_of,
            std=float(getattr(model.config.get_text_config(), "initializer_range", 0.02)),
            seed=training_args.seed,
        )
        if growth is not None:
            grow(model, growth)
        else:
            notice(f"vocabulary: the model has rows for its {len(tokenizer)} tokens already, it does not grow")
    rows, highest = vocabulary_rows(model), highest_id(tokenizer)
    if highest >= rows:
        raise ArgumentError(
            f"the tokenizer has ids up to {highest} ({len(tokenizer)} tokens), the model has {rows} embeddings",
            place="--tokenizer_name_or_path",
            fix="use the tokenizer that belongs to the model, or add --resize_vocab if this one extends it",
        )
    model.trained_tokens = trained_tokens(model, model_args.model_name_or_path)


def grow_as_recorded(model: PreTrainedModel, adapters: Sequence[str | Path]) -> None:
    """Give a base the rows that a chain of adapters was trained with; nothing where none recorded a growth.

    Each adapter above the one that added tokens records the same growth of the base.
    """
    growths = [growth for growth in (recorded_growth(_manifest(folder)) for folder in adapters) if growth is not None]
    if growths:
        grow(model, growths[0])


def trained_tokens(model: PreTrainedModel, folder: str | Path | None) -> list[int]:
    """New tokens of this run, else those of the runs before it: what `--train_new_tokens_only` trains."""
    growth = getattr(model, "vocabulary_growth", None)
    return list(growth.ids) if growth and growth.ids else new_tokens(_manifest(folder))


def _manifest(folder: str | Path | None) -> dict[str, Any] | None:
    """The manifest of a folder. Preflight has read it before, and spoken of what is wrong with it."""
    file = Path(folder or "") / MANIFEST_NAME
    return read_checked(file) if folder and file.is_file() else None
