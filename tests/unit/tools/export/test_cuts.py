"""How llama.cpp is told to cut text."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.tools.export.gguf import CUTS, cut_of

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
SPLIT_BYTES = BYTES | {"use_regex": False}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


LLAMA3 = next(pattern for pattern, name in CUTS.items() if name == "llama-bpe")
QWEN2 = next(pattern for pattern, name in CUTS.items() if name == "qwen2")


@pytest.mark.parametrize(
    "steps, model, name",
    [
        (BYTES, {}, "gpt-2"),
        (sequence({"type": "Digits", "individual_digits": True}, BYTES), {}, "smollm"),
        (sequence(split(LLAMA3), SPLIT_BYTES), {"ignore_merges": True}, "llama-bpe"),
        (sequence(split(LLAMA3), SPLIT_BYTES), {"ignore_merges": False}, "dbrx"),
        (sequence(split(QWEN2), SPLIT_BYTES), {}, "qwen2"),
    ],
)
def test_known_cuts(steps: dict[str, Any], model: dict[str, Any], name: str) -> None:
    assert cut_of({"pre_tokenizer": steps, "model": model}) == name


def test_patterns_are_those_of_the_tokenizers() -> None:
    """As `tokenizer.json` of Qwen2 and Llama 3 spell them."""
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
    rest = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    assert words + r"|\p{N}" + rest == QWEN2
    assert words + r"|\p{N}{1,3}" + rest == LLAMA3


@pytest.mark.parametrize(
    "steps",
    [
        None,
        {"type": "Whitespace"},
        BYTES | {"add_prefix_space": True},
        sequence(split("[a-z]+"), SPLIT_BYTES),
        sequence({"type": "Digits", "individual_digits": False}, BYTES),
    ],
)
def test_unknown_cuts_have_no_name(steps: dict[str, Any] | None) -> None:
    assert cut_of({"pre_tokenizer": steps, "model": {}}) is None
