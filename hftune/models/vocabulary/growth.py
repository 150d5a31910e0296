"""Embeddings that grow with the tokenizer: what is added, the rows it gets, and how a model takes them.

What a growth does to a weight depends on the weight and on the `Growth` alone, which is written into `hftune.json`:
training (whatever the ZeRO stage), merging and continuing an adapter all make the same rows from the same base.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.distributed import zero
from hftune.errors import ArgumentError, ManifestError, shown
from hftune.logging import notice

INITS = ("pieces", "mean", "normal")
"""How rows of new tokens begin; see `resized_rows`."""

_BLOCK = 8192
_MOST_TOKENS = 10_000_000


@dataclass(frozen=True)
class Growth:
    """From the rows of a base to those of the model that is trained.

    Args:
        base_rows: Rows of the base's embeddings.
        base_tokens: Its rows that are tokens, the first ones; those behind them are padding.
        rows: Rows of the result; those behind the highest token id are padding.
        ids: Ids of the new tokens, ascending. Some may be below `base_rows`: padding of the base becomes tokens.
        pieces: For each of `ids` the ids that the base's tokenizer gives for it; `init="pieces"` needs them.
        init: "pieces", "mean" or "normal".
        multiple: What `rows` was rounded up to a multiple of.
        seed, std: Of `init="normal"`.
    """

    base_rows: int
    base_tokens: int
    rows: int
    ids: list[int] = field(default_factory=list)
    pieces: list[list[int]] = field(default_factory=list)
    init: str = "pieces"
    multiple: int | None = None
    seed: int = 42
    std: float = 0.02

    def to_json(self) -> dict[str, Any]:
        """Plain values, the pieces of a token as one text, so that a manifest has a line a token."""
        pieces = [" ".join(map(str, ids)) for ids in self.pieces] if self.init == "pieces" else []
        return asdict(self) | {"ids": _spans(self.ids), "pieces": pieces}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Growth:
        """The opposite of `to_json`."""
        ids = _numbers(value["ids"])
        return cls(**value | {"ids": ids, "pieces": [[int(one) for one in text.split()] for text in value["pieces"]]})


def recorded_growth(manifest: dict[str, Any] | None) -> Growth | None:
    """The growth that an adapter's `hftune.json` records: what its base needs before the adapter fits; or None."""
    value = ((manifest or {}).get("vocabulary") or {}).get("growth")
    if not value or (manifest or {}).get("kind") != "adapter":
        return None
    try:
        return Growth.from_json(value)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _damaged("growth", error) from error


def new_tokens(manifest: dict[str, Any] | None) -> list[int]:
    """Ids of the tokens that a folder's `hftune.json` says were added; later stages may train only them."""
    spans = ((manifest or {}).get("vocabulary") or {}).get("new_tokens") or []
    try:
        return _numbers(spans)
    except (TypeError, ValueError) as error:
        raise _damaged("new_tokens", error) from error


def _numbers(spans: list[list[int]]) -> list[int]:
    """The opposite of `_spans`. A manifest may come from anywhere: ten digits there must not fill the memory."""
    if sum(last - first for first, last in spans) > _MOST_TOKENS or not all(first <= last for first, last in spans):
        raise ValueError("no vocabulary has such spans of tokens")
    return [number for first, last in spans for number in range(first, last + 1)]


def _damaged(name: str, why: object) -> ManifestError:
    cause = f"the manifest's vocabulary.{name} is not as hftune writes it: {shown(why)}"
    return ManifestError(cause, place="hftune.json", fix="copy the folder again from where it is whole")


def resized_rows(old: torch.Tensor, growth: Growth) -> torch.Tensor:
    """A weight of the grown model from that of its base; the same bits wherever it is computed.

    Rows of old tokens stay as they are. A new token's row is, by `growth.init`, the mean of the rows of its pieces in
    the base's tokenizer; the mean of all rows that are tokens (https://nlp.stanford.edu/~johnhew/vocab-expansion.html:
    no old token's probability falls by more than the share of the new ones); or drawn from N(0, std^2). Rows of
    padding are that mean: by Jensen's inequality such a row is never the most likely one.

    Args:
        old: Embeddings or head of shape (base_rows, hidden size), or a head's bias of shape (base_rows,); floating.

    Returns:
        Shape (rows, hidden size) or (rows,), in the dtype and on the device of `old`; computed in float64 on the CPU.
    """
    assert old.shape[0] == growth.base_rows, f"{tuple(old.shape)} is not a weight of {growth.base_rows} rows"
    source = old.detach().cpu()
    kept = min(growth.base_rows, growth.rows)
    mean = _mean(source[: growth.base_tokens])
    new = mean.to(source.dtype).expand(growth.rows, *source.shape[1:]).clone()
    new[:kept] = source[:kept]
    for number, row in zip(growth.ids, _new_rows(source, growth, mean), strict=True):
        new[number] = row.to(source.dtype)
    return new.to(old.device)


