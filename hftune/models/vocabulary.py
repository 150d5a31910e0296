"""A model gets the rows that its tokenizer needs, by transformers' own `resize_token_embeddings`, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken
from torch import nn

from hftune.constants import MANIFEST_NAME
from hftune.errors import ArgumentError, ManifestError, shown
from hftune.logging import notice
from hftune.opening.files import read_bytes
from hftune.opening.json_file import LIMIT, parse_json
from hftune.opening.model_files import read_checked

if TYPE_CHECKING:  # merging reads what is recorded of a growth without transformers, which takes seconds to import
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from hftune.arguments.model import GrowthArguments

# A hundred times the largest vocabulary there is; see `_numbers`.
_MOST_TOKENS = 10_000_000


@dataclass(frozen=True)
class Growth:
    """From the rows of a base to those of the model that is trained.

    Args:
        base_rows: Rows of the base's embeddings.
        rows: Rows of the result; those behind the highest token id are padding.
        ids: Ids of the new tokens, ascending. Some may be below `base_rows`: padding of the base becomes tokens.
    """

    base_rows: int
    rows: int
    ids: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"ids": spans(self.ids)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Growth:
        """The opposite of `to_json`."""
        return cls(**value | {"ids": _numbers(value["ids"])})


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
    """The opposite of `spans`. A manifest may come from anywhere: ten digits there must not fill the memory."""
    if sum(last - first for first, last in spans) > _MOST_TOKENS or not all(first <= last for first, last in spans):
        raise ValueError("no vocabulary has such spans of tokens")
    return [number for first, last in spans for number in range(first, last + 1)]


def _damaged(name: str, why: object) -> ManifestError:
    cause = f"the manifest's vocabulary.{name} is not as hftune writes it: {shown(why)}"
    return ManifestError(cause, place="hftune.json", fix="copy the folder again from where it is whole")


def spans(ids: list[int]) -> list[list[int]]:
    """Ascending ids as [first, last] of each run: [[5, 7], [9, 9]] for 5, 6, 7, 9."""
    # In a run, ids and their places grow alike, so that their difference stays the same.
    runs = groupby(enumerate(ids), lambda pair: pair[1] - pair[0])
    numbers = ([number for _, number in run] for _, run in runs)
    return [[run[0], run[-1]] for run in numbers]


def manifest_of(folder: str | Path | None) -> dict[str, Any] | None:
    """The manifest of a model's or an adapter's folder; None where it has none."""
    file = Path(folder or "") / MANIFEST_NAME
    return read_checked(file) if folder and file.is_file() else None


def vocabulary_rows(model: PreTrainedModel) -> int:
    """Rows of the input embeddings, of all of them under ZeRO-3, whatever peft has put around them."""
    return _rows(model.get_input_embeddings())


def predicted_rows(model: PreTrainedModel) -> int:
    """Token ids, from 0, that a model both reads and predicts: Mllama's embeddings have rows that its head lacks."""
    head, rows = _own_matrix(model.get_output_embeddings()), vocabulary_rows(model)
    return rows if getattr(head, "weight", None) is None else min(rows, _rows(head))


def token_rows(tokenizer: PreTrainedTokenizerBase) -> int:
    """Rows from 0 on that tokens have; with holes among their ids, more than there are tokens."""
    return max(tokenizer.get_vocab().values()) + 1


def forbid_rows_without_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Keep ids that no token has from being drawn: rows that only fill up the head, and holes.

    By the generation config, which every way of generating with transformers reads, and which is saved with the model.
    """
    config = getattr(model, "generation_config", None)
    if config is None:
        return
    unknown = {*range(predicted_rows(model))}.difference(tokenizer.get_vocab().values())
    if unknown:
        config.suppress_tokens = sorted(unknown.union(config.suppress_tokens or ()))


def _rows(matrix: Any) -> int:
    weight = _own_matrix(matrix).weight
    return int(getattr(weight, "ds_shape", weight.shape)[0])


def _own_matrix(module: Any) -> Any:
    # peft wraps embeddings that are trained whole (original_module) or by rows or LoRA (base_layer). The wrapper of
    # trained rows computes what it says is its weight, which fails where ZeRO-3 partitions the rows.
    for around in ("original_module", "base_layer"):
        module = getattr(module, around, module)
    return module


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
        "new_tokens": spans(added),
        "growth": growth.to_json() if growth and adapter else None,
    }


def named_tokens(value: str | None, flag: str) -> list[str]:
    """The tokens of a list with commas, of a file with one a line, or of a JSON file with a list; each once, in order.

    Raises:
        ArgumentError: No token, a blank one, or a file that is not UTF-8 text or not a list.
    """
    if value is None:
        return []
    file = Path(value)
    tokens = _tokens_in(file, flag) if len(value) < 1024 and file.is_file() else value.split(",")
    tokens = [token.strip("\r\n") for token in tokens]
    if not tokens or any(not token or token.isspace() for token in tokens):
        raise ArgumentError(
            f"{value!r} names a blank token" if tokens else f"{value} names no token",
            place=flag,
            fix="give tokens with commas between, or a file with one a line",
        )
    return list(dict.fromkeys(tokens))


def _tokens_in(file: Path, flag: str) -> list[str]:
    content = read_bytes(file, limit=LIMIT, error=ArgumentError)
    if file.suffix != ".json":
        try:
            return [line for line in content.decode("utf-8").split("\n") if line.strip()]
        except UnicodeDecodeError as error:
            fix = "write UTF-8, a token a line"
            raise ArgumentError(f"{file} cannot be read: {error}", place=flag, fix=fix) from error
    found = parse_json(content, str(file), kind=None, error=ArgumentError, fix=f'write ["<a>", "<b>"] for {flag}')
    if not isinstance(found, list) or not all(isinstance(token, str) for token in found):
        raise ArgumentError(f"{file} is no list of texts", place=flag, fix='write ["<a>", "<b>"]')
    return found


def add_named_tokens(tokenizer: PreTrainedTokenizerBase, args: GrowthArguments) -> None:
    """Give the tokenizer what `--add_tokens` and `--add_special_tokens` name, in that order, in place.

    They are taken out of a text before anything else is done with it, exactly as they are spelt. Those that are there
    already are said.

    Raises:
        ArgumentError: A token that would not decode to itself.
    """
    for value, special in ((args.add_tokens, False), (args.add_special_tokens, True)):
        flag = "--add_special_tokens" if special else "--add_tokens"
        tokens = named_tokens(value, flag)
        if not tokens:
            continue
        known = tokenizer.get_vocab()
        present = [token for token in tokens if token in known]
        if present:
            notice(f"{flag}: already in the tokenizer: {', '.join(present[:8])}{', ...' if len(present) > 8 else ''}")
        # Not normalised: Llama's older normaliser would look for "▁<a>".
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=special) for token in tokens])
        for token in tokens:
            _refuse_unless_itself(tokenizer, token, flag)


def _refuse_unless_itself(tokenizer: PreTrainedTokenizerBase, token: str, flag: str) -> None:
    """Refuse a token that does not come back as it was spelt."""
    # A byte-level decoder reads "é" in a token as a byte, and another named token may lie inside this one.
    ids = tokenizer.encode(token, add_special_tokens=False)
    decoded = tokenizer.decode(ids)
    if len(ids) != 1 or decoded.strip() != token.strip():
        raise ArgumentError(
            f"{token!r} would be read as {tokenizer.convert_ids_to_tokens(ids)} and written as {decoded!r}",
            place=flag,
            fix="leave it out, and name each marker once; or use a tokenizer that has it (--tokenizer_name_or_path, "
            "--resize_vocab)",
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
