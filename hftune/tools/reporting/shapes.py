"""Files of a run that are JSON, and of another shape than hftune writes: somebody else's, edited or damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hftune.errors import ManifestError, shown

SHAPES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading raises where a file is JSON of another shape than hftune writes: somebody else's file of the name."""


@contextmanager
def written_by_hftune(
    folder: str | Path, what: str = "the files", fix: str = "copy the folder again, or move what was edited away"
) -> Iterator[None]:
    """Turn what reading a folder's files ends in where they have another shape into one message.

    Raises:
        ManifestError: They have.
    """
    try:
        yield
    except SHAPES as error:
        # With what went wrong: it may as well be a fault of hftune's own, which nobody could tell from the rest.
        found = f"{type(error).__name__}: {shown(error)}"
        cause = f"{what} of {folder} have another shape than those that hftune writes ({found})"
        raise ManifestError(cause, place=str(folder), fix=fix) from error
