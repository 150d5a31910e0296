"""The text of records in any format that the scripts read: what a tokenizer learns from, and what it is measured on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from hftune.data.readers.base import Row
from hftune.data.readers.files import chunks, find_files
from hftune.data.readers.specs import parse_sources
from hftune.data.records.conversations import to_conversation
from hftune.data.records.formats import is_labelled, pair_format
from hftune.data.records.labelled import to_labelled
from hftune.data.records.preferences import to_preference
from hftune.data.records.texts import to_text
from hftune.errors import DataError
from hftune.logging import notice

HELD_OUT = 20
"""One record of so many is kept for the figures where no held-out text is named."""


def read_corpus(given: str, held_out: str | None, max_characters: int) -> tuple[list[str], list[str]]:
    """Texts to learn from, and texts to measure on.

    Args:
        given: As `--train_file_dir`: files or folders, several with commas between.
        held_out: As `--validation_file_dir`; without it every 20th record of `given` is held out.
        max_characters: Of the texts to learn from. Of a larger corpus every second, fourth, ... record is taken.

    Raises:
        DataError: A record that cannot be read, with its place.
    """
    if held_out is not None:
        evaluation = _thinned(iterate_texts(held_out, "--validation_file_dir"), max_characters)
        return _thinned(iterate_texts(given, "--train_file_dir"), max_characters), evaluation
    texts = _thinned(iterate_texts(given, "--train_file_dir"), max_characters)
    if len(texts) < HELD_OUT:
        notice("fewer than 20 records: the figures are those of the corpus itself")
        return texts, texts
    kept = [text for number, text in enumerate(texts) if number % HELD_OUT != HELD_OUT - 1]
    # Spread over the corpus: its files may differ in kind.
    return kept, texts[HELD_OUT - 1 :: HELD_OUT]


def iterate_texts(given: str, flag: str) -> Iterator[str]:
    """The texts of the records of some sources, in order."""
    for spec in parse_sources(given, flag=flag):
        files: list[Path] = find_files(spec.path, flag)
        left = spec.take
        for read in (read for chunk in chunks(files) for read in chunk.rows()):
            if isinstance(read, DataError):
                raise read
            if left == 0:
                break
            yield text_of_record(read)
            left = None if left is None else left - 1


def text_of_record(row: Row) -> str:
    """The text of a record, a line a turn; of a preference pair the chosen answer.

    Raises:
        DataError: It is in no format that a script reads.
    """
    value = row.value
    # Pairs first: their prompt alone would pass for a conversation.
    if pair_format(value):
        pair = to_preference(row)
        messages = [*pair.prompt, *pair.chosen]
    elif is_labelled(value):
        labelled = to_labelled(row)
        messages = [*labelled.prompt, *labelled.completion]
    elif value.get("text") is not None or value.get("content") is not None:
        return to_text(row)
    else:
        messages = to_conversation(row).messages
    return "\n".join(str(message.get("content") or "") for message in messages)


def tokens_per_character(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> float:
    """The number of tokens of all texts, without special ones, over that of their characters."""
    tokens = sum(
        len(encoding) for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    )
    return tokens / max(1, sum(map(len, texts)))


def _thinned(texts: Iterator[str], limit: int) -> list[str]:
    """Texts of at most about `limit` characters, spread evenly: whenever they are too many, every second is dropped."""
    kept: list[str] = []
    held, stride = 0, 1
    # While reading: a corpus that is larger than memory is never held whole.
    for number, text in enumerate(texts):
        if number % stride:
            continue
        kept.append(text)
        held += len(text)
        while held > limit and len(kept) > 1:
            # What is left are the multiples of the doubled stride, which the records to come are measured by as well.
            kept = kept[::2]
            held, stride = sum(map(len, kept)), stride * 2
    if stride > 1:
        notice(f"of the corpus every {stride}th record is used, {held} characters (--max_characters {limit})")
    return kept
