"""Problems of a folder of weights before it is opened: foreign links, damaged JSON, contents unlike its manifest's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hftune.checkpoints.integrity import altered_files
from hftune.checkpoints.manifest import read_manifest
from hftune.constants import MANIFEST_NAME
from hftune.digests import changed_files
from hftune.errors import ManifestError, UserError
from hftune.opening.folders import unsafe_entries
from hftune.opening.model_files import json_problems


def folder_problems(folder: str | Path, flag: str, *, whole: bool = False) -> Iterator[UserError]:
    """Why nothing should begin with a model's or an adapter's folder; nothing about a name on the Hub.

    Args:
        folder: A result of hftune, whose manifest or record knows each file's digest, or any other folder.
        flag: What named it.
        whole: Read every byte; else only those of files whose size or time has changed.
    """
    place = Path(folder)
    if not place.is_dir():
        return
    yield from unsafe_entries(place)
    yield from json_problems(place)
    changed = list(_changed(place, whole=whole))
    if changed:
        yield ManifestError(
            f"{folder} is not as hftune wrote it: {'; '.join(changed[:3])}{', ...' if len(changed) > 3 else ''}",
            place=f"{flag} {folder}",
            fix="copy it again from where it is whole, or make it again; a file that you changed on purpose: remove "
            f'its line from "files" in {place / MANIFEST_NAME}',
        )


def _changed(folder: Path, *, whole: bool) -> Iterator[str]:
    recorded = (read_manifest(folder) or {}).get("files") or {}
    yield from changed_files(folder, recorded, whole=whole)
    if not recorded and whole:
        # A checkpoint has a record of its own, which lists the optimizer's files as well: those are not used here.
        yield from (f"{folder / name} has other contents" for name in altered_files(folder, top=True))
