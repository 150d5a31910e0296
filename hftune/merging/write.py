"""The merged model's files: which tensor lies where, and their bytes, written by several threads.

Headers are made before any weight is read, so that every thread knows where its bytes go. What no adapter changes is
copied by the kernel; what one changes passes through memory in blocks of rows, so that memory does not depend on the
model's size.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from hftune.errors import ArgumentError, ManifestError
from hftune.logging import get_logger, notice
from hftune.merging.changes import load_all, read_float
from hftune.merging.model_config import write_config
from hftune.merging.plan import Output, Plan
from hftune.merging.tensors import (
    DTYPES,
    FLOATS,
    as_rows,
    close_files,
    itemsize,
    open_file,
    raw,
    read_rows,
    scratch,
)
from hftune.on_demand import on_demand
from hftune.publishing.disk import free_bytes
from hftune.weight_files import INDEX_NAME, WEIGHTS_NAME, StoredTensor, divide, parse_size, stored_tensors

BLOCK_ELEMENTS = 1 << 20
"""Of a tensor that is folded: 4 MiB in float32, which stays in a core's cache."""
_COPY_BYTES = 1 << 26
_FLUSH_BYTES = 1 << 27
_MAX_WORKERS = 8
"""Threads. More only wait for the disk."""
_SPARE_BYTES = 1 << 24
"""For configs and tokenizer."""
_LINE_EVERY = 10.0
"""Seconds between lines of progress where there is no terminal."""


def write_model(plan: Plan, folder: Path, max_shard_size: str | None) -> int:
    """Weights and config into a folder; returns how many tensors the adapters changed.

    Raises:
        ManifestError: None was changed, or a merged weight is not finite.
        ArgumentError: The disk cannot hold them.
    """
    if plan.outputs is None:
        # Imports transformers and peft, which take seconds.
        changed = on_demand("hftune.merging.peft_model:write_with_peft")(plan, folder, max_shard_size)
    else:
        shards = lay_out(plan.outputs.tensors, max_shard_size)
        changed = _write_weights(folder, shards)
        write_index(folder, shards)
        _check_written(folder, shards)
        write_config(plan.inputs, plan.outputs, folder)
    if not changed:
        raise ManifestError(
            f"merging {plan.inputs.names} changes nothing: every weight would be that of the base",
            place="--peft_model_path",
            fix="was the adapter trained? its B matrices are zero, or it is too small for the dtype of the weights",
        )
    return changed


