"""The tokenised records of a source: made or found in the cache, counted, divided, joined with others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from datasets import Dataset, concatenate_datasets

from hftune.arguments.data import DataArguments
from hftune.data.columns import parse_columns
from hftune.data.counts import Counts, all_dropped, describe_rewritten, describe_turn_tokens
from hftune.data.encoder import Encoder, default_workers, write_batches, write_tokenised
from hftune.data.files import Chunk, Row, RowOrError, chunks, first_rows, sampled_positions
from hftune.data.formats import describe_unread
from hftune.data.hub import data_files
from hftune.data.storage import cached, fingerprint
from hftune.distributed import ranks
from hftune.distributed.nodes import once_a_machine
from hftune.errors import ArgumentError, DataError
from hftune.logging import notice

MOST_REPEATS, MOST_REPEATED = 1_000, 100_000_000
"""How often `PATH#N` may repeat a record, and up to how many records it may repeat any."""


@dataclass
class TokenizedSource:
    """Tokenised records, and where they are from. `key` changes with all that changes them."""

    dataset: Dataset
    counts: Counts
    files: list[str]
    key: str


def load_source(
    path: str, flag: str, encoder: Encoder, data_args: DataArguments, *, limit: int = -1
) -> TokenizedSource:
    """The records of a file, a folder or a Hub name, tokenised, from the cache where they are there.

    Args:
        limit: Read so many records at most; -1 for all.

    Raises:
        DataError: A file or record that cannot be used, with file and line; or nothing left.
    """
    files = data_files(path, flag)
    # Before the first byte is read: what changes from here on is noticed.
    states = states_of(files)
    settings = record_settings(encoder, data_args)
    # The files of a machine are the same for all of its processes; one of them reads them.
    key = once_a_machine(partial(fingerprint, files, encoder.tokenizer, **settings, records=limit))
    # Processes on several machines have each read the files; with other keys they would train on other records.
    if len(set(ranks.gathered_objects(key))) > 1:
        raise changed(files)

    def check() -> None:
        # The key says what the files held before; what is stored under it must have been made of that.
        if states_of(files) != states:
            raise changed(files)

    names = [str(file) for file in files]
    read = partial(_chunks, files, limit)
    return cached_source(key, read, encoder, data_args, names, f"{flag} {path}", check)


def states_of(files: list[Path]) -> list[tuple[int, ...]]:
    """Of each file what changes when it is written or replaced."""
    try:
        found = [file.stat() for file in files]
    except OSError as error:
        raise changed(files) from error
    return [(stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev) for stat in found]


def changed(files: list[Path]) -> DataError:
    """The error of files that were written while they were read."""
    return DataError(
        "the data changed while they were read, nothing was kept of them",
        place=", ".join(str(file) for file in files[:5]) + (", ..." if len(files) > 5 else ""),
        fix="Let nothing write to the data of a run, and start it again.",
        kind="file changed",
    )


def record_settings(encoder: Encoder, data_args: DataArguments) -> dict[str, Any]:
    """What decides how records become rows, for the key of a cache."""
    return {"encoder": encoder.settings(), "on_bad_record": data_args.on_bad_record, "columns": data_args.columns}


def cached_source(
    key: str,
    read: Callable[[], Iterator[Chunk]],
    encoder: Encoder,
    data_args: DataArguments,
    files: list[str],
    named: str,
    check: Callable[[], None] = lambda: None,
) -> TokenizedSource:
    """Rows from the cache, written there first if they are not in it.

    Args:
        named: The flag and the value that gave the records, for errors.
        check: Looks at the files at both ends.
    """

    def write(folder: Path) -> Counts:
        check()  # while another process was waited for, they may have changed
        counts = write_tokenised(
            read(),
            encoder,
            folder,
            workers=data_args.preprocessing_num_workers or default_workers(),
            on_bad_record=data_args.on_bad_record,
            columns=parse_columns(data_args.columns),
            progress=ranks.is_main(),
        )
        if not counts.used:
            raise all_dropped(counts, encoder.length_flag, named)
        check()  # not before the last worker has read its last record
        return counts

    dataset, counts = cached(key, write, cache_dir=data_args.data_cache_dir, overwrite=data_args.overwrite_cache)
    for reason, example in counts.examples.items():
        notice(f"{counts.dropped[reason]} record(s) dropped: {reason} (first: {example})")
    if counts.bordered:
        notice(describe_turn_tokens(counts, str(encoder.settings()["borders_in_text"])))
    if counts.rewritten:
        notice(describe_rewritten(counts))
    for line in describe_unread(counts.unread):
        notice(line)
    return TokenizedSource(dataset, counts, files, key)


def _chunks(files: list[Path], limit: int) -> Iterator[Chunk]:
    return chunks(files) if limit < 0 else first_rows(chunks(files), limit)


# --- some of them ---------------------------------------------------------------------------------------------------


def split_source(part: TokenizedSource, percentage: float, seed: int) -> tuple[TokenizedSource, TokenizedSource]:
    """The part without some records drawn with `seed`, and those; all rows of a record are on one side."""
    starts = _record_starts(part.dataset)
    sides = hold_out(len(starts) - 1, percentage, seed)
    # Another row of the same conversation would show a model in training what is held out.
    kept, held = (
        select_records(part, [row for at in side for row in range(starts[at], starts[at + 1])]) for side in sides
    )
    # Read once: what was dropped, and what is known of all records together, is told of the training records.
    counts = Counts(rows=held.counts.used, used=held.counts.used)
    counts.tokens, counts.trained_tokens = held.counts.tokens, held.counts.trained_tokens
    rest = replace(kept.counts, rows=kept.counts.rows - held.counts.used)
    return replace(kept, counts=rest), replace(held, counts=counts)


def _record_starts(dataset: Dataset) -> list[int]:
    """Where each record's rows begin, and the end of the last one."""
    size = len(dataset)
    if "begins" not in dataset.column_names:  # other encoders make one row of each
        return [*range(size + 1)]
    begins = dataset.select_columns("begins").with_format("arrow")[:]["begins"].to_numpy()
    # Rows that were drawn may lack the first one of their record; they belong to the one before.
    return [0, *(1 + np.flatnonzero(begins[1:])).tolist(), size]