def _new_rows(source: torch.Tensor, growth: Growth, mean: torch.Tensor) -> Iterable[torch.Tensor]:
    """A row for each new token; one at a time, since float64 rows of a large vocabulary would not fit beside it."""
    if growth.init == "mean":
        return [mean] * len(growth.ids)
    if growth.init == "normal":
        generator = torch.Generator().manual_seed(growth.seed)
        shape = (len(growth.ids), *source.shape[1:])
        return torch.zeros(shape) if source.dim() == 1 else torch.randn(shape, generator=generator) * growth.std
    return (source[torch.tensor(pieces)].double().mean(0) if pieces else mean for pieces in growth.pieces)


def _mean(rows: torch.Tensor) -> torch.Tensor:
    """The mean row in float64, a block at a time: no copy of a large vocabulary."""
    total = torch.zeros(rows.shape[1:], dtype=torch.float64)
    for start in range(0, rows.shape[0], _BLOCK):
        total += rows[start : start + _BLOCK].double().sum(0)
    return total / rows.shape[0]


# --- from two tokenizers to a growth ------------------------------------------------------------------------------


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
    base_tokens = min(max(before.values()) + 1, base_rows)
    rows = round_up(max(base_rows, max(after.values()) + 1), multiple)
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


def round_up(rows: int, multiple: int | None) -> int:
    """The next multiple, or `rows` itself."""
    return rows if not multiple else -(-rows // multiple) * multiple


def pieces_of(token: str, base: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids that the tokenizer `base` gives for a token of `tokenizer`; empty where it has none for it.

    A token of the vocabulary goes through the base's model as it is spelt there (a byte-level token may be half a
    character, which is no text); a token that stands outside of it (`<tool>`) is text.
    """
    if token in tokenizer.get_added_vocab():
        return base.encode(token, add_special_tokens=False)
    return [piece.id for piece in base.backend_tokenizer.model.tokenize(token)]


def highest_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The largest token id: with holes among the ids it is not `len(tokenizer) - 1`."""
    return max(tokenizer.get_vocab().values())


# --- a model takes its growth -------------------------------------------------------------------------------------


def vocabulary_rows(model: PreTrainedModel) -> int:
    """Rows of the input embeddings, also where ZeRO-3 holds them in pieces and peft has put something around them."""
    inputs = model.get_input_embeddings()
    for around in ("original_module", "base_layer"):
        inputs = getattr(inputs, around, inputs)
    return int(getattr(inputs.weight, "ds_shape", inputs.weight.shape)[0])


def grow(model: PreTrainedModel, growth: Growth) -> None:
    """Give embeddings, head and config of a loaded model the rows of `growth`, in place.

    Under ZeRO-3 the old rows are gathered; the new weight is whole on every rank until the engine partitions it.

    Raises:
        ArgumentError: Embeddings that are quantised, or a model with more tables a token than these.
    """
    inputs, head = model.get_input_embeddings(), model.get_output_embeddings()
    _refuse_what_cannot_grow(model, growth)
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
    """Every place that keeps the number of rows: the config, and modules whose loss reads their own `vocab_size`."""
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
    """Rows behind the last token are not sampled: the generation config that is saved with the model says so."""
    last = max([growth.base_tokens - 1, *growth.ids])
    if last + 1 < growth.rows and getattr(model, "generation_config", None) is not None:
        model.generation_config.suppress_tokens = list(range(last + 1, growth.rows))


def describe_vocabulary(
    model: PreTrainedModel, parent: dict[str, Any] | None = None, *, adapter: bool = False
) -> dict[str, Any]:
    """What a manifest says of a vocabulary, read from the weights.

    Args:
        parent: The manifest of the model that this one began from, whose new tokens are this one's as well.
        adapter: Whether the folder holds an adapter, whose base has to grow before it fits.
    """
    growth: Growth | None = getattr(model, "vocabulary_growth", None)
    added = sorted({*new_tokens(parent), *(growth.ids if growth else [])})
    return {
        "rows": vocabulary_rows(model),
        "tied": bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False)),
        "new_tokens": _spans(added),
        "growth": growth.to_json() if growth and adapter else None,
    }


def _spans(ids: list[int]) -> list[list[int]]:
    """Ascending ids as [first, last] of each run: [[5, 7], [9, 9]] for 5, 6, 7, 9."""
    return [[run[0], run[-1]] for run in _runs(ids)]


def _runs(ids: list[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for number in ids:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    if run:
        yield run
