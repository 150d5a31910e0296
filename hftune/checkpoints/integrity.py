"""Whether a checkpoint is whole: a record of its files, written last, and what can be seen without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hftune.digests import digests
from hftune.errors import ManifestError, shown
from hftune.opening.files import read_bytes, unsafe_entry
from hftune.opening.json_file import read_json
from hftune.opening.model_files import read_checked
from hftune.opening.safetensors_file import is_plain_name
from hftune.publishing.disk import flush_tree, is_plain_folder, write_file
from hftune.weight_files import file_tensors, weight_files

RECORD_NAME = "hftune_checkpoint.json"
TRAINER_STATE = "trainer_state.json"
# Suffixes of weights, configs and tokenizer.
_RESULT = {".safetensors", ".json", ".jinja", ".txt", ".model"}


def write_record(folder: Path, about: dict[str, Any], moved: Callable[[], None] = lambda: None) -> None:
    """Write down every file of a checkpoint with its size, and flush all of it to the disk.

    Args:
        folder: A checkpoint to which nothing will be added.
        about: What else to remember: step, world size, ZeRO stage.
        moved: Called while files are flushed, which may take minutes.
    """
    files = {
        str(file.relative_to(folder)): file.stat().st_size
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != RECORD_NAME
    }
    # The record says that everything else is there, so everything else is on the disk before it is written.
    flush_tree(folder, moved)
    write_file(folder / RECORD_NAME, json.dumps({**about, "files": files}, indent=2) + "\n")


def record_contents(folder: Path, moved: Callable[[], None] = lambda: None) -> None:
    """Add a digest of each recorded file to the record, by which damage is found that keeps a file's size.

    Args:
        moved: Called while files are read, which may take minutes.
    """
    record = read_record(folder)
    if record is not None:
        names = [name for name in record["files"] if (folder / name).is_file()]
        read = digests([folder / name for name in names], moved=moved)
        record["digests"] = dict(zip(names, read, strict=True))
        write_file(folder / RECORD_NAME, json.dumps(record, indent=2) + "\n")


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a checkpoint; None without one, or where it cannot be read."""
    try:
        record = read_json(folder / RECORD_NAME)
    except ManifestError:
        return None
    whole = isinstance(record, dict) and all(isinstance(record.get(key, {}), dict) for key in ("files", "digests"))
    return record if whole and "files" in record else None


def checkpoint_fault(folder: Path) -> str | None:
    """Why a run cannot resume from a checkpoint; None where it is whole.

    One that another tool wrote has no record: its state, its weights and, under DeepSpeed, its tag are looked at.
    """
    if not folder.is_dir():
        return "there is no such folder"
    # In the order of what explains most: a missing file would also show as a bad state or bad weights.
    record = read_record(folder)
    if record is None and (folder / RECORD_NAME).exists():
        return f"{RECORD_NAME} cannot be read"
    fault = _missing_files(folder, record["files"]) if record is not None else _without_record(folder)
    return fault or _bad_state(folder) or _bad_weights(folder)


def altered_files(folder: Path, *, top: bool = False) -> list[str]:
    """Files of a checkpoint that no longer hold what was written, every byte read; none without a record of them.

    Args:
        top: Only those of weights, configs and tokenizer, which lie in the folder itself.
    """
    recorded = (read_record(folder) or {}).get("digests") or {}
    if top:
        recorded = {name: text for name, text in recorded.items() if Path(name).suffix in _RESULT and "/" not in name}
    found = [name for name in recorded if (folder / name).is_file()]
    now = digests([folder / name for name in found], once=True)
    return [name for name, digest in zip(found, now, strict=True) if digest != recorded[name]]


def added_files(folder: Path) -> list[str]:
    """Files of a checkpoint that its record does not name, which are somebody else's; all where there is no record."""
    recorded = (read_record(folder) or {}).get("files") or {}
    names = (str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if not is_plain_folder(file))
    return [name for name in names if name not in recorded and name != RECORD_NAME]


def _missing_files(folder: Path, files: dict[str, int]) -> str | None:
    for name, size in files.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
    return None


def _without_record(folder: Path) -> str | None:
    engine = sorted(folder.glob("global_step*"))
    if engine:
        return _without_tag(folder)
    try:
        found = weight_files(folder) or [*folder.glob("*.bin")]
    except ManifestError as problem:
        return problem.cause
    return None if found else "it has no weights"


def _without_tag(folder: Path) -> str | None:
    latest = folder / "latest"
    try:
        tag = read_bytes(latest, limit=1 << 12).decode("utf-8", "replace").strip() if latest.is_file() else ""
    except ManifestError as problem:
        return problem.cause
    named = is_plain_name(tag) and any((folder / tag).glob("*.pt"))
    return None if named else "DeepSpeed had not finished writing it"


def _bad_state(folder: Path) -> str | None:
    try:
        read_checked(folder / TRAINER_STATE)
    except ManifestError as problem:
        missing = not (folder / TRAINER_STATE).exists()
        return f"{TRAINER_STATE} is missing" if missing else f"{TRAINER_STATE} is cut off or damaged: {problem.cause}"
    return None


def _bad_weights(folder: Path) -> str | None:
    try:
        files = {file.name: file_tensors(file) for file in weight_files(folder)}
    except ManifestError as problem:
        return problem.cause
    # What ZeRO-3 leaves of a weight that was saved without gathering it.
    empty = (name for name, tensors in files.items() if any(0 in tensor.shape for tensor in tensors.values()))
    return next((f"{name} holds empty tensors" for name in empty), None)


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
