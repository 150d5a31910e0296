"""What is kept of every record until all were read: numbers, on disk.

`BYTES` bytes a record: where it is, hashes, what was found, and its signature. Signatures lie in a file a band, so that
one band of all records is read without the others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hftune.tools.checking.shingles import BANDS, ROWS

ABOUT = np.dtype(
    [
        ("source", "<u4"),  # number of the file
        ("line", "<u8"),
        ("exact", "<u8"),
        ("judged", "<u8"),
        ("verdict", "i1"),
        ("shingles", "<u4"),
        ("kinds", "<u4"),
    ]
)
"""Of each record, in the order in which they were read."""

BYTES = ABOUT.itemsize + 4 * BANDS * ROWS
"""On disk, of each record."""


class Store:
    """The numbers of all records, appended chunk by chunk.

    Args:
        folder: Empty; what is written there may be removed with it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        names = ["about", *(f"band-{band}" for band in range(BANDS))]
        self._files = [(folder / name).open("xb") for name in names]
        self.count = 0

    def add(self, about: np.ndarray, signatures: np.ndarray) -> None:
        """Append records: (n,) of `ABOUT`, and (n, BANDS * ROWS) uint32."""
        self._files[0].write(about.tobytes())
        for band, file in enumerate(self._files[1:]):
            file.write(np.ascontiguousarray(signatures[:, band * ROWS : (band + 1) * ROWS]).tobytes())
        self.count += len(about)

    def finish(self) -> None:
        """Nothing is added any more."""
        for file in self._files:
            file.close()

    def about(self) -> np.ndarray:
        """(records,) of `ABOUT`, as they are on disk; changes are written back."""
        return self._mapped("about", ABOUT, (self.count,), "r+")

    def band(self, number: int) -> np.ndarray:
        """(records, ROWS) uint32 of one band."""
        return self._mapped(f"band-{number}", np.dtype("<u4"), (self.count, ROWS), "r")

    def _mapped(self, name: str, dtype: np.dtype, shape: tuple[int, ...], mode: str) -> np.ndarray:
        # An empty file cannot be mapped.
        if not self.count:
            return np.zeros(shape, dtype)
        return np.memmap(self._folder / name, dtype, mode, shape=shape)  # type: ignore[call-overload]