def hold_out(count: int, percentage: float, seed: int) -> tuple[list[int], list[int]]:
    """Positions of training and held-out records; at least one on each side, in their order in the files."""
    # A split of nothing would make the evaluation end in a division by 0.
    held = min(max(1, round(count * percentage / 100)), count - 1)
    # By the seed alone: a run that resumes must hold out the same records.
    drawn = set(random.Random(seed).sample(range(count), held))
    return [at for at in range(count) if at not in drawn], sorted(drawn)


Select = Callable[[TokenizedSource, Sequence[int] | np.ndarray], TokenizedSource]


def select_records(part: TokenizedSource, positions: Sequence[int] | np.ndarray) -> TokenizedSource:
    """Records by their positions, with counts of their own."""
    dataset = part.dataset.select(positions)
    counts = replace(
        part.counts, used=len(dataset), tokens=_sum(dataset, "length"), trained_tokens=_sum(dataset, "trained")
    )
    # Packed rows are cached under this key, so it must change with the choice and its order.
    key = xxhash.xxh3_128(part.key.encode() + np.asarray(positions, dtype=np.int64).tobytes()).hexdigest()
    return replace(part, dataset=dataset, counts=counts, key=key)


def limit_sources(
    parts: Sequence[TokenizedSource], limit: int, seed: int | None = None, select: Select = select_records
) -> list[TokenizedSource]:
    """At most `limit` records over all parts, -1 for all: the first ones, or with `seed` drawn from all of them."""
    sizes = [len(part.dataset) for part in parts]
    if limit <= 0 or limit >= sum(sizes):
        return list(parts)
    chosen = np.arange(limit) if seed is None else np.array(sampled_positions(sum(sizes), limit, seed))
    starts = np.cumsum([0, *sizes])
    shares = [chosen[(chosen >= start) & (chosen < end)] - start for start, end in pairwise(starts)]
    return [
        part if len(own) == size else select(part, own)
        for part, own, size in zip(parts, shares, sizes, strict=True)
        if len(own)
    ]


def draw_records(part: TokenizedSource, number: int | None, seed: int, named: str = "") -> TokenizedSource:
    """`number` records drawn with `seed`, in their order; more than there are repeats them. None for all.

    Args:
        named: The flag and the path before the number, for errors.

    Raises:
        DataError: Each would be repeated more often than anybody means; a list of them could fill the memory.
    """
    size = len(part.dataset)
    if number is None or number == size:
        return part
    if number > max(size, min(MOST_REPEATS * size, MOST_REPEATED)):
        raise DataError(
            f"{number:,} records of a source of {size:,}: each would be trained {number // size:,} times an epoch",
            place=f"{named}#{number}",
            fix="take fewer; --num_train_epochs, or --train_dataset_prob with --num_samples_each_epoch, repeat as well",
        )
    # Every record as often as any other, and some once more: repeats are even, never by chance.
    rounds, rest = divmod(number, size)
    drawn = np.array(sorted(random.Random(seed).sample(range(size), rest)), dtype=np.int64)
    return select_records(part, np.concatenate([np.tile(np.arange(size), rounds), drawn]))


def _sum(dataset: Dataset, column: str) -> int:
    """The sum of a column of numbers; 0 where there is none."""
    if column not in dataset.column_names:
        return 0
    values = dataset.select_columns(column).with_format("arrow")[:][column]
    return int(pc.sum(values).as_py() or 0)


# --- several of them ------------------------------------------------------------------------------------------------


def finished(parts: Sequence[TokenizedSource], encoder: Encoder, data_args: DataArguments) -> list[TokenizedSource]:
    """The parts of a split as the encoder finishes them together: which columns there are all of its records decide."""

    def keep(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Dataset:
        def write(folder: Path) -> Counts:
            write_batches(folder, schema, batches)
            return Counts()

        key = fingerprint([], encoder.tokenizer, **record_settings(encoder, data_args), of=[part.key for part in parts])
        return cached(key, write, cache_dir=data_args.data_cache_dir, overwrite=data_args.overwrite_cache)[0]

    if len(parts) == 1:
        return [replace(parts[0], dataset=encoder.finish(parts[0].dataset, keep))]
    whole = encoder.finish(concatenate_datasets([part.dataset for part in parts]), keep)
    ends = np.cumsum([0, *(len(part.dataset) for part in parts)]).tolist()
    # A range that begins behind the last row is refused, even without a row in it.
    return [
        replace(part, dataset=whole.select(range(begin, end) if begin < end else []))
        for part, (begin, end) in zip(parts, pairwise(ends), strict=True)
    ]


def concatenated(parts: Sequence[TokenizedSource]) -> TokenizedSource:
    """All records, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    counts = Counts()
    for part in parts:
        counts.add(part.counts)
    key = xxhash.xxh3_128("".join(part.key for part in parts).encode()).hexdigest()
    files = [file for part in parts for file in part.files]
    return TokenizedSource(concatenate_datasets([part.dataset for part in parts]), counts, files, key)


# --- --dummy_data: records for benchmarks, the same on every machine, of any number without a file --------------------

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
