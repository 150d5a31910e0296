"""What Parquet and Arrow files may have decoded at once. A page of a kilobyte may say that it holds gigabytes."""

from __future__ import annotations

import psutil

from hftune.data.readers.base import MAX_VALUES

AT_ONCE = 256 << 20
"""Bytes that are decoded at once without asking what they were made of."""
_RATIO = 100
"""Text becomes 3 to 10 times smaller."""
_ROWS_A_BYTE = 100
MOST = 640 << 20
"""Bytes that are decoded at once in no case. A whole record is a tenth of that at most."""


class Unbounded(Exception):
    """Reading on would take more memory than any true data do."""


def check_size(size: int, file_size: int) -> None:
    """Refuse to decode so many bytes from a file.

    Raises:
        Unbounded: They are too many for the file, or for this machine.
    """
    if size > AT_ONCE and size > _RATIO * file_size:
        raise Unbounded(f"{file_size} bytes say that they hold {size} to be decoded at once")
    if size > MOST:
        raise Unbounded(f"{size} bytes are to be decoded at once, of at most {MOST}")
    if size > AT_ONCE and 2 * size > psutil.virtual_memory().available:
        raise Unbounded(f"{size} bytes are to be decoded at once, which this machine has no memory for")


def check_rows(rows: int, file_size: int) -> None:
    """Refuse a number of rows, or of values in them, that would fill the memory or keep a run busy for ever.

    Raises:
        Unbounded: No file of this size holds so many.
    """
    if rows > MAX_VALUES and rows > _ROWS_A_BYTE * file_size:
        raise Unbounded(f"{file_size} bytes say that they hold {rows} rows or values")
