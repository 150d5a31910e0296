"""What a run adds to a vocabulary: from two tokenizers to a `Growth`."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.loading.tokenizer import load_plain_tokenizer
from hftune.models.vocabulary.grown_model import grow, grow_as_recorded
from hftune.models.vocabulary.growth import Growth
from hftune.models.vocabulary.size import vocabulary_rows


def grow_for_run(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
) -> None:
    """Grow a loaded model as its adapters recorded it, and as `--add_tokens` or `--resize_vocab` ask.

    Raises:
        ArgumentError: The tokenizer does not extend the model's own.
    """
    # First: what this run adds comes after the rows that the adapter was trained with.
    grow_as_recorded(model, adapter_args.adapter_chain)
    if not model_args.grows:
        return
    growth = plan_growth(
        load_plain_tokenizer(model_args, training_args),
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


def plan_growth(
    base: PreTrainedTokenizerBase,
    tokenizer: PreTrainedTokenizerBase,
    base_rows: int,
    *,
    init: str = "pieces",
    multiple: int | None = None,
    std: float = 0.02,
    seed: int = 42,
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
    added = sorted((number, token) for token, number in after.items() if token not in before)
    # Some tokenizers have more tokens than their model has rows (added ones that nobody trained).
    base_tokens = min(max(before.values()) + 1, base_rows)
    rows = max(base_rows, max(after.values()) + 1)
    rows = -(-rows // multiple) * multiple if multiple else rows
    if not added and rows == base_rows:
        return None
    return Growth(
        base_rows=base_rows,
        base_tokens=base_tokens,
        rows=rows,
        ids=[number for number, _ in added],
        pieces=[pieces_of(token, base, tokenizer) for _, token in added] if init == "pieces" else [],
        init=init,
        multiple=multiple,
        seed=seed,
        std=std,
    )


def pieces_of(token: str, base: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids that the tokenizer `base` gives for a token of `tokenizer`; empty where it has none for it."""
    if token in tokenizer.get_added_vocab():
        return base.encode(token, add_special_tokens=False)  # such as `<tool>`, which is text
    # Not as text: a byte-level token may be half a character.
    return [piece.id for piece in base.backend_tokenizer.model.tokenize(token)]
