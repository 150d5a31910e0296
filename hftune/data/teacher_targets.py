"""Records with the place at which the targets of each of their tokens are stored."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import xxhash
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.arguments.data import DataArguments
from hftune.arguments.distill import DistillArguments
from hftune.constants import IGNORE_INDEX, MANIFEST_NAME, TEACHER_ROWS
from hftune.data.counts import Counts
from hftune.data.encoder import lists_of, write_batches
from hftune.data.sources import TokenizedSource, select_records
from hftune.data.storage import cached, tokenizer_key
from hftune.errors import DataError, ManifestError
from hftune.logging import notice
from hftune.opening.files import unsafe_entry
from hftune.opening.model_files import read_checked
from hftune.opening.safetensors_file import map_arrays, read_safetensors_header

_AT_ONCE = 1024
"""Records in memory at a time."""


def trained_places(labels: np.ndarray) -> np.ndarray:
    """Which tokens of a record are predicted and trained, bool; the first has nothing before it to be predicted by."""
    found = labels != IGNORE_INDEX
    found[:1] = False
    return found


def record_hash(ids: np.ndarray, trained: np.ndarray) -> bytes:
    """Of one record: `ids` (tokens,) int32, `trained` (tokens,) bool; sixteen bytes."""
    # Ids first: the length of the mask follows from them, so that no two records share their bytes.
    return xxhash.xxh3_128(len(ids).to_bytes(8, "little") + ids.tobytes() + np.packbits(trained).tobytes()).digest()


def records(dataset: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Token ids (int32) and trained places (bool) of each record, read a thousand at a time."""
    columns = dataset.select_columns(["input_ids", "labels"]).with_format("arrow")
    for table in columns.iter(batch_size=_AT_ONCE):
        ids, labels = (_lists(table.column(name)) for name in ("input_ids", "labels"))
        yield from ((one, trained_places(label)) for one, label in zip(ids, labels, strict=True))


def _lists(column: pa.ChunkedArray) -> Iterator[np.ndarray]:
    for chunk in column.chunks:
        # `flatten` knows that a chunk may be a part of a larger buffer.
        values = chunk.flatten().to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
        yield from np.split(values, np.cumsum(chunk.value_lengths().to_numpy())[:-1]) if len(chunk) else ()


