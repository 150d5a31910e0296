"""Bytes of a file, decompressed where its name says so, a block at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import zstandard

from hftune.data.readers.base import is_compressed
from hftune.errors import DataError
from hftune.opening.files import open_file

BLOCK = 4 << 20
# Read at once. Of gzip a byte can stand for 1,000, so these for 64 MiB; of zstd for 32,000.
_COMPRESSED_BLOCK = {".gz": 64 << 10, ".zst": 4 << 10}
# Bytes that zstd may look back, as the library limits it; `zstd --long=31` writes 2 GiB, which are kept in memory.
_WINDOW = 1 << 27
_MAX_WINDOW = 1 << 31
# A file that is small against its window gains nothing by it, and only wants memory.
_WINDOW_A_BYTE = 16


def _gzip(size: int) -> Any:
    return zlib.decompressobj(wbits=31)


def _zstd(size: int) -> Any:
    # The library refuses more than 128 MiB unasked. More is allowed where the file is large enough to have used it,
    # and this machine has twice as much free.
    window = min(_MAX_WINDOW, size * _WINDOW_A_BYTE, psutil.virtual_memory().available // 2)
    return zstandard.ZstdDecompressor(max_window_size=max(_WINDOW, window)).decompressobj()


DECODERS: dict[str, Callable[[int], Any]] = {".gz": _gzip, ".zst": _zstd}
"""What decompresses a file of so many bytes."""
_NAMES = {".gz": "gzip", ".zst": "zstd"}


class DecompressionError(Exception):
    """The compressed file cannot be read any further."""

    def __init__(self, file: Path, cause: str) -> None:
        self.file, self.cause = file, f"damaged {_NAMES[file.suffix.lower()]} file: {cause}"
        super().__init__(self.cause)

    def from_line(self, line: int) -> DataError:
        """The error for records whose first lost one would begin on this line."""
        return DataError(
            f"{self.cause}; all records from line {line} on are lost",
            place=f"{self.file}:{line}",
            fix="Compress or copy the file again.",
            kind="damaged file",
        )


def read_blocks(file: Path) -> Iterator[bytes]:
    """The plain bytes of a file in blocks of some megabytes, never empty.

    Raises:
        DecompressionError: After all that can be decompressed was given.
        OSError: From the system.
    """
    if is_compressed(file):
        yield from _decompressed(file)
        return
    with open_file(file) as stream:
        while block := stream.read(BLOCK):
            yield block


def _decompressed(file: Path) -> Iterator[bytes]:
    """All members (gzip) or frames (zstd), one after the other; both libraries decode them through the same calls."""
    suffix, size = file.suffix.lower(), file.stat().st_size
    decoder, begun = DECODERS[suffix](size), False
    held: list[bytes] = []
    with open_file(file) as stream:
        # Small blocks: what they stand for is in memory before anybody can look at its size.
        while block := stream.read(_COMPRESSED_BLOCK[suffix]):
            while block:
                try:
                    # Collected up to a block: a million short members would else be a million blocks.
                    held.append(decoder.decompress(block))
                except (zlib.error, zstandard.ZstdError) as error:
                    yield from _joined(held)
                    raise DecompressionError(file, str(error)) from error
                begun = True
                block = b""
                if decoder.eof:
                    # gzip allows zeros behind a member; tapes and block devices leave them.
                    block = decoder.unused_data.lstrip(b"\0") if suffix == ".gz" else decoder.unused_data
                    decoder, begun = DECODERS[suffix](size), False
            if sum(map(len, held)) >= BLOCK:
                yield from _joined(held)
    yield from _joined(held)
    # Neither library says so: a file that was cut simply gives no more bytes.
    if begun:
        raise DecompressionError(file, "it ends before its end marker; the file was cut")


def _joined(held: list[bytes]) -> Iterator[bytes]:
    """What is held, as one block if there is any; nothing is held afterwards."""
    whole = b"".join(held)
    held.clear()
    for start in range(0, len(whole), BLOCK):
        yield whole[start : start + BLOCK]
