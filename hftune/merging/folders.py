"""A result that is there or not: written into a folder aside, put in place by renaming."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hftune.checkpoints import manifest as manifests
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice


def aside_of(output: Path) -> Path:
    """Where a result is written before it is finished."""
    return output.with_name(f".{output.name}.partial")


def _replaced(output: Path) -> Path:
    return output.with_name(f".{output.name}.replaced")


def check_output(output: str | None, overwrite: bool, inputs: list[Path]) -> list[UserError]:
    """Problems of writing to a folder: none named, a finished result, files of something else, an input."""
    if not output:
        return [ArgumentError("no output folder was named", place="--output_dir", fix="give one")]
    folder = Path(output).resolve()
    if any(folder == path.resolve() or folder in path.resolve().parents for path in inputs):
        return [ArgumentError(f"{output} holds what is merged", place="--output_dir", fix="choose another folder")]
    if overwrite or not folder.is_dir() or not any(folder.iterdir()):
        return []
    what = "a finished result" if manifests.is_complete(folder) else "files"
    return [
        ArgumentError(
            f"{output} already holds {what}",
            place="--output_dir",
            fix="choose another folder, or add --overwrite_output_dir, which replaces all that is in it",
        )
    ]


def begin(output: Path) -> Path:
    """An empty folder aside; what a killed merge left there is removed."""
    aside = aside_of(output)
    for left in (aside, _replaced(output)):
        if left.is_dir():
            notice(f"removed {left}, left by a merge that was interrupted")
            shutil.rmtree(left)
    aside.mkdir(parents=True)
    return aside


def finish(aside: Path, output: Path) -> None:
    """Put the finished folder in its place, durably."""
    for file in aside.iterdir():
        _sync(file)
    _sync(aside)
    if output.exists():
        os.replace(output, _replaced(output))
    os.replace(aside, output)
    _sync(output.parent)
    shutil.rmtree(_replaced(output), ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_space(output: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Raises:
        ArgumentError: Too little room, with both figures.
    """
    there = output.resolve()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < needed + (1 << 24):
        raise ArgumentError(
            f"the merged model needs {needed / 1e9:.2f} GB, the disk of {output} has {free / 1e9:.2f} GB left",
            place="--output_dir",
            fix="make room, name a folder on another disk, or write a smaller dtype (--dtype bfloat16)",
        )
