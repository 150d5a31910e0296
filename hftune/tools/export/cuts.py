"""How llama.cpp is told to cut text into words: by the regular expression in `tokenizer.json`.

Its converter knows tokenizers by a digest, and so none that was trained, or extended, by a user.
"""

from __future__ import annotations

from typing import Any

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


def cut_of(content: dict[str, Any]) -> str | None:
    """llama.cpp's name for the pre-tokenizer of a byte-level tokenizer; None for one that is not known here.

    Args:
        content: Of `tokenizer.json`.
    """
    steps = _flat(content.get("pre_tokenizer") or {})
    kinds = [step["type"] for step in steps]
    last = steps[-1] if steps else {}
    if not kinds or kinds[-1] != "ByteLevel" or last.get("add_prefix_space"):
        return None
    # ByteLevel cuts by GPT-2's expression itself unless told not to; with another one before it that would cut twice.
    whole = last.get("use_regex", True)
    if kinds == ["ByteLevel"] and whole:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and whole and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and not whole:
        pattern = steps[0]["pattern"].get("Regex", "")
        name = CUTS.get(pattern)
        # The same cut, without Llama 3's rule that a whole word needs no merges.
        return "dbrx" if name == "llama-bpe" and not content["model"].get("ignore_merges") else name
    return None


def _flat(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step.get("type") == "Sequence":
        return [inner for part in step["pretokenizers"] for inner in _flat(part)]
    return [step] if step else []
