"""`--dummy_data`: records for benchmarks, the same on every machine, of any number without a file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from hftune.arguments.data import DataArguments
from hftune.data.encoder import Encoder
from hftune.data.files import Chunk, Row, RowOrError
from hftune.data.sources import TokenizedSource, cached_source, record_settings
from hftune.data.storage import fingerprint
from hftune.errors import ArgumentError

KINDS = ("text", "conversation", "preference", "prompt", "labelled")
"""What a generated record is for: run_pt, run_sft, run_rm and run_dpo, run_rl, KTO."""

FILE = "dummy_data"
"""What generated rows give as their file."""

_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "时间 世界 学校 国家 问题 工作 数据 模型 训练 语言"
)
_WORDS = _VOCABULARY.split()


def generated_source(encoder: Encoder, data_args: DataArguments) -> TokenizedSource:
    """`--dummy_data` records."""
    assert data_args.dummy_data is not None
    kind = encoder.dummy_kind
    key = fingerprint(
        [], encoder.tokenizer, **record_settings(encoder, data_args), records=[data_args.dummy_data, kind]
    )
    read = partial(dummy_chunks, data_args.dummy_data, kind)
    return cached_source(key, read, encoder, data_args, [FILE], "--dummy_data")


@dataclass(frozen=True, slots=True)
class DummyRecords(Chunk):
    """Records `first` (1-based) to `first + count - 1` of one kind."""

    first: int
    count: int
    kind: str
    words: int
    file: str = FILE

    def rows(self) -> Iterator[RowOrError]:
        """Make them; a record depends on nothing but its number, its kind and `words`."""
        for number in range(self.first, self.first + self.count):
            yield Row(_record(number, self.kind, self.words), self.file, number)


def dummy_chunks(count: int, kind: str, *, words: int = 200, rows_per_chunk: int = 256) -> Iterator[Chunk]:
    """`count` generated records as chunks.

    Args:
        kind: One of `KINDS`.
        words: Words of a text or an answer on average; a record has between half and one and a half times as many.

    Raises:
        ArgumentError: Fewer than one record.
    """
    assert kind in KINDS, kind
    if count < 1:
        raise ArgumentError(f"{count} generated records", place="--dummy_data", fix="Give 1 or more.")
    for first in range(1, count + 1, rows_per_chunk):
        yield DummyRecords(first, min(rows_per_chunk, count + 1 - first), kind, words)


def _record(number: int, kind: str, words: int) -> dict[str, Any]:
    # Seeded by the number alone: any worker makes the same record, and a longer data set begins with a shorter one.
    source = random.Random(number)
    question = {"role": "user", "content": f"{number}: {_text(source, max(1, words // 8))}?"}
    if kind == "text":
        return {"text": f"{number}: {_text(source, words)}"}
    if kind == "prompt":
        return {"prompt": [question], "answer": source.choice(_WORDS)}
    # A number at the end of each answer keeps two of them from being equal.
    answers = [{"role": "assistant", "content": f"{_text(source, words)} {index}."} for index in range(2)]
    if kind == "preference":
        return {"prompt": [question], "chosen": answers[:1], "rejected": answers[1:]}
    if kind == "labelled":
        return {"prompt": [question], "completion": answers[:1], "label": number % 2 == 1}
    more = {"role": "user", "content": f"{_text(source, max(1, words // 8))}?"}
    return {"messages": [question, answers[0], more, answers[1]]}


def _text(source: random.Random, words: int) -> str:
    return " ".join(source.choices(_WORDS, k=source.randint(max(1, words // 2), max(1, words * 3 // 2))))
