"""Who owns a folder: a finished result of hftune, to the last file, or something that must not be removed.

A result's manifest records every file of its folder (`written`: name to size, time and digest). Only a folder that
holds these files as they were written, and nothing else, may be replaced. One that a person has added a file to, or
edited one in, is theirs.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from hftune.constants import MANIFEST_NAME
from hftune.digests import Record, changed_files, record_files
from hftune.errors import ArgumentError, ManifestError, UserError
from hftune.opening.json_file import LARGE, read_json
from hftune.publishing.disk import lexists

WRITTEN = "written"
"""The key of a manifest under which every other file of the folder is recorded."""

COMPLETE = "complete"
_SHOWN = 3
ATTEMPTS, SECONDS_BETWEEN_ATTEMPTS = 4, 0.05
"""How often, and after how many seconds, what other processes may be changing is looked at again."""


def work_folder(target: Path) -> Path:
    """The folder in which a result is made before it is put in place."""
    return target.with_name(f".{target.name}.partial")


def record_written(folder: Path) -> dict[str, Record]:
    """Records of all files of a result but its manifest, by relative name; for the manifest."""
    return record_files({name: folder / name for name in _files(folder) if name != MANIFEST_NAME})


def foreign_files(folder: Path) -> list[str]:
    """What in a folder is not part of a finished result of hftune; empty where it is one and nothing else.

    Each entry is a phrase such as `thesis.txt` or `config.json (changed after it was written)`.
    """
    # Without a finished manifest nothing says what hftune wrote: all of it is taken for somebody's.
    manifest = read_own_manifest(folder)
    files = _files(folder)
    if manifest is None or manifest.get("status") != COMPLETE:
        return files or ([] if not any(folder.iterdir()) else ["folders"])
    recorded = recorded_files(manifest)
    found = [name for name in files if name != MANIFEST_NAME and name not in recorded]
    for name in files:
        record = recorded.get(name)
        # A link in a file's place is not the file that was written, whatever it points at.
        if record is not None and (os.path.islink(folder / name) or any(changed_files(folder, {name: record}))):
            found.append(f"{name} (changed after it was written)")
    return sorted(found)


def recorded_files(manifest: dict[str, Any]) -> dict[str, Record]:
    """The files that a manifest records; those of earlier versions record weights, configs and tokenizer only."""
    return dict(manifest.get(WRITTEN) or manifest.get("files") or {})


def output_problems(
    output: str | None, *, overwrite: bool, inputs: list[Path], flag: str = "--output_dir"
) -> list[UserError]:
    """Problems of putting a result in place at `output`; empty where it can be.

    Args:
        output: The folder that was asked for; it becomes a new folder, or replaces a finished result.
        overwrite: Whether replacing a finished result was asked for.
        inputs: Folders and files that are read; none of them may be the output, or lie in it.
        flag: What names the output.
    """
    problems = place_problems(output, inputs=inputs, flag=flag)
    if problems:
        return problems
    folder = Path(str(output)).resolve()
    for _ in range(ATTEMPTS):
        problems = _content_problems(str(output), folder, overwrite, flag)
        if not problems or not lexists(work_folder(folder)):
            break
        time.sleep(SECONDS_BETWEEN_ATTEMPTS)  # in the middle of another process's exchange nothing looks whole
    return problems


def place_problems(output: str | None, *, inputs: list[Path], flag: str = "--output_dir") -> list[UserError]:
    """Problems of the place `output` itself, whatever it holds: its name, and what user and command use it for.

    Args:
        output: The folder that was asked for.
        inputs: What is read.
        flag: What names the output.
    """
    if not output:
        return [ArgumentError("no output folder was named", place=flag, fix=f"add {flag} FOLDER")]
    try:
        folder = Path(output).resolve()
        os.lstat(work_folder(folder) if folder.name else folder)
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, links in a circle, a zero byte
        what = getattr(error, "strerror", None) or str(error)
        return [ArgumentError(f"{output!r} cannot be a folder: {what}", place=flag, fix="choose another name")]
    # Replacing a folder removes what it held, also what is only read.
    held = [path for path in inputs if folder == path.resolve() or folder in path.resolve().parents]
    if held:
        return [ArgumentError(f"{output} holds {held[0]}, which is read", place=flag, fix="choose another folder")]
    here = Path.cwd()
    if folder == here or folder in here.parents or folder == Path.home().resolve():
        what = "the working directory" if folder == here else "your home" if folder == Path.home() else "a folder above"
        return [ArgumentError(f"{output} is {what}", place=flag, fix=f"name a new folder below it: {output}/NAME")]
    if lexists(folder) and not folder.is_dir():
        return [ArgumentError(f"{output} is no folder", place=flag, fix="choose another name")]
    if os.path.ismount(folder):
        return [ArgumentError(f"{output} is a mount point", place=flag, fix=f"name a folder below it: {output}/NAME")]
    return []


def _content_problems(output: str, folder: Path, overwrite: bool, flag: str) -> list[UserError]:
    if not folder.is_dir():
        return []
    try:
        if not any(folder.iterdir()):
            return []
        foreign = foreign_files(folder)
    except OSError as error:
        return [ArgumentError(f"{output} cannot be read: {error.strerror}", place=flag, fix="choose another folder")]
    if foreign:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        return [
            ArgumentError(
                f"{output} already holds what hftune did not write: {', '.join(foreign[:_SHOWN])}{more}",
                place=flag,
                fix="choose another folder; nothing but a finished result of hftune's is ever replaced",
            )
        ]
    if not overwrite:
        return [
            ArgumentError(
                f"{output} already holds a finished result",
                place=flag,
                fix="choose another folder, or add --overwrite_output_dir, which replaces it",
            )
        ]
    return []


def _files(folder: Path) -> list[str]:
    """All files and links below a folder, relative to it; links to folders are not followed.

    Raises:
        OSError: A folder in it cannot be listed.
    """
    found = []
    # What cannot be listed may hold anything: os.walk would pass over it.
    for root, folders, names in os.walk(folder, onerror=_raise):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        found += [os.path.relpath(os.path.join(root, name), folder) for name in (*names, *links)]
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def read_own_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest; None where none can be read: the folder then is not hftune's."""
    # A manifest behind a link could declare anybody's files to be hftune's.
    if os.path.islink(folder / MANIFEST_NAME):
        return None
    try:
        found = read_json(folder / MANIFEST_NAME, limit=LARGE, finite=False, halves=True)
    except ManifestError:
        return None
    records = [found.get(name) or {} for name in (WRITTEN, "files")]
    return found if all(_are_records(record) for record in records) else None


def _are_records(value: object) -> bool:
    """Whether a value has the form of file records; a manifest may come from anywhere."""
    return isinstance(value, dict) and all(
        isinstance(record, list) and [type(part) for part in record] == [int, int, str] for record in value.values()
    )
