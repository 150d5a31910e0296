"""Tokenizers made on the spot with the turn tokens and templates of two families, by two kinds of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hftune.constants import IGNORE_INDEX
from tests.unit.data.helpers import CORPUS

TOOL_TURNS = (
    "{% if tools %}{{ BEGIN_SYSTEM + (tools | tojson) + END }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ BEGIN_USER + m.content + END }}"
    "{% elif m.role == 'system' %}{{ BEGIN_SYSTEM + m.content + END }}"
    "{% elif m.role == 'tool' %}{{ BEGIN_TOOL + (m.name or '') + '\n' + m.content + END_TOOL }}"
    "{% else %}{{ BEGIN_ASSISTANT }}{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}"
    "{% endif %}{{ m.content }}{% for call in m.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) }}"
    "{{ '</tool_call>' }}"
    "{% endfor %}{{ END_ASSISTANT }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ BEGIN_ASSISTANT }}{% endif %}"
)
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>")


def _template(**texts: str) -> str:
    """The turns above with a family's borders."""
    sets = "".join(f"{{% set {name} = {text!r} %}}" for name, text in texts.items())
    return sets + TOOL_TURNS


def _named(begin: str, end: str, last: str | None = None) -> str:
    def opened(role: str) -> str:
        return begin.replace("ROLE", role)

    return _template(
        BEGIN_SYSTEM=opened("system"),
        BEGIN_USER=opened("user"),
        BEGIN_TOOL=opened("tool"),
        END_TOOL=end,
        BEGIN_ASSISTANT=opened("assistant"),
        END=end,
        END_ASSISTANT=last or end,
    )


FAMILIES: dict[str, tuple[str, tuple[str, ...], str | None, str]] = {
    # template, borders it writes, BOS, EOS
    "chatml": (_named("<|im_start|>ROLE\n", "<|im_end|>\n"), ("<|im_start|>", "<|im_end|>"), None, "<|endoftext|>"),
    "mistral": (
        "{{ bos_token }}"
        + _template(
            BEGIN_SYSTEM="[SYSTEM_PROMPT]",
            END="[/INST]",
            BEGIN_USER="[INST]",
            BEGIN_TOOL="[TOOL_RESULTS]",
            END_TOOL="[/TOOL_RESULTS]",
            BEGIN_ASSISTANT="",
            END_ASSISTANT="</s>",
        ),
        ("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        "<s>",
        "</s>",
    ),
}
KINDS = ("bytes", "pieces")
PAD = "<|pad|>"


def borders_of_family(family: str) -> set[str]:
    """All that is a border of it."""
    _, written, bos, eos = FAMILIES[family]
    return {*written, eos, PAD, *([bos] if bos else [])}


@cache
def family_tokenizer(family: str, kind: str = "bytes") -> PreTrainedTokenizerFast:
    """A family's tokenizer: byte-level BPE, or BPE of SentencePiece's kind (merges make "</s>", too)."""
    template, written, bos, eos = FAMILIES[family]
    special = ["<unk>", *dict.fromkeys([*([bos] if bos else []), eos, PAD, *written])]
    backend = {"bytes": _bytes, "pieces": _pieces}[kind](special)
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=eos, pad_token=PAD, unk_token="<unk>", **({"bos_token": bos} if bos else {})
    )
    tokenizer.chat_template = template
    return tokenizer


def _bytes(special: list[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _pieces(special: list[str]) -> Tokenizer:
    """As Llama 2's: special tokens stand in the vocabulary, and merges lead to them."""
    texts = sorted({*"".join(CORPUS), *"".join(special), *"abcdefghijklmnopqrstuvwxyz_/|<>[] ▁▂"} - {" "})
    vocabulary = {text: index for index, text in enumerate([*special, *(f"<0x{byte:02X}>" for byte in range(256))])}
    for text in texts:
        vocabulary.setdefault(text, len(vocabulary))
    merges: list[tuple[str, str]] = []
    for token in [*special[1:], "▁hello", "▁user"]:
        left = token[0]
        for character in token[1:]:
            if (left, character) not in merges:
                merges.append((left, character))
            left += character
            vocabulary.setdefault(left, len(vocabulary))
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return backend


def border_ids(tokenizer: PreTrainedTokenizerFast, family: str, ids: Sequence[int]) -> Counter[str]:
    """How often each border token is among some ids."""
    known = {tokenizer.convert_tokens_to_ids(token): token for token in borders_of_family(family)}
    return Counter(known[int(token)] for token in ids if int(token) in known)


def trained_runs(example: dict[str, Any]) -> list[list[int]]:
    """The runs of trained tokens."""
    runs: list[list[int]] = [[]]
    for token, label in zip(example["input_ids"], example["labels"], strict=True):
        if label != IGNORE_INDEX:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
