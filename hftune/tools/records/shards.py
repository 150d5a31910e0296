"""`hftune tokenize --shard K/N`: one of N parts of the records, made on any machine; `--join`: all of them as one.

The division is that of the readers: all records of a source are a row of chunks, whose borders files alone decide, and
part K takes the K-th of N equal ranges of them. Each part keeps the key that the whole has in the cache. Joining puts
the parts together under that key, and everything after it (held-out records, limits of a source, the index) is what
an undivided run does with an entry of its cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import hftune
from hftune.arguments.data import DataArguments
from hftune.data.readers.columns import check_columns, parse_columns
from hftune.data.readers.files import chunks
from hftune.data.readers.hub import data_files
from hftune.data.readers.specs import parse_sources
from hftune.data.sources import record_settings, watched
from hftune.data.storage.cache import cached, tokenizer_key
from hftune.data.tokenizing.counts import Counts, all_dropped
from hftune.data.tokenizing.encoder import Encoder, write_batches, write_tokenised
from hftune.data.tokenizing.workers import default_workers
from hftune.digests import contents, sealed
from hftune.errors import ArgumentError, DataError, UserError, raise_together, shown
from hftune.opening.json_file import parse_json
from hftune.tools.records.division import Shard
from hftune.tools.records.parts import AGAIN, INDEX, RECORDS, Part, damage_of, opened_part


@dataclass(frozen=True)
class Source:
    """Files that are tokenised in one go, and by what."""

    files: list[Path]
    encoder: Encoder
    data_args: DataArguments

    @cached_property
    def _watched(self) -> tuple[str, Callable[[bool], None]]:
        # Reads every byte of the files.
        return watched(self.files, self.encoder, self.data_args)

    @property
    def key(self) -> str:
        """What its records have in the cache as a key."""
        return self._watched[0]

    def check(self) -> None:
        """Refuse files that have changed since the key was made."""
        self._watched[1](True)

    def settings(self) -> dict[str, Any]:
        """What decides the records, as plain values."""
        plain = json.dumps(record_settings(self.encoder, self.data_args), default=str)
        settings: dict[str, Any] = parse_json(plain, "settings", finite=False)
        return settings.pop("encoder") | settings


def find_sources(encoders: dict[str, Encoder], data_args: DataArguments) -> list[Source]:
    """All that a run with these arguments tokenises.

    Raises:
        ArgumentError: Arguments of which there are no parts.
    """
    raise_together(_misfits(data_args))
    flag = "--dataset_name" if data_args.dataset_name else "--train_file_dir"
    given = [("train", flag, data_args.dataset_name or data_args.train_file_dir)]
    given += [("eval", "--validation_file_dir", data_args.validation_file_dir)]
    return [
        Source(data_files(spec.path, flag), encoders[split], data_args)
        for split, flag, text in given
        if text
        for spec in parse_sources(text, flag=flag)
    ]


def _misfits(data_args: DataArguments) -> Iterator[UserError]:
    for name in ("dummy_data", "streaming", "tokenized_dir"):
        if getattr(data_args, name):
            raise ArgumentError("parts are those of records in files", place=f"--{name}", fix="give --train_file_dir")
    for name in ("max_train_samples", "max_eval_samples"):
        if getattr(data_args, name) > 0:
            yield ArgumentError(
                "parts hold all records", place=f"--{name}", fix=f"give --{name} to the run that trains on them"
            )


def write_part(folder: Path, shard: Shard, sources: list[Source]) -> Counts:
    """Tokenise a part of each source into an empty folder, which the caller publishes.

    Returns:
        What became of the records of this part.

    Raises:
        DataError: A record that cannot be used, or files that change while they are read.
    """
    total, kept = Counts(), []
    # Two sources may be the same files (`a#500,a#20`).
    for number, source in enumerate({source.key: source for source in sources}.values()):
        into = folder / RECORDS / str(number)
        into.mkdir(parents=True)
        counts = _write(into, shard, source)
        source.check()
        total.add(counts)
        kept.append(
            {
                "key": source.key,
                "settings": source.settings(),
                "tokenizer": tokenizer_key(source.encoder.tokenizer),
                "counts": counts.to_dict(),
                "contents": contents(into),
            }
        )
    about = {"hftune": hftune.__version__, "part": shard.number, "of": shard.of, "sources": kept}
    (folder / INDEX).write_text(json.dumps(sealed(about), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return total


def _write(folder: Path, shard: Shard, source: Source) -> Counts:
    # Counted first: finding the borders of chunks is quick, and equal ranges need their number.
    begin, end = shard.range(sum(1 for _ in chunks(source.files)))
    return write_tokenised(
        islice(chunks(source.files), begin, end),
        source.encoder,
        folder,
        workers=source.data_args.preprocessing_num_workers or default_workers(),
        on_bad_record=source.data_args.on_bad_record,
        columns=parse_columns(source.data_args.columns),
        progress=True,
    )


def join_parts(folders: list[str], sources: list[Source]) -> None:
    """Put the sources into the cache, each made of its parts, where `load_source` finds them.

    Raises:
        DataError: A damaged part, one missing or twice, or parts of other records than those of this command.
        ArgumentError: `--columns` names what no record has.
    """
    parts = sorted((opened_part(Path(folder)) for folder in folders), key=lambda part: int(part.about["part"]))
    raise_together(_incomplete(parts))
    by_key = {source.key: source for source in sources}
    raise_together(_others(parts, by_key))
    joined = [_join(key, source, parts) for key, source in by_key.items()]
    columns = parse_columns(sources[0].data_args.columns)
    check_columns(columns, {name for counts in joined for name in counts.columns})


def _join(key: str, source: Source, parts: list[Part]) -> Counts:
    counts = Counts()
    for part in parts:
        part.check(key, source.encoder.schema, len(source.encoder.tokenizer))
        with damage_of(part.folder):
            counts.add(Counts(**part.source(key)["counts"]))
    if not counts.used:
        raise all_dropped(counts, source.encoder.length_flag, ", ".join(map(str, source.files[:3])))

    def write(folder: Path) -> Counts:
        write_batches(folder, source.encoder.schema, (batch for part in parts for batch in part.batches(key)))
        return counts

    cached(key, write, cache_dir=source.data_args.data_cache_dir, overwrite=source.data_args.overwrite_cache)
    return counts


def _incomplete(parts: list[Part]) -> Iterator[DataError]:
    """Parts that are missing, given twice or of another number."""
    divisions = sorted({part.about["of"] for part in parts})
    if len(divisions) > 1:
        which = "; ".join(f"{part.folder} is {part.about['part']}/{part.about['of']}" for part in parts)
        yield DataError(f"the parts are of several divisions: {which}", place="--join", fix="name those of one N")
        return
    of, folders = divisions[0], dict[int, list[str]]()
    for part in parts:
        folders.setdefault(part.about["part"], []).append(str(part.folder))
    for number, named in folders.items():
        if len(named) > 1:
            cause = f"part {number} of {of} is there twice: {' and '.join(named)}"
            yield DataError(cause, place="--join", fix="name one of them")
    if len(folders) < of:
        # What a part says of their number may be anything; those that are there are few.
        first = islice((number for number in range(1, of + 1) if number not in folders), 20)
        missing = ", ".join(map(str, first)) + (", ..." if of - len(folders) > 20 else "")
        cause = f"of {of} parts these are missing: {missing}"
        yield DataError(cause, place="--join", fix=f"name them, too; where there is none, {AGAIN}")


def _others(parts: list[Part], sources: dict[str, Source]) -> Iterator[DataError]:
    """Parts that are not of the records that this command would tokenise."""
    differing: dict[str, list[Part]] = {}
    for part in parts:
        if part.places().keys() != sources.keys():
            differing.setdefault(_difference(part, sources), []).append(part)
    for difference, found in differing.items():
        yield DataError(
            f"parts are of other records than this command reads: {difference}",
            place=", ".join(str(part.folder) for part in found[:5]) + (", ..." if len(found) > 5 else ""),
            fix=f"give the arguments that they were made with, or {AGAIN}",
        )


def _difference(part: Part, sources: dict[str, Source]) -> str:
    if part.about["hftune"] != hftune.__version__:
        return f"made by hftune {shown(part.about['hftune'])} (this is {hftune.__version__})"
    if len(part.about["sources"]) != len(sources):
        return f"{len(part.about['sources'])} source(s) of data (here: {len(sources)})"
    for made, source in zip(part.about["sources"], sources.values(), strict=True):
        if made["key"] == source.key:
            continue
        then, now = made["settings"], source.settings()
        differing = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if differing:
            return ", ".join(
                f"{shown(name)} {shown(then.get(name))} (here: {shown(now.get(name))})" for name in differing
            )
        if made["tokenizer"] != tokenizer_key(source.encoder.tokenizer):
            return "another tokenizer or chat template"
    return "other data, or other code of hftune"
