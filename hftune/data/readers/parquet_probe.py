"""Reads row groups of a Parquet file in a process whose memory is limited, before they are read in this one.

Pages say how many values they have, but not how many of them are one row, which is the least that can be read. Where
all of them in one row would be too much, only reading tells.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hftune import child_processes
from hftune.data.readers.columnar_limits import HARD_LIMIT, TooMuchMemory

_BUFFER = 1 << 20


def open_parquet(file: Path) -> Any:
    """The `ParquetFile`, which reads pages as they are needed: a row group may have gigabytes."""
    return pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER)


class MemoryProbe:
    """A process that reads what this one is about to read. It is started when first asked."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.process: child_processes.Popen[Any] | None = None

    def __enter__(self) -> MemoryProbe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def open(self) -> None:
        """Let it open the file, if it has not done so.

        Raises:
            TooMuchMemory: It had no memory for that.
        """
        if self.process is None:
            # A process of its own, not a fork: Arrow's threads do not survive one.
            command = child_processes.python("-m", __name__, str(self.file.absolute()))
            self.process = child_processes.start(
                command,
                stdin=child_processes.PIPE,
                stdout=child_processes.PIPE,
                stderr=child_processes.DEVNULL,
                bufsize=0,
            )
            self._wait()

    def read(self, group: int, rows: int) -> None:
        """Let it read a row group, so many rows at once.

        Raises:
            TooMuchMemory: It had no memory for that.
        """
        self.open()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{group} {rows}\n".encode())
        self._wait()

    def _wait(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        # A point for each request that was fulfilled; nothing when the process has died.
        if self.process.stdout.read(1) != b".":
            raise TooMuchMemory(
                f"its description, or a row of it, takes more than {HARD_LIMIT} bytes once it is decoded"
            )


def _limit() -> None:
    """Let this process take so much more memory than it has."""
    import resource

    pa.set_memory_pool(pa.system_memory_pool())  # others reserve more than they need
    with open("/proc/self/status", encoding="ascii") as status:
        # On top of what the libraries have taken by now, so that the limit is for reading alone.
        taken = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (taken + HARD_LIMIT, taken + HARD_LIMIT))


def _serve(file: Path) -> None:
    """Open a file, then read what is asked for; a point on standard output for each that is done."""
    _limit()
    asked = iter(sys.stdin.readline, "")
    try:
        source = open_parquet(file)
        os.write(1, b".")
        for group, rows in (map(int, line.split()) for line in asked):
            for batch in source.iter_batches(rows, row_groups=[group], use_threads=False):
                del batch
            os.write(1, b".")
    except MemoryError:
        return
    except (pa.ArrowException, OSError) as error:
        # Arrow turns C++'s exception into an ArrowException of that text.
        if "bad_alloc" in str(error):
            return
        os.write(1, b".")  # damaged: whoever reads it says how
        for _ in asked:
            os.write(1, b".")


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
