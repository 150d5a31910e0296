"""The bytes that each token of a tokenizer writes: what tokens of two vocabularies are compared by.

Pieces cannot be compared as they are spelled: a space is `Ġ` in one vocabulary and `▁` in another, and a character that
a vocabulary lacks is several tokens, each of some of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tokenizers import models
from transformers import PreTrainedTokenizerBase

from hftune.errors import ArgumentError
from hftune.opening.json_file import parse_json

END = b"\xff\xff"
"""What a token writes that ends an answer, in any vocabulary: bytes that no text has."""

SAMPLES = (
    "Hello world! It's 12345.67  (two  spaces),\n\n\tand a tab; don't STOP_here.",
    'def f(x):\n    return {"a": [1, 2]}  # ümlaut, café, ½ №',
    "中文的句子，没有空格。日本語のテキスト。한국어",
    "Здравствуй, мир! 🙂👩‍💻 مرحبا ∑∂ 𝔘",
)
"""Texts that a tokenizer has to write back byte for byte."""


def token_bytes(tokenizer: PreTrainedTokenizerBase, flag: str) -> list[bytes]:
    """What each token writes, by id; empty where no token has an id. The token that ends an answer writes `END`.

    Byte-level BPE and SentencePiece's kinds (BPE and Unigram, with tokens for single bytes) are known.

    Raises:
        ArgumentError: Naming the flag: a tokenizer of another kind, or one that loses something of a text.
    """
    if not tokenizer.is_fast:
        raise _refused(f"{type(tokenizer).__name__} has no tokenizer.json", flag)
    backend = tokenizer.backend_tokenizer
    own = backend.get_vocab(with_added_tokens=False)
    write = _writer(backend, flag)
    added = backend.get_added_tokens_decoder()
    written = [b""] * (max([*own.values(), *added]) + 1)
    for piece, index in own.items():
        # Some pieces are never written, as names of unused tokens in a vocabulary of bytes.
        written[index] = write(piece)
    for index, token in added.items():
        # Added tokens are spelled as text, but for those that only keep pieces of the vocabulary whole.
        if token.special or token.content not in own:
            written[index] = token.content.encode()
    _check(tokenizer, written, flag)
    end = end_of_answer(tokenizer)
    if end is not None:
        written[end] = END
    return written


def end_of_answer(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that ends an answer: the last one that the chat template writes behind it, else EOS."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    if tokenizer.chat_template:
        said = "HFTUNESAID"
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": said}]
        text = str(tokenizer.apply_chat_template(turns, tokenize=False))
        behind = tokenizer(text.rpartition(said)[2], add_special_tokens=False)["input_ids"]
        found = next((index for index in behind if index in added and added[index].content.strip()), None)
        if found is not None:
            return int(found)
    return None if tokenizer.eos_token_id is None else int(tokenizer.eos_token_id)


def _writer(backend: Any, flag: str) -> Callable[[str], bytes]:
    """What a piece of the vocabulary writes, by the steps of the decoder."""
    steps = list(_flat(parse_json(backend.decoder.__getstate__(), flag))) if backend.decoder else []
    kinds = {step["type"] for step in steps}
    if not isinstance(backend.model, (models.BPE, models.Unigram)) or kinds & {"BPEDecoder", "WordPiece", "CTC"}:
        raise _refused(f"its tokens ({type(backend.model).__name__}) do not say which bytes they write", flag)
    if "ByteLevel" in kinds:
        return _byte_level
    space = next((step["replacement"] for step in steps if step["type"] == "Metaspace"), None)
    replaced = {step["pattern"].get("String"): step["content"] for step in steps if step["type"] == "Replace"}
    space = space or next((mark for mark, text in replaced.items() if mark and text == " "), None)
    if space is None:
        raise _refused("its decoder does not say how it writes spaces", flag)

    def write(piece: str) -> bytes:
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes.fromhex(piece[3:5])
        return piece.replace(space, " ").encode()

    return write


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The steps of a decoder, one after the other."""
    if step["type"] == "Sequence":
        for part in step["decoders"]:
            yield from _flat(part)
    else:
        yield step


def _byte_table() -> dict[str, int]:
    """The byte that each character of byte-level pieces stands for, as GPT-2 wrote them."""
    # Printable characters of Latin-1 stand for themselves, all other bytes for those from 256 on.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_table()


def _byte_level(piece: str) -> bytes:
    known = [_BYTES.get(character) for character in piece]
    return piece.encode() if None in known else bytes(byte for byte in known if byte is not None)


def _check(tokenizer: PreTrainedTokenizerBase, written: list[bytes], flag: str) -> None:
    for sample in SAMPLES:
        ids = tokenizer.backend_tokenizer.encode(sample, add_special_tokens=False).ids
        found = joined(written, ids)
        # SentencePiece writes a space before the first word.
        if sample.encode() not in (found, found[1:] if found[:1] == b" " else found):
            raise _refused(
                f"it does not keep every text: {sample[:24]!r} becomes {found[:48].decode('utf-8', 'replace')!r}", flag
            )


def joined(written: list[bytes], ids: Iterable[int]) -> bytes:
    """What some tokens write together."""
    return b"".join([written[index] for index in ids])


def _refused(why: str, flag: str) -> ArgumentError:
    return ArgumentError(
        f"tokens of teacher and student cannot be aligned with this tokenizer: {why}",
        place=flag,
        fix="use models with byte-level BPE or with SentencePiece's tokens and a token for each byte, or a teacher "
        "with the student's own tokenizer",
    )
