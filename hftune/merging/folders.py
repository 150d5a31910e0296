"""Whether a disk holds what is about to be written."""

from __future__ import annotations

from pathlib import Path

from hftune.errors import ArgumentError
from hftune.publishing.disk import free_bytes


def check_space(output: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Raises:
        ArgumentError: Too little room, with both figures.
    """
    free = free_bytes(output)
    if free < needed + (1 << 24):
        raise ArgumentError(
            f"the merged model needs {needed / 1e9:.2f} GB, the disk of {output} has {free / 1e9:.2f} GB left",
            place="--output_dir",
            fix="make room, name a folder on another disk, or write a smaller dtype (--dtype bfloat16)",
        )
