"""The merged model's safetensors files: which tensor lies where, and their bytes, written by several threads.

Headers are made before any weight is read, so that every thread knows where its bytes go. What no adapter changes is
copied by the kernel; what one changes passes through memory in blocks of rows. No file is mapped into memory.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import as_completed as completed
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from hftune.errors import ArgumentError, ManifestError
from hftune.merging.resolve import Output
from hftune.merging.tensors import DTYPES, FLOATS, as_rows, descriptor, itemsize, raw, read_rows, scratch
from hftune.weight_files import INDEX_NAME, WEIGHTS_NAME, StoredTensor

BLOCK_ELEMENTS = 1 << 20
_COPY_BYTES = 1 << 26
_FLUSH_BYTES = 1 << 27
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass
class Shard:
    """One file and its tensors in the order of their bytes."""

    name: str
    tensors: list[Output]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(nbytes(output) for output in self.tensors)


@dataclass
class Tally:
    """What happened to the tensors that adapters are for."""

    folded: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    """Tensors whose merged values are those of the base."""


def nbytes(output: Output) -> int:
    """Bytes of a tensor as it is written."""
    return prod(output.shape) * itemsize(output.dtype)


def parse_size(text: str) -> int:
    """`5GB`, `500MB` or `2GiB` in bytes.

    Raises:
        ArgumentError: Something else.
    """
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if text.upper().endswith(unit)), None)
    number = text[: -len(unit)].strip() if unit else text
    if not number.isdigit() or not int(number):
        raise ArgumentError(f"{text!r} is no size", place="--max_shard_size", fix="write 5GB, 500MB or 2GiB")
    return int(number) * (_UNITS[unit] if unit else 1)


def lay_out(tensors: list[Output], max_shard_size: str | None) -> list[Shard]:
    """Into the base's own files, or into files of a size of their own. What is new goes where the last tensor is."""
    if max_shard_size is None:
        files: dict[str, list[Output]] = {}
        name = WEIGHTS_NAME
        for output in tensors:
            # A new tensor (a head, a copy of the embeddings) stands behind the last of the old ones.
            name = name if output.new or output.source is None else output.source.file.name
            files.setdefault(name, []).append(output)
        if len(files) == 1:
            return [Shard(WEIGHTS_NAME, tensors)]
        return [Shard(name, found) for name, found in files.items()]
    return _split(tensors, parse_size(max_shard_size))


def _split(tensors: list[Output], limit: int) -> list[Shard]:
    groups: list[list[Output]] = [[]]
    size = 0
    for output in tensors:
        if groups[-1] and size + nbytes(output) > limit:
            groups.append([])
            size = 0
        groups[-1].append(output)
        size += nbytes(output)
    if len(groups) == 1:
        return [Shard(WEIGHTS_NAME, tensors)]
    stem = WEIGHTS_NAME.removesuffix(".safetensors")
    count = len(groups)
    return [Shard(f"{stem}-{n:05d}-of-{count:05d}.safetensors", group) for n, group in enumerate(groups, start=1)]


def write_index(folder: Path, shards: list[Shard]) -> None:
    """model.safetensors.index.json, where there is more than one file."""
    if len(shards) < 2:
        return
    tensors = [output for shard in shards for output in shard.tensors]
    where = {output.name: shard.name for shard in shards for output in shard.tensors}
    index = {
        "metadata": {
            "total_parameters": sum(prod(output.shape) for output in tensors),
            "total_size": sum(map(nbytes, tensors)),
        },
        "weight_map": dict(sorted(where.items())),
    }
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write_shards(folder: Path, shards: list[Shard], workers: int, advance: Callable[[int], None]) -> Tally:
    """Write all files; `advance` is told of every so many bytes.

    Raises:
        ManifestError: A merged tensor is not finite.
    """
    tally, files = Tally(), []
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    flusher = ThreadPoolExecutor(1)
    try:
        jobs: dict[Future[int], int] = {}
        for shard in shards:
            file, starts = _begin(folder / shard.name, shard)
            files.append(file)
            jobs |= {pool.submit(job): file for job in _jobs(file, shard, starts, tally)}
        waiting = dict.fromkeys(files, 0)
        for job in completed(jobs):
            advance(job.result())
            waiting[jobs[job]] += job.result()
            if waiting[jobs[job]] > _FLUSH_BYTES:
                # The disk writes while the next tensors are computed; what is left at the end is little.
                flusher.submit(getattr(os, "fdatasync", os.fsync), jobs[job])
                waiting[jobs[job]] = 0
        list(flusher.map(os.fsync, files))
    finally:
        pool.shutdown(cancel_futures=True)
        flusher.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
        for file in files:
            os.close(file)
    return tally


