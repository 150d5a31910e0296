"""Training and held-out records of a run: read, tokenised once a machine, counted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from datasets import Dataset

from hftune.arguments import DataArguments
from hftune.data.cache import cached, fingerprint
from hftune.data.encoding import Counts, all_dropped
from hftune.data.sources import Chunk, chunks, find_files, first_rows
from hftune.data.tokenised import Encoder, without_counts, write_tokenised
from hftune.data.workers import default_workers
from hftune.distributed import ranks
from hftune.logging import get_logger, notice


@dataclass
class Splits:
    """What a trainer is given, and what the manifest says of it (counts, files, fingerprint of each split)."""

    train: Dataset
    evaluation: Dataset | None
    about: dict[str, Any] = field(default_factory=dict)


@dataclass
class Part:
    """The tokenised records of a split, and where they are from."""

    dataset: Dataset
    counts: Counts
    files: list[Path]
    key: str


def load_splits(encoder: Encoder, data_args: DataArguments, *, seed: int) -> Splits:
    """Both splits, as `encoder` makes them.

    Held-out records come from `--validation_file_dir`, or are drawn with `seed` from the training records.

    Raises:
        DataError: A file or record that cannot be used, with file and line; or nothing left.
    """
    load = partial(_load, encoder=encoder, data_args=data_args)
    draws = data_args.validation_file_dir is None and data_args.validation_split_percentage > 0
    train = load(data_args.train_file_dir, "--train_file_dir", limit=-1 if draws else data_args.max_train_samples)
    parts = {"train": train}
    if draws:
        train_rows, held = hold_out(len(train.dataset), data_args.validation_split_percentage, seed)
        parts = {
            "train": _select(train, _first(train_rows, data_args.max_train_samples)),
            "eval": _select(train, _first(held, data_args.max_eval_samples)),
        }
    elif data_args.validation_file_dir:
        parts["eval"] = load(data_args.validation_file_dir, "--validation_file_dir", limit=data_args.max_eval_samples)
    about = {}
    for name, part in parts.items():
        origin = {"files": [str(file) for file in part.files], "fingerprint": part.key[:16]}
        about[name] = origin | part.counts.to_dict()
        get_logger().info("%s: %s", name, describe(part.counts))
    built = {name: without_counts(part.dataset) for name, part in parts.items()}
    return Splits(built["train"], built.get("eval"), about)


def _load(
    path: str | None,
    flag: str,
    *,
    limit: int,
    encoder: Encoder,
    data_args: DataArguments,
) -> Part:
    """The records at a path, tokenised, from the cache where they are there."""
    assert path is not None, "preflight asks for the flag"
    files = find_files(path, flag)
    settings = encoder.settings() | {"limit": limit, "on_bad_record": data_args.on_bad_record}
    key = fingerprint(files, encoder.tokenizer, **settings)
    write = partial(
        _write,
        read=partial(_chunks, files, limit),
        encoder=encoder,
        workers=data_args.preprocessing_num_workers or default_workers(),
        on_bad_record=data_args.on_bad_record,
    )
    dataset, counts = cached(key, write, cache_dir=data_args.data_cache_dir, overwrite=data_args.overwrite_cache)
    for reason, example in counts.examples.items():
        notice(f"{counts.dropped[reason]} record(s) dropped: {reason} (first: {example})")
    return Part(encoder.finish(dataset), counts, files, key)


def _chunks(files: list[Path], limit: int) -> Iterator[Chunk]:
    return first_rows(chunks(files), limit) if limit > 0 else chunks(files)


def _write(folder: Path, read: Any, encoder: Encoder, workers: int, on_bad_record: str) -> Counts:
    """Tokenise into a folder of the cache.

    Raises:
        DataError: A record that cannot be used, or none left.
    """
    counts = write_tokenised(
        read(), encoder, folder, workers=workers, on_bad_record=on_bad_record, progress=ranks.is_main()
    )
    if not counts.used:
        raise all_dropped(counts, encoder.length_flag)
    return counts


def hold_out(count: int, percentage: float, seed: int) -> tuple[list[int], list[int]]:
    """Positions of training and held-out records; at least one on each side, in their order in the files."""
    held = min(max(1, round(count * percentage / 100)), count - 1)
    drawn = set(random.Random(seed).sample(range(count), held))
    return [at for at in range(count) if at not in drawn], sorted(drawn)


def _first(positions: list[int], limit: int) -> list[int]:
    return positions[:limit] if limit > 0 else positions


def _select(part: Part, positions: list[int]) -> Part:
    """Some of the records, with counts of their own."""
    dataset = part.dataset.select(positions)
    counts = replace(
        part.counts, used=len(positions), tokens=_sum(dataset, "length"), trained_tokens=_sum(dataset, "trained")
    )
    return replace(part, dataset=dataset, counts=counts)


def _sum(dataset: Dataset, column: str) -> int:
    """The sum of a column of numbers; 0 where there is none."""
    if column not in dataset.column_names:
        return 0
    values = dataset.select_columns(column).with_format("arrow")[:][column]
    return int(pc.sum(values).as_py() or 0)


def describe(counts: Counts) -> str:
    """Counts in a line: rows read and used, what was dropped and why, truncated, tokens and the share trained."""
    parts = [f"{counts.rows} records read, {counts.used} used"]
    parts += [f"{number} dropped ({reason})" for reason, number in counts.dropped.items()]
    if counts.truncated:
        parts.append(f"{counts.truncated} truncated")
    if counts.tokens:
        parts.append(f"{counts.tokens} tokens, {100 * counts.trained_tokens / counts.tokens:.0f} % trained")
    return ", ".join(parts)
