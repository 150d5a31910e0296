"""What a loaded model says of its vocabulary: rows, tied or not, new tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.constants import MANIFEST_NAME
from hftune.models.vocabulary.growth import Growth, new_tokens, spans
from hftune.opening.model_files import read_checked


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
