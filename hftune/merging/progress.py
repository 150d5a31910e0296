"""How far a merge is: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from hftune.logging import get_logger

_EVERY_SECONDS = 10.0


class Progress:
    """Counts bytes written out of `total`."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.spoke = total, 0, time.monotonic()
        self.bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=total, unit="B", unit_scale=True, desc="merging")

    def __call__(self, count: int) -> None:
        """`count` more bytes are written."""
        self.done += count
        if self.bar is not None:
            self.bar.update(count)
        elif time.monotonic() - self.spoke > _EVERY_SECONDS:
            self.spoke = time.monotonic()
            share = self.done / max(self.total, 1)
            get_logger().info("merged %.1f of %.1f GB (%.0f%%)", self.done / 1e9, self.total / 1e9, 100 * share)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.close()