def _begin(path: Path, shard: Shard) -> tuple[int, list[int]]:
    """The file with its header, at its full size; and where each tensor starts."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset, offsets = 0, []
    for output in shard.tensors:
        end = offset + nbytes(output)
        header[output.name] = {"dtype": output.dtype, "shape": list(output.shape), "data_offsets": [offset, end]}
        offsets.append(offset)
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format's own padding: tensors start at a multiple of 8
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.pwrite(file, struct.pack("<Q", len(text)) + text, 0)
    data = 8 + len(text)
    os.truncate(file, data + offset)
    return file, [data + start for start in offsets]


def _jobs(file: int, shard: Shard, starts: list[int], tally: Tally) -> Iterator[Callable[[], int]]:
    """What threads do one by one: copy a run of unchanged bytes, or fold a tensor."""
    run: list[tuple[StoredTensor, int]] = []
    for output, start in zip(shard.tensors, starts, strict=True):
        if _is_copy(output):
            assert isinstance(output.source, StoredTensor)
            if run and not _continues(run[-1][0], output.source):
                yield _copy_job(file, run)
                run = []
            run.append((output.source, start))
        else:
            if run:
                yield _copy_job(file, run)
                run = []
            yield lambda output=output, start=start: _fold(file, output, start, tally)  # type: ignore[misc]
    if run:
        yield _copy_job(file, run)


def _is_copy(output: Output) -> bool:
    return output.change is None and isinstance(output.source, StoredTensor) and output.source.dtype == output.dtype


def _continues(before: StoredTensor, after: StoredTensor) -> bool:
    return before.file == after.file and before.start + before.nbytes == after.start


def _copy_job(file: int, run: list[tuple[StoredTensor, int]]) -> Callable[[], int]:
    first, target = run[0]
    length = sum(stored.nbytes for stored, _ in run)
    return lambda: _copy(descriptor(first.file), first.start, file, target, length)


def _copy(source: int, start: int, file: int, target: int, length: int) -> int:
    """Bytes from file to file, inside the kernel where it can (not between all file systems)."""
    done = 0
    while done < length:
        some = min(length - done, _COPY_BYTES)
        try:
            copied = os.copy_file_range(source, file, some, start + done, target + done)
        except (OSError, AttributeError):  # across file systems; on macOS
            copied = os.pwrite(file, os.pread(source, min(some, 1 << 22), start + done), target + done)
        if not copied:
            raise ManifestError("a weight file of the base ends too early", fix="copy it again")
        done += copied
    return length


def _fold(file: int, output: Output, start: int, tally: Tally) -> int:
    """Compute a tensor block by block and write it."""
    change = output.change.load() if output.change else None
    rows, columns = as_rows(output.shape)
    width = columns * itemsize(output.dtype)
    whole = not isinstance(output.source, StoredTensor | None) or (change is not None and change.whole)
    step = max(1, rows if whole else BLOCK_ELEMENTS // max(columns, 1))
    same = True
    for first in range(0, rows, step):
        count = min(step, rows - first)
        before = _source_rows(output, first, count)
        block = _as_float(before) if before is not None else None
        merged = change(block, first, count) if change else block
        assert merged is not None
        values = _cast(merged, output)
        same = same and before is not None and _equal(values, before)
        os.pwrite(file, raw(values), start + first * width)
    if change is not None:
        tally.folded.append(output.name)
        tally.same += [output.name] if same else []
    return nbytes(output)


def _source_rows(output: Output, first: int, count: int) -> Tensor | None:
    """The base's rows; None where the base has none of them, because they are new."""
    if output.source is None:
        return None
    if not isinstance(output.source, StoredTensor):
        return output.source.read().reshape(as_rows(output.source.shape))
    there = as_rows(output.source.shape)[0]
    if first == 0 and count > there and output.change is not None and output.change.load().whole:
        return read_rows(output.source)
    if first + count > there:
        # Grown embeddings are replaced as a whole, so nothing asks for the rows before.
        return None
    return read_rows(output.source, first, count, keep=False)


def _as_float(before: Tensor) -> Tensor:
    """A copy in float32, which updates may overwrite."""
    return scratch("block", before.shape[0], before.shape[1], torch.float32).copy_(before)


def _cast(merged: Tensor, output: Output) -> Tensor:
    """Rounded once to the dtype asked for.

    Raises:
        ManifestError: NaN, or a number that the dtype cannot hold.
    """
    values = scratch("cast", merged.shape[0], merged.shape[1], DTYPES[output.dtype]).copy_(merged)
    # A finite sum has finite terms; the rare other sum is looked at more closely.
    if output.dtype in FLOATS and not math.isfinite(values.sum(dtype=torch.float32)):
        _check_finite(values, merged, output)
    return values


def _check_finite(values: Tensor, merged: Tensor, output: Output) -> None:
    if bool(torch.isfinite(values).all()):
        return
    large = bool(torch.isfinite(merged).all())
    raise ManifestError(
        f"the merged {output.name} holds {'numbers too large for ' + output.dtype if large else 'NaN or infinity'}",
        fix="use --dtype bfloat16" if large else "the adapter (or the base) is broken; train it again",
    )


def _equal(values: Tensor, before: Tensor) -> bool:
    return torch.equal(values, before.to(values.dtype))
