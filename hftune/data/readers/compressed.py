"""Bytes of a file, decompressed where its name says so, a block at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from hftune.data.readers.base import is_compressed
from hftune.errors import DataError
from hftune.opening.files import open_file

BLOCK = 4 << 20
# Read at once of a compressed file; text becomes 3 to 10 times smaller.
_STORED = 1 << 20
# Bytes that zstd may look back: what `zstd --long=31` writes. The library refuses more than 128 MiB unasked.
_WINDOW = 1 << 31

DECODERS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".zst": lambda: zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj(),
}
"""What decompresses a member (gzip) or frame (zstd); both libraries decode them through the same calls."""
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
    """All members or frames, one after the other."""
    suffix = file.suffix.lower()
    decoder, begun = DECODERS[suffix](), False
    with open_file(file) as stream:
        while block := stream.read(_STORED):
            found = []
            while block:
                try:
                    found.append(decoder.decompress(block))
                except (zlib.error, zstandard.ZstdError) as error:
                    yield from filter(None, [b"".join(found)])
                    raise DecompressionError(file, str(error)) from error
                begun, block = True, b""
                if decoder.eof:
                    # gzip allows zeros behind a member; tapes and block devices leave them.
                    block = decoder.unused_data.lstrip(b"\0") if suffix == ".gz" else decoder.unused_data
                    decoder, begun = DECODERS[suffix](), False
            yield from filter(None, [b"".join(found)])
    # Neither library says so: a file that was cut simply gives no more bytes.
    if begun:
        raise DecompressionError(file, "it ends before its end marker; the file was cut")
