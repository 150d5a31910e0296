"""Where a byte-level tokenizer is sure to end a word: behind a letter, before a space or a common punctuation mark.

The words of both sides of such a border are those of the whole text, so either side can be tokenised on its own. That
it holds for a tokenizer is not tried out but known from the regular expressions that cut its words.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase

_STOPS = frozenset(" \n,.;:!?，。；：！？、")
# Letters in every version of Unicode that a tokenizer may know.
_LETTERS = r"A-Za-zÀ-ÖØ-öø-ƿА-яぁ-ゖァ-ヺ一-龥가-힣"
_LETTER = re.compile(f"[{_LETTERS}]")
_BORDER = re.compile(f"[{_LETTERS}][{''.join(_STOPS)}]")
_BACK, _AHEAD = 256, 1024
"""Characters in which a border is looked for."""

# Alternatives of the regular expressions of GPT-2, Llama 3, Qwen 2 to 3.5, gpt-oss (o200k), Mistral (Tekken) and
# DeepSeek V3, from their tokenizer.json. None matches a letter with one of `_STOPS` behind it, and none looks behind.
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FIRST = r"[^\r\n\p{L}\p{N}]?"
_OF_LETTERS = frozenset(
    (
        *(r" ?\p{L}+", rf"{_FIRST}\p{{L}}+", rf"{_FIRST}[\p{{L}}\p{{M}}]+"),
        *(f"{_FIRST}{_UPPER}*{_LOWER}+{ending}" for ending in ("", f"{_ENDINGS}?")),
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    )
)
_OTHERS = frozenset(
    (
        *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", _ENDINGS),
        *(f"{_FIRST}{_UPPER}+{_LOWER}*{ending}" for ending in ("", f"{_ENDINGS}?")),
        *(r"\p{N}", r" ?\p{N}+", r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+"),
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
        *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
        *(r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r" ?[\p{P}\p{S}]+[\r\n]*"),
        *(r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"),
    )
)


def nearest_border(text: str, goal: int, after: int) -> int | None:
    """A sure border near `goal`, behind `after`; the end of a text that ends before the goal, None for none near.

    One before the goal is taken first.
    """
    if goal >= len(text):
        return len(text)
    for index in range(goal, max(after, goal - _BACK), -1):
        if text[index] in _STOPS and _LETTER.match(text[index - 1]):
            return index
    found = _BORDER.search(text, max(goal, after), goal + _AHEAD)
    return found.end() - 1 if found else None


def has_borders(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether this tokenizer ends words at all borders of this kind.

    It must cut words as the tokenizers do that are known here, add nothing in front of a text, and have no added token
    with a border inside, or one that takes in what stands beside it.
    """
    added = tokenizer.added_tokens_decoder.values()
    if any(token.lstrip or token.rstrip or token.single_word or _BORDER.search(token.content) for token in added):
        return False
    cutter = tokenizer.backend_tokenizer.pre_tokenizer
    is_sequence = isinstance(cutter, pre_tokenizers.Sequence)
    steps: list[Any] = [*cutter] if is_sequence else [cutter]  # type: ignore[misc]  # its stub lacks __getitem__
    # Any other kind, such as one written in Python, may do what it likes.
    known = (pre_tokenizers.ByteLevel, pre_tokenizers.Digits, pre_tokenizers.Split)
    if not all(isinstance(step, known) for step in steps):
        return False
    parts = [_alternatives(json.loads(step.__getstate__())) for step in steps]
    if not any(isinstance(step, pre_tokenizers.ByteLevel) for step in steps):
        return False
    if any(part is None or not part <= _OF_LETTERS | _OTHERS for part in parts):
        return False
    return any(part and not _OF_LETTERS.isdisjoint(part) for part in parts)


def _alternatives(state: dict[str, Any]) -> set[str] | None:
    """What the words are that a part of the pre-tokenizer cuts; None for one that is not known."""
    kind = state["type"]
    if kind == "ByteLevel" and not state["add_prefix_space"]:
        return {r" ?\p{L}+"} if state["use_regex"] else set()
    if kind == "Digits":
        return {r"\p{N}"}
    isolated = (state.get("behavior"), state.get("invert")) in (("Isolated", False), ("Removed", True))
    if kind == "Split" and isolated and "Regex" in state["pattern"]:
        return set(_divided(state["pattern"]["Regex"]))
    return None


def _divided(pattern: str) -> list[str]:
    """The alternatives of a regular expression: cut at each | outside of brackets."""
    found, depth, in_class = [""], 0, False
    for piece in re.findall(r"\\.|.", pattern, re.DOTALL):
        if piece == "|" and not depth and not in_class:
            found.append("")
            continue
        depth += 0 if in_class else (piece == "(") - (piece == ")")
        in_class = piece == "[" or (in_class and piece != "]")
        found[-1] += piece
    return found


def is_composed(text: str) -> bool:
    """Whether a normalizer to NFC leaves a text as it is."""
    return unicodedata.is_normalized("NFC", text)
