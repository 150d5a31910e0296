"""Where in a checkpoint DeepSpeed's engine wrote its state."""

from __future__ import annotations

from pathlib import Path

from hftune.errors import ManifestError, shown
from hftune.opening.files import read_bytes
from hftune.opening.folders import unsafe_entry
from hftune.opening.safetensors_file import is_plain_name

# Bytes of a tag file: the name of a folder, which no file system lets be longer.
_TAG_LIMIT = 4096


def engine_folder(checkpoint: str | Path) -> Path | None:
    """The folder of a checkpoint in which DeepSpeed's engine wrote its state; None where it did not."""
    folder = Path(checkpoint)
    for tag in ("latest", "latest_universal"):
        if (folder / tag).is_file():
            return folder / read_tag(folder / tag)
    # Without a tag: what a run that was cut off has left, or another tool has written.
    found = next(iter(sorted(folder.glob("global_step*"))), None)
    if found is not None:
        _refuse_stray(found)
    return found


def read_tag(file: Path) -> str:
    """The folder that DeepSpeed's `latest` names.

    Raises:
        ManifestError: It names no folder next to it: DeepSpeed would read whatever it leads to.
    """
    # The name goes into paths that are opened, and `..` or a link there would lead out of the checkpoint.
    content = read_bytes(file, limit=_TAG_LIMIT)
    name = content.decode("utf-8", "replace").strip()
    if not is_plain_name(name):
        raise ManifestError(
            f"{file} says {shown(ascii(name))}, which is no folder next to it",
            place=str(file),
            fix="take a checkpoint as DeepSpeed wrote it, which names a folder of its own, such as global_step100",
        )
    _refuse_stray(file)
    _refuse_stray(file.parent / name)
    return name


def _refuse_stray(place: Path) -> None:
    problem = unsafe_entry(place, place.parent)
    if problem is not None:
        raise problem
