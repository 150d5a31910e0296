"""Bytes of a file, decompressed where its name says so, a block at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from hftune.errors import DataError

BLOCK = 4 << 20
_COMPRESSED_BLOCK = 256 << 10
_MAX_WINDOW = 1 << 31  # what `zstd --long=31` writes; the library's own limit is 128 MB


def _gzip() -> Any:
    return zlib.decompressobj(wbits=31)


def _zstd() -> Any:
    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()


DECODERS: dict[str, Callable[[], Any]] = {".gz": _gzip, ".zst": _zstd}
_NAMES = {".gz": "gzip", ".zst": "zstd"}


class Damaged(Exception):
    """The compressed file cannot be read on; `error` says so, without a line."""

    def __init__(self, error: DataError) -> None:
        self.error = error
        super().__init__(error.cause)


def is_compressed(file: Path) -> bool:
    """Whether the name ends with .gz or .zst."""
    return file.suffix.lower() in DECODERS


def plain_suffix(file: Path) -> str:
    """The suffix in lower case, without that of a compression: ".jsonl" for a.JSONL.gz."""
    return Path(file.stem).suffix.lower() if is_compressed(file) else file.suffix.lower()


def read_blocks(file: Path) -> Iterator[bytes]:
    """The plain bytes of a file in blocks of some megabytes, never empty.

    Raises:
        Damaged: After all that can be decompressed was given.
        OSError: From the system.
    """
    if is_compressed(file):
        yield from _decompressed(file)
        return
    with open(file, "rb") as stream:
        while block := stream.read(BLOCK):
            yield block


def _decompressed(file: Path) -> Iterator[bytes]:
    """All members (gzip) or frames (zstd), one after the other; both libraries decode them through the same calls."""
    suffix = file.suffix.lower()
    decoder, begun = DECODERS[suffix](), False
    with open(file, "rb") as stream:
        while block := stream.read(_COMPRESSED_BLOCK):
            while block:
                try:
                    plain = decoder.decompress(block)
                except (zlib.error, zstandard.ZstdError) as error:
                    raise _damaged(file, str(error)) from error
                begun = True
                if plain:
                    yield plain
                block = b""
                if decoder.eof:
                    # gzip allows zeros behind a member; tapes and block devices leave them.
                    block = decoder.unused_data.lstrip(b"\0") if suffix == ".gz" else decoder.unused_data
                    decoder, begun = DECODERS[suffix](), False
    if begun:
        raise _damaged(file, "it ends before its end marker; the file was cut")


def _damaged(file: Path, cause: str) -> Damaged:
    error = DataError(
        f"damaged {_NAMES[file.suffix.lower()]} file: {cause}",
        place=str(file),
        fix="Compress or copy the file again.",
        kind="damaged file",
    )
    return Damaged(error)
