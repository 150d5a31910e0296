"""Reads a tokenizer as llama.cpp needs it: tokens, kinds, merges or scores, and the name of its pre-tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from hftune.errors import ArgumentError
from hftune.opening.json_file import LARGE, read_json
from hftune.template_arguments import TemplateArguments
from hftune.tools.export.template import exported_template

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LETTERS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
# The regular expression that a tokenizer cuts text with, and llama.cpp's name for it (src/llama-vocab.cpp).
CUTS: dict[str, str] = {
    _LLAMA3: "llama-bpe",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL: "qwen2",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _TAIL: "qwen35",
    rf"{_LETTERS}|{_CAPITALS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*" + _TAIL: "tekken",
    rf"{_LETTERS}{_CONTRACTIONS}?|{_CAPITALS}{_CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*"
    + _TAIL: "gpt-4o",
}


@dataclass
class Vocabulary:
    """The vocabulary of a GGUF file.

    Attributes:
        model: "gpt2" (bytes, merges) or "llama" (pieces with scores, byte tokens for the rest).
        cut: `tokenizer.ggml.pre`.
        tokens: One a row of the embedding.
        kinds: `gguf.TokenType` of each.
        scores: Of each, for "llama": higher merges first.
        space_prefix: Whether text begins with a space that was not there ("llama" only).
    """

    model: str
    cut: str
    tokens: list[str]
    kinds: list[int]
    scores: list[float] | None = None
    space_prefix: bool = False

    def write(
        self, writer: gguf.GGUFWriter, folder: Path, arguments: TemplateArguments | None = None, *, adds_bos: bool
    ) -> None:
        """Add the vocabulary to a file, with special tokens, merges and chat template as the folder has them.

        Args:
            writer: Of the file.
            folder: The model's.
            arguments: What the template takes where it is given nothing.
            adds_bos: Whether texts begin with the BOS token.
        """
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.cut)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.kinds)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
            writer.add_add_space_prefix(self.space_prefix)
        special = gguf.SpecialVocab(folder, load_merges=self.model == "gpt2", n_vocab=len(self.tokens))
        # gguf (0.19) guesses it from the post-processor, by its own words wrongly for unusual ones.
        special.add_special_token["bos"] = adds_bos
        special.chat_template = exported_template(special.chat_template, arguments or {})
        special.add_to_gguf(writer, quiet=True)


def read_vocabulary(folder: Path, rows: int) -> Vocabulary:
    """The vocabulary of a model folder, filled up to the rows of its embedding.

    Args:
        folder: With `tokenizer.json`.
        rows: Rows of the embedding; rows without a token become unused ones.

    Raises:
        ArgumentError: No `tokenizer.json`, more tokens than rows, or a tokenizer that llama.cpp has no name for.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ArgumentError(
            f"{folder} has no tokenizer.json", place="--model_name_or_path", fix="save a fast tokenizer"
        )
    content = read_json(file, limit=LARGE)
    if content["model"].get("type", "BPE") != "BPE":
        raise _unknown(f"a {content['model'].get('type')} model")
    tokens, kinds = _tokens(content, rows)
    # Converted from SentencePiece: tokens for single bytes, and scores for llama.cpp in the place of merges.
    if content["model"].get("byte_fallback"):
        scores = _scores(content["model"], tokens)
        return Vocabulary("llama", "default", tokens, kinds, scores, space_prefix=_begins_with_space(content))
    return Vocabulary("gpt2", cut_of(content), tokens, kinds)


def cut_of(content: dict[str, Any]) -> str:
    """llama.cpp's name for the pre-tokenizer of a byte-level tokenizer.

    Args:
        content: Of `tokenizer.json`.

    Raises:
        ArgumentError: It has none that hftune knows.
    """
    steps = _flat(content.get("pre_tokenizer") or {})
    kinds = [step["type"] for step in steps]
    last = steps[-1] if steps else {}
    if not kinds or kinds[-1] != "ByteLevel" or last.get("add_prefix_space"):
        raise _unknown(f"cutting by {kinds or 'nothing'}")
    # ByteLevel cuts by GPT-2's expression itself unless told not to; with another one before it that would cut twice.
    whole = last.get("use_regex", True)
    if kinds == ["ByteLevel"] and whole:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and whole and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and not whole:
        pattern = steps[0]["pattern"].get("Regex", "")
        name = CUTS.get(pattern)
        if name == "llama-bpe" and not content["model"].get("ignore_merges"):
            # The same cut, without Llama 3's rule that a whole word needs no merges.
            name = "dbrx"
        if name:
            return name
        raise _unknown(f"cutting by {pattern}")
    raise _unknown(f"cutting by {kinds}")


def _unknown(what: str) -> ArgumentError:
    return ArgumentError(
        f"the tokenizer has {what}, for which hftune knows no name of llama.cpp's",
        place="--model_name_or_path",
        fix="use llama.cpp's convert_hf_to_gguf.py on the folder",
    )


def _flat(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step.get("type") == "Sequence":
        return [inner for part in step["pretokenizers"] for inner in _flat(part)]
    return [step] if step else []


def _tokens(content: dict[str, Any], rows: int) -> tuple[list[str], list[int]]:
    added = {entry["id"]: entry for entry in content.get("added_tokens", [])}
    by_id = {number: token for token, number in content["model"]["vocab"].items()}
    by_id |= {number: entry["content"] for number, entry in added.items()}
    if max(by_id) >= rows:
        raise ArgumentError(
            f"the tokenizer's highest token is {max(by_id)}, the model has {rows} embeddings",
            place="--model_name_or_path",
            fix="give the folder its own tokenizer",
        )
    unknown = content["model"].get("unk_token")
    # Rows that padding or growth has added need names, each its own: llama.cpp refuses one twice.
    tokens = [by_id.get(row, f"[PAD{row}]") for row in range(rows)]
    kinds = [_kind(by_id.get(row), added.get(row), unknown) for row in range(rows)]
    return tokens, kinds


def _kind(token: str | None, added: dict[str, Any] | None, unknown: str | None) -> int:
    if token is None:
        return gguf.TokenType.UNUSED
    if token == unknown:
        return gguf.TokenType.UNKNOWN
    if added is not None:
        return gguf.TokenType.CONTROL if added.get("special") else gguf.TokenType.USER_DEFINED
    # <0x0A>: llama.cpp falls back on these for text that no token has.
    is_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
    return gguf.TokenType.BYTE if is_byte else gguf.TokenType.NORMAL


def _scores(model: dict[str, Any], tokens: list[str]) -> list[float]:
    """The score of each token: llama.cpp merges the pair with the highest first, so earlier merges score higher."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(model["merges"]):
        parts = pair.split(" ") if isinstance(pair, str) else pair
        # Several pairs may make one token: the earliest merge is the one that counts.
        ranks.setdefault("".join(parts), rank)
    lowest = len(model["merges"])
    return [-float(ranks.get(token, lowest)) for token in tokens]


def _begins_with_space(content: dict[str, Any]) -> bool:
    normalizer = content.get("normalizer") or {}
    steps = [normalizer, *normalizer.get("normalizers", [])]
    prepends = any(step.get("type") == "Prepend" for step in steps)
    spaces = [step for step in _flat(content.get("pre_tokenizer") or {}) if step["type"] == "Metaspace"]
    # Two generations of converted tokenizers: a normalizer that prepends, or Metaspace, which does unless told not to.
    return prepends or any(step.get("prepend_scheme", "always") != "never" for step in spaces)
