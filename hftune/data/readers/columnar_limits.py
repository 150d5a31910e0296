"""What Parquet and Arrow files may have decoded at once. A page of a kilobyte may say that it holds gigabytes."""

from __future__ import annotations

import psutil

from hftune.data.readers.base import MAX_VALUES

SOFT_LIMIT = 256 << 20
"""Bytes that are decoded at once without asking what they were made of."""
# Text becomes 3 to 10 times smaller.
_RATIO = 100
_ROWS_A_BYTE = 100
HARD_LIMIT = 640 << 20
"""Bytes that are decoded at once in no case. A whole record is a tenth of that at most."""


class TooMuchMemory(Exception):
    """Reading on would take more memory than any true data do."""


def check_size(size: int, file_size: int) -> None:
    """Refuse to decode so many bytes from a file.

    Raises:
        TooMuchMemory: They are too many for the file, or for this machine.
    """
    # Below the soft limit any ratio is fine: small files of zeros are no attack.
    if size > SOFT_LIMIT and size > _RATIO * file_size:
        raise TooMuchMemory(f"{file_size} bytes say that they hold {size} to be decoded at once")
    if size > HARD_LIMIT:
        raise TooMuchMemory(f"{size} bytes are to be decoded at once, of at most {HARD_LIMIT}")
    # Twice: decoded values become Python objects next to them.
    if size > SOFT_LIMIT and 2 * size > psutil.virtual_memory().available:
        raise TooMuchMemory(f"{size} bytes are to be decoded at once, which this machine has no memory for")


def check_rows(rows: int, file_size: int) -> None:
    """Refuse a number of rows, or of values in them, that would fill the memory or keep a run busy for ever.

    Raises:
        TooMuchMemory: No file of this size holds so many.
    """
    if rows > MAX_VALUES and rows > _ROWS_A_BYTE * file_size:
        raise TooMuchMemory(f"{file_size} bytes say that they hold {rows} rows or values")
