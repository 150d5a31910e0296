"""Numbers that cost time or memory and change no result: each of the size that it is meant to have."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

KIB, MIB = 1 << 10, 1 << 20
SIZES: list[tuple[str, str, float, float]] = [
    # What is in memory at once: some megabytes in caches, a hundred or so where a disk or a GPU is kept busy.
    ("hftune.merging.write", "BLOCK_ELEMENTS", MIB / 4, 4 * MIB),
    ("hftune.merging.write", "_COPY_BYTES", 16 * MIB, 256 * MIB),
    ("hftune.merging.write", "_FLUSH_BYTES", 32 * MIB, 512 * MIB),
    ("hftune.merging.write", "_SPARE_BYTES", 4 * MIB, 64 * MIB),
    ("hftune.merging.tensors", "_SCRATCH_BYTES", 4 * MIB, 64 * MIB),
    ("hftune.models.kernels.chunked_heads", "CHUNK_BYTES.cpu", 8 * MIB, 128 * MIB),
    ("hftune.models.kernels.chunked_heads", "CHUNK_BYTES.cuda", 64 * MIB, 1024 * MIB),
    ("hftune.models.kernels.chunked_heads", "KEPT_BYTES", 64 * MIB, 1024 * MIB),
    ("hftune.data.packing.rows", "TOKENS_AT_ONCE", MIB / 4, 4 * MIB),
    ("hftune.digests", "_CHUNK", MIB, 16 * MIB),
    # What may be read of a file that somebody else has written.
    ("hftune.digests", "_MAX_TEXT", 16 * MIB, 256 * MIB),
    ("hftune.secrets", "_SAVED_BYTES", 16 * KIB, 256 * KIB),
    ("hftune.publishing.uploads", "_LARGEST_TEXT", MIB, 16 * MIB),
    ("hftune.checkpoints.engine_folder", "_TAG_LIMIT", KIB, 16 * KIB),
    # Threads, and seconds that somebody waits.
    ("hftune.merging.write", "_MAX_WORKERS", 4, 16),
    ("hftune.merging.write", "_LINE_EVERY", 5, 30),
    ("hftune.digests", "_THREADS", 4, 16),
    ("hftune.publishing.locks", "LOCK_SECONDS", 1, 10),
    ("hftune.publishing.locks", "OUTPUT_SECONDS", 5, 30),
    ("hftune.publishing.places", "SECONDS_BETWEEN_ATTEMPTS", 0.01, 0.2),
    # Tokens of made-up documents, and what a proof lets pass: below what a mask that leaks does.
    ("hftune.trainers.packing_isolation", "INT8", 0.02, 0.09),
]


@pytest.mark.parametrize(("module", "name", "least", "most"), SIZES, ids=[f"{one[0]}.{one[1]}" for one in SIZES])
def test_of_its_size(module: str, name: str, least: float, most: float) -> None:
    first, _, key = name.partition(".")
    value: Any = getattr(importlib.import_module(module), first)
    assert least <= (value[key] if key else value) <= most
