"""Whose a file or folder is: hftune wrote it, and it is as it was written, or it must not be replaced.

A result's manifest records every file of its folder (`written`: name to size, time and digest). A file that stands
alone (scores, answers, a report, a model card) has a line in `.hftune.written` alongside it: its digest and its name.
What has neither, or has been edited since, is somebody's.
"""

from __future__ import annotations

import os
import stat
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hftune.constants import LOG_NAME, MANIFEST_NAME
from hftune.digests import Damaged, Record, changed_files, digest, is_record, read_text, record_files
from hftune.errors import ManifestError
from hftune.opening.json_file import LARGE, read_json
from hftune.opening.own_file import open_own

WRITTEN = "written"
"""The key of a manifest under which every other file of the folder is recorded."""

WRITTEN_NAME = ".hftune.written"
"""The file with a line for each content of a file that stands alone: digest and name."""

COMPLETE = "complete"
# Of the manifest of a run's own folder; a checkpoint has another.
_OF_A_RUN = ("running", "interrupted", COMPLETE)

_RESULT = (
    *("*.safetensors", "*.safetensors.index.json", "*config.json", "*.jinja", "tokenizer*", "special_tokens_map.json"),
    *("vocab*", "merges.txt", "added_tokens.json", "*.model"),
)
_STATE = (
    *("completions.jsonl", "progress.jsonl", "trainer_state.json", "training_args.bin", "samples.json", "README.md"),
    *("critic", "profile", MANIFEST_NAME),
)
_IN_PLACE = (LOG_NAME, LOG_NAME.replace(".", "-rank*."), *_STATE[:4])
# What a run writes into its output folder under these names: the result, which its manifest records; what else it makes
# anew; and of both what is opened under its own name. Folders of trackers never replace anything.


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
    own = {MANIFEST_NAME, WRITTEN_NAME}
    found = [name for name in files if name not in own and not _is_as_recorded(folder, name, recorded)]
    return sorted(f"{name} (changed after it was written)" if name in recorded else name for name in found)


def foreign_of_run(folder: Path) -> list[str]:
    """What a run would replace, or add to, in its output folder and hftune did not write, as `foreign_files` has it.

    Checkpoints stay, and logs, to which a run adds; so these may be anybody's, but no links.
    """
    manifest = read_own_manifest(folder) or {}
    ours, recorded = manifest.get("status") in _OF_A_RUN, recorded_files(manifest)
    found = []
    for entry in sorted(folder.iterdir()):
        name = entry.name
        if _matches(name, _RESULT):
            found += [] if ours and _is_as_recorded(folder, name, recorded) else [name]
        elif _matches(name, _STATE) and (entry.is_symlink() or not ours):
            found.append(name)
    return found + not_added_to(folder, _IN_PLACE)


def not_added_to(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    """What in a folder has the name of a file that is added to, and is a link, no file, or one with a second name."""
    named = {name: os.lstat(folder / name) for name in sorted(os.listdir(folder)) if _matches(name, patterns)}
    return [name for name, about in named.items() if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1]


def is_of_run(name: str) -> bool:
    """Whether a run replaces, or removes, what has this name in its output folder."""
    return _matches(name, (*_RESULT, *_STATE)) or is_part_of_run(name)


def is_part_of_run(name: str) -> bool:
    """Whether a run makes, and removes, folders of this name in its output folder."""
    return _matches(name, ("checkpoint-*", "critic", "profile", ".partial", ".*.partial"))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def is_written(file: Path) -> bool:
    """Whether hftune wrote a file, and nobody changed it since; a link is nothing that hftune writes."""
    return _is_as_recorded(file.parent, file.name, recorded_files(read_own_manifest(file.parent) or {}))


def _is_as_recorded(folder: Path, name: str, recorded: dict[str, Record]) -> bool:
    file = folder / name
    if not stat.S_ISREG(os.lstat(file).st_mode):
        return False
    if name in recorded:
        return not any(changed_files(folder, {name: recorded[name]}))
    lines = [line for line in _lines(file.parent) if line.endswith(_line(file, ""))]
    return bool(lines) and _line(file, digest(file)) in lines  # read only where it could be


def write_down(file: Path, content: Path) -> None:
    """Record that hftune writes the content of another file under a file's name; called before it has the name.

    Raises:
        OSError: The disk does not take it, or something else has the record's name.
    """
    # A line is added and none is changed: processes that write different files need no lock, and a process that dies
    # before the file has its name leaves the digest of the file before in the record.
    with open_own(file.parent / WRITTEN_NAME) as stream:
        stream.write(f"{_line(file, digest(content))}\n".encode())


def _line(file: Path, found: str) -> str:
    return f"{found}  {file.name!a}"


def _lines(folder: Path) -> list[str]:
    record = folder / WRITTEN_NAME
    try:
        return [] if record.is_symlink() else read_text(record).splitlines()
    except (Damaged, OSError):
        return []


def recorded_files(manifest: dict[str, Any]) -> dict[str, Record]:
    """The files that a manifest records; those of earlier versions record weights, configs and tokenizer only."""
    return dict(manifest.get(WRITTEN) or manifest.get("files") or {})


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
        found = read_json(folder / MANIFEST_NAME, limit=LARGE)
    except ManifestError:
        return None
    records = [found.get(name) or {} for name in (WRITTEN, "files")]
    sound = all(isinstance(part, dict) and all(map(is_record, part.values())) for part in records)
    return found if sound else None