def _write_weights(folder: Path, shards: list[Shard]) -> int:
    total = sum(shard.nbytes for shard in shards)
    free = free_bytes(folder)
    if free < total + _SPARE_BYTES:
        raise ArgumentError(
            f"the merged model needs {total / 1e9:.2f} GB, the disk of {folder} has {free / 1e9:.2f} GB left",
            place="--output_dir",
            fix="make room, name a folder on another disk, or write a smaller dtype (--dtype bfloat16)",
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with closing(Progress(total)) as progress:
            results = write_shards(folder, shards, min(_MAX_WORKERS, cores), progress.advance)
    finally:
        # A second merge in this process may read other files under the same names.
        read_float.cache_clear()
        close_files()
    changed, same = results.count(True), results.count(False)
    if changed and same:
        notice(f"{same} of {changed + same} adapted tensors are the base's own after rounding")
    return changed


def _check_written(folder: Path, shards: list[Shard]) -> None:
    """What is on disk is what was planned: names, shapes and no tensor of size 0."""
    written = {name: stored.shape for name, stored in stored_tensors(folder).items()}
    planned = {output.name: output.shape for shard in shards for output in shard.tensors}
    assert written == planned, f"{folder} holds other tensors than were planned"
    assert all(0 not in shape for shape in written.values()), f"{folder} holds empty tensors"


class Progress:
    """How far a merge is: a bar on a terminal, a line every few seconds elsewhere.

    Args:
        total: Bytes that will be written.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done, self.last_line = total, 0, time.monotonic()
        self.bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=total, unit="B", unit_scale=True, desc="merging")

    def advance(self, count: int) -> None:
        """`count` more bytes are written."""
        self.done += count
        if self.bar is not None:
            self.bar.update(count)
        elif time.monotonic() - self.last_line > _LINE_EVERY:
            self.last_line = time.monotonic()
            share = self.done / max(self.total, 1)
            get_logger().info("merged %.1f of %.1f GB (%.0f%%)", self.done / 1e9, self.total / 1e9, 100 * share)

    def close(self) -> None:
        """The bar stays as it is."""
        if self.bar is not None:
            self.bar.close()


# --- which tensor lies where -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """One file and its tensors in the order of their bytes."""

    name: str
    tensors: list[Output]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(map(nbytes, self.tensors))


def nbytes(output: Output) -> int:
    """Bytes of a tensor as it is written."""
    return prod(output.shape) * itemsize(output.dtype)


def lay_out(tensors: list[Output], max_shard_size: str | None) -> list[Shard]:
    """Into files named and divided as the base's own, or into files of at most `max_shard_size`."""
    if max_shard_size is not None:
        by_name = {output.name: output for output in tensors}
        sizes = {output.name: nbytes(output) for output in tensors}
        divided = divide(sizes, parse_size(max_shard_size))
        return [Shard(file, [by_name[name] for name in names]) for file, names in divided.items()]
    files: dict[str, list[Output]] = {}
    file = WEIGHTS_NAME
    for output in tensors:
        # A new tensor (a head, a copy of the embeddings) stands behind the last of the old ones.
        file = file if output.new or output.source is None else output.source.file.name
        files.setdefault(file, []).append(output)
    if len(files) == 1:
        return [Shard(WEIGHTS_NAME, tensors)]
    return [Shard(name, found) for name, found in files.items()]


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
    # Sorted and indented as transformers writes it, so that the same merge gives the same bytes.
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


# --- their bytes -----------------------------------------------------------------------------------------------------


def write_shards(folder: Path, shards: list[Shard], workers: int, advance: Callable[[int], None]) -> list[bool | None]:
    """Write all files, durably; `advance` is told of every so many bytes.

    Returns:
        For each tensor, in no order, whether adapters changed it; None where no adapter is for it.

    Raises:
        ManifestError: A merged tensor is not finite.
    """
    files: list[int] = []
    results: list[bool | None] = []
    threads = torch.get_num_threads()
    # One thread of torch's in each worker: jobs are many, and their pools would fight for the cores.
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    flusher = ThreadPoolExecutor(1)
    flushes: list[Future[None]] = []
    try:
        jobs: dict[Future[bool | None], tuple[int, Output]] = {}
        for shard in shards:
            file, starts = _begin(folder / shard.name, shard)
            files.append(file)
            for output, start in zip(shard.tensors, starts, strict=True):
                jobs[pool.submit(_write_tensor, file, output, start)] = file, output
        unflushed = dict.fromkeys(files, 0)
        for job in as_completed(jobs):
            results.append(job.result())
            file, output = jobs[job]
            advance(nbytes(output))
            unflushed[file] += nbytes(output)
            if unflushed[file] > _FLUSH_BYTES:
                # The disk writes while the next tensors are computed; what is left at the end is little.
                flushes.append(flusher.submit(getattr(os, "fdatasync", os.fsync), file))
                unflushed[file] = 0
        flushes += [flusher.submit(os.fsync, file) for file in files]
        for flush in flushes:
            flush.result()  # Linux tells of an error of the disk once: the last flush may know nothing of it
    finally:
        pool.shutdown(cancel_futures=True)
        flusher.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # the workers' setting is the process's on some builds of torch
        for file in files:
            os.close(file)
    return results


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
    # O_EXCL: the folder is new, and a file or link that somebody else has put there is not written through.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    _write(file, memoryview(struct.pack("<Q", len(text)) + text), 0)
    data = 8 + len(text)
    os.truncate(file, data + offset)  # threads write anywhere in it, in any order
    return file, [data + start for start in offsets]


def _write_tensor(file: int, output: Output, start: int) -> bool | None:
    """Copy or compute a tensor; whether adapters changed it, None where no adapter is for it."""
    source = output.source
    if source is not None and output.where is None and source.dtype == output.dtype:
        _copy(source, file, start)
        return None
    apply = None if output.where is None else load_all(output.updates, output.where, output.shape)
    rows, columns = as_rows(output.shape)
    width = columns * itemsize(output.dtype)
    step = max(1, BLOCK_ELEMENTS // max(columns, 1))
    same = True
    for first in range(0, rows, step):
        count = min(step, rows - first)
        before = None if source is None else read_rows(source, first, count, reuse=True)
        # A copy in float32, which updates may overwrite.
        block = None if before is None else scratch("block", before.shape[0], columns, torch.float32).copy_(before)
        merged = apply(block, first, count) if apply else block
        assert merged is not None
        values = _round(merged, output)
        same = same and before is not None and torch.equal(values, before.to(values.dtype))
        _write(file, raw(values), start + first * width)
    return None if apply is None else not same


def _copy(source: StoredTensor, file: int, target: int) -> None:
    """Bytes from file to file, inside the kernel where it can."""
    descriptor, done = open_file(source.file), 0
    while done < source.nbytes:
        some = min(source.nbytes - done, _COPY_BYTES)
        try:
            copied = os.copy_file_range(descriptor, file, some, source.start + done, target + done)
        except (OSError, AttributeError):  # between file systems; on macOS
            copied = os.pwrite(file, os.pread(descriptor, min(some, 1 << 22), source.start + done), target + done)
        if not copied:
            raise ManifestError("a weight file of the base ends too early", fix="copy it again")
        done += copied


def _write(file: int, view: memoryview, position: int) -> None:
    while view:  # Linux writes 2 GiB at most in one call, and says how much it was
        done = os.pwrite(file, view, position)
        view, position = view[done:], position + done


def _round(merged: Tensor, output: Output) -> Tensor:
    """Rounded once to the dtype asked for.

    Raises:
        ManifestError: NaN, or a number that the dtype cannot hold.
    """
    values = scratch("round", merged.shape[0], merged.shape[1], DTYPES[output.dtype]).copy_(merged)
    # A finite sum has finite terms; a sum that is not may have overflowed, and is looked at more closely.
    if output.dtype not in FLOATS or math.isfinite(values.sum(dtype=torch.float32)):
        return values
    if not bool(torch.isfinite(values).all()):
        large = bool(torch.isfinite(merged).all())
        raise ManifestError(
            f"the merged {output.name} holds {'numbers too large for ' + output.dtype if large else 'NaN or infinity'}",
            fix="use --dtype bfloat16" if large else "the adapter (or the base) is broken; train it again",
        )
    return values
