"""Whether a checkpoint is whole: a record of its files, written last, and what can be seen without one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hftune.checkpoints.contents import digests
from hftune.weight_files import read_header, weight_files

RECORD_NAME = "hftune_checkpoint.json"
TRAINER_STATE = "trainer_state.json"


def write_record(folder: Path, about: dict[str, Any]) -> None:
    """Write down every file of a checkpoint with its size and a digest, and flush all of it to the disk.

    Args:
        folder: A checkpoint to which nothing will be added.
        about: What else to remember: step, world size, ZeRO stage.
    """
    files = {
        str(file.relative_to(folder)): file.stat().st_size
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != RECORD_NAME
    }
    for name in files:
        _flush(folder / name)
    contents = dict(zip(files, digests([folder / name for name in files]), strict=True))
    aside = folder / f".{RECORD_NAME}.partial"
    aside.write_text(json.dumps({**about, "files": files, "digests": contents}, indent=2) + "\n", encoding="utf-8")
    _flush(aside)
    os.replace(aside, folder / RECORD_NAME)
    _flush(folder)


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a checkpoint; None without one, or where it cannot be read."""
    try:
        record = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not JSON, or not even text
        return None
    whole = isinstance(record, dict) and all(isinstance(record.get(key, {}), dict) for key in ("files", "digests"))
    return record if whole and "files" in record else None


def what_is_wrong(folder: Path) -> str | None:
    """Why nothing can go on from a checkpoint; None where it is whole.

    One that another tool wrote has no record: its state, its weights and, under DeepSpeed, its tag are looked at.
    """
    if not folder.is_dir():
        return "there is no such folder"
    record = read_record(folder)
    if record is None and (folder / RECORD_NAME).exists():
        return f"{RECORD_NAME} cannot be read"
    fault = _missing_files(folder, record["files"]) if record is not None else _without_record(folder)
    return fault or _bad_state(folder) or _bad_weights(folder)


def altered_files(folder: Path) -> list[str]:
    """Files of a checkpoint that no longer hold what was written, every byte read; none without a record of them."""
    recorded = (read_record(folder) or {}).get("digests") or {}
    found = [name for name in recorded if (folder / name).is_file()]
    now = digests([folder / name for name in found])
    return [name for name, digest in zip(found, now, strict=True) if digest != recorded[name]]


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
        latest = folder / "latest"
        tag = latest.read_text(encoding="utf-8").strip() if latest.is_file() else ""
        if not tag or not any((folder / tag).glob("*.pt")):
            return "DeepSpeed had not finished writing it"
    if not weight_files(folder) and not engine and not any(folder.glob("*.bin")):
        return "it has no weights"
    return None


def _bad_state(folder: Path) -> str | None:
    try:
        state = json.loads((folder / TRAINER_STATE).read_text(encoding="utf-8"))
    except OSError:
        return f"{TRAINER_STATE} is missing"
    except ValueError:
        return f"{TRAINER_STATE} is cut off"
    return None if isinstance(state.get("global_step"), int) else f"{TRAINER_STATE} names no step"


def _bad_weights(folder: Path) -> str | None:
    for file in weight_files(folder):
        try:
            header = read_header(file)
        except (ValueError, OverflowError, MemoryError, KeyError):
            return f"{file.name} is cut off"
        if any(0 in entry["shape"] for entry in header.values()):
            return f"{file.name} holds empty tensors"
    return None


def _flush(path: Path) -> None:
    """Make sure that a file or a folder's entries outlive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