def hashes_of(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """(records, 2) uint64, the two halves of each record's hash; (records,) int64, its trained tokens."""
    digests, counts = bytearray(), np.zeros(len(dataset), dtype=np.int64)
    for number, (ids, trained) in enumerate(records(dataset)):
        digests += record_hash(ids, trained)
        counts[number] = trained.sum()
    return np.frombuffer(bytes(digests), dtype=">u8").reshape(-1, 2).astype("<u8"), counts


INDEX = "index.safetensors"
INDEX_KINDS = {"hashes": "U64", "places": "I64"}
SHARD_KINDS = {"ids": "I32", "log_probs": "F32"}
ABOUT = "targets"
"""The key of the manifest."""

FLAG = "--teacher_targets"
_FIX = "copy the folder again, or make it again with: hftune teach ... --output_dir FOLDER"
# Shards that are open: each holds a handle, of which a process may have 1024.
_OPEN = 128


def shard_name(number: int) -> str:
    """The file of a shard."""
    return f"targets-{number:05d}.safetensors"


class StoredTargets:
    """The targets of a folder.

    Attributes:
        about: What the manifest says of them: k, temperature, vocabulary (tokens that the distributions are over),
            tokens, shards, records, tokenizer (a digest), teacher (name and fingerprint).

    Its files are compared with the manifest before a run begins (`preflight.rules.folders`), not here.

    Raises:
        ManifestError: It is no such folder, or not finished.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.about = _about(self.folder)
        self.k, self.tokens = int(self.about["k"]), int(self.about["tokens"])
        index = map_arrays(self._file(INDEX), INDEX_KINDS)
        self.hashes, self.places = np.asarray(index["hashes"]), np.asarray(index["places"])
        headers = (read_safetensors_header(self._file(shard_name(at))) for at in range(self.about["shards"]))
        self.starts = np.cumsum([0, *(header.tensors["ids"]["shape"][0] for header in headers)])
        # One structure of both halves: NumPy searches in one dimension.
        self.keys = _as_keys(self.hashes)
        self.shard = functools.lru_cache(_OPEN)(self._shard)

    def places_of(self, hashes: np.ndarray) -> np.ndarray:
        """The place of the first trained token of each record, (records,) int64; -1 for one that is not there.

        Args:
            hashes: (records, 2) uint64, from `hashes_of`.
        """
        if not len(self.keys):
            return np.full(len(hashes), -1)
        wanted = _as_keys(hashes)
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[at] == wanted, self.places[at], -1)

    def take(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the teacher says of tokens by their places.

        Args:
            rows: (tokens,) int64; -1 for a token of which nothing is known.

        Returns:
            (tokens, k) int64 ids, -1 where nothing is known, and (tokens, k) float32 log-probabilities; on the CPU.
        """
        at = rows.cpu().numpy()
        ids = np.full((len(at), self.k), -1, dtype=np.int64)
        log_probs = np.zeros((len(at), self.k), dtype=np.float32)
        of = np.searchsorted(self.starts, at, side="right") - 1
        for number in np.unique(of[at >= 0]).tolist():
            here = of == number
            arrays = self.shard(number)
            ids[here] = arrays["ids"][at[here] - self.starts[number]]
            log_probs[here] = arrays["log_probs"][at[here] - self.starts[number]]
        return torch.from_numpy(ids), torch.from_numpy(log_probs)

    def _shard(self, number: int) -> dict[str, np.ndarray]:
        return map_arrays(self._file(shard_name(number)), SHARD_KINDS)

    def _file(self, name: str) -> Path:
        problem = unsafe_entry(self.folder / name, self.folder)
        if problem is not None:
            raise problem
        return self.folder / name


def _as_keys(hashes: np.ndarray) -> np.ndarray:
    """(records,) of both halves, in the order of the numbers that they make."""
    # Big-endian bytes compare as numbers do.
    return np.ascontiguousarray(hashes, dtype=">u8").view("S16").reshape(-1)


def _about(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST_NAME
    if not file.is_file():
        cause = f"{folder} holds no targets of a teacher (no {MANIFEST_NAME})"
        raise ManifestError(cause, place=FLAG, fix="make it with: hftune teach ... --output_dir FOLDER")
    manifest = read_checked(file, fix=_FIX)
    about = manifest.get(ABOUT)
    if manifest.get("stage") != "teach" or manifest.get("status") != "complete" or not isinstance(about, dict):
        cause = f"{folder} is no finished result of hftune teach"
        raise ManifestError(cause, place=FLAG, fix="make it with: hftune teach ... --output_dir FOLDER")
    return about


KIND = pa.list_(pa.int64())


def taught_source(
    tokenizer: PreTrainedTokenizerBase, args: DistillArguments, data_args: DataArguments, part: TokenizedSource
) -> TokenizedSource:
    """The records of a source with the column `teacher_rows`: of each token the place of its targets, -1 for none.

    Args:
        tokenizer: Of the records.
        args: `teacher_targets` names the folder; `drop_untaught` leaves out, and counts, records without targets.

    Raises:
        DataError: A record has no targets, with how many of how many; or they are of another tokenizer.
        ManifestError: The folder is damaged.
    """
    folder, drop = str(args.teacher_targets), args.drop_untaught
    stored = StoredTargets(folder)
    if stored.about["tokenizer"] != tokenizer_key(tokenizer):
        raise DataError(
            f"the targets in {folder} were computed with another tokenizer or chat template",
            place=FLAG,
            fix="give this run the tokenizer and the template arguments that hftune teach was given, or teach again",
        )
    hashes, counts = hashes_of(part.dataset)
    firsts = stored.places_of(hashes)
    missing = firsts < 0
    if missing.any():
        part, firsts = _without(part, firsts, missing, drop)
    if (firsts + counts[~missing] > stored.tokens).any():
        raise DataError(f"the targets in {folder} end within a record", place=FLAG, fix="make them again")

    def write(place: Path) -> Counts:
        schema = part.dataset.data.schema.remove_metadata().append(pa.field(TEACHER_ROWS, KIND))
        write_batches(place, schema, _with_rows(part.dataset, firsts, schema))
        return part.counts

    # By what is stored, not by the folder's name: another one may have taken its place.
    state = xxhash.xxh3_128(f"{part.key} teacher rows ".encode() + firsts.tobytes()).hexdigest()
    dataset, _ = cached(state, write, cache_dir=data_args.data_cache_dir, overwrite=data_args.overwrite_cache)
    return replace(part, dataset=dataset, key=state)


def _without(
    part: TokenizedSource, firsts: np.ndarray, missing: np.ndarray, drop: bool
) -> tuple[TokenizedSource, np.ndarray]:
    """The part without the records that have no targets."""
    number, first = int(missing.sum()), int(missing.argmax())
    files = ", ".join(part.files[:3]) + (", ..." if len(part.files) > 3 else "")
    said = f"{number} of {len(missing)} records have no stored targets (first: number {first + 1} of those used)"
    if not drop or missing.all():
        raise DataError(
            said,
            place=files or FLAG,
            fix="give hftune teach the same data, --max_length, template and masking arguments as this run"
            + ("" if missing.all() else "; or leave these records out with --drop_untaught"),
        )
    notice(f"{said}: left out (--drop_untaught)")
    kept = select_records(part, np.flatnonzero(~missing))
    dropped = {**kept.counts.dropped, "no stored targets": number}
    return replace(kept, counts=replace(kept.counts, dropped=dropped)), firsts[~missing]


def _with_rows(dataset: Dataset, firsts: np.ndarray, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records a thousand at a time, with their new column last."""
    seen = iter(zip(records(dataset), firsts.tolist(), strict=True))
    for table in dataset.with_format("arrow").iter(batch_size=_AT_ONCE):
        rows = [rows_of(trained, first) for (_, trained), first in islice(seen, len(table))]
        column = lists_of(np.concatenate(rows), [len(one) for one in rows], KIND)
        whole = table.combine_chunks().append_column(TEACHER_ROWS, column).cast(schema)
        yield from whole.to_batches()


def rows_of(trained: np.ndarray, first: int) -> np.ndarray:
    """(tokens,) int64: the places of a record's trained tokens, one after the other from `first`; -1 elsewhere."""
    return np.where(trained, first + np.cumsum(trained) - 1, -1)
