"""A model takes more tokens: from two tokenizers to a `Growth`, and from a growth to embeddings, head and config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.loading.tokenizer import load_plain_tokenizer
from hftune.models.vocabulary.growth import Growth, recorded_growth
from hftune.models.vocabulary.resized_rows import resized_rows
from hftune.models.vocabulary.size import manifest_of, vocabulary_rows


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


def grow_as_recorded(model: PreTrainedModel, adapters: Sequence[str | Path]) -> None:
    """Give a base the rows that a chain of adapters was trained with; nothing where none recorded a growth."""
    growths = [growth for growth in (recorded_growth(manifest_of(folder)) for folder in adapters) if growth is not None]
    if growths:
        # Each adapter above the one that added tokens records the same growth of the base.
        grow(model, growths[0])


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
            fix="extend the model's own tokenizer with `hftune vocab`, which keeps every id",
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
    with zero.gathered([old]), torch.no_grad():
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
            fix="add the tokens to the original model first: hftune vocab add",
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
