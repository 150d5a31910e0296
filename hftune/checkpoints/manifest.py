"""`hftune.json`: where an output folder came from, so that the next command need not be told again.

Written atomically and last: a folder whose manifest says `complete` holds a finished result.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

from hftune.checkpoints.file_records import result_files
from hftune.compat.checking import installed
from hftune.constants import MANIFEST_NAME
from hftune.opening.model_files import read_checked
from hftune.publishing.disk import write_file
from hftune.publishing.ownership import WRITTEN, record_written
from hftune.secrets import redacted

Manifest = dict[str, Any]

STARTED_IN = "started_in"
"""The key of the folder, relative to the result, in which the command ran: its paths are relative to that."""

RUNNING, INTERRUPTED, CHECKPOINT, COMPLETE = "running", "interrupted", "checkpoint", "complete"
"""Status of a folder: in work, or left behind by a process that was killed; stopped on demand, with a checkpoint; a
checkpoint's; a finished result."""
_LIBRARIES = ("torch", "transformers", "trl", "peft", "deepspeed", "accelerate", "datasets", "bitsandbytes", "hftune")


def read_manifest(folder: str | Path | None) -> Manifest | None:
    """The manifest of a folder, or None where there is none.

    Raises:
        ManifestError: The file is there and cannot be read.
    """
    file = Path(folder or "") / MANIFEST_NAME
    if not folder or not file.is_file():
        return None
    return read_checked(file, fix="fix or delete it; without it the folder is treated like any other model")


def write_manifest(folder: str | Path, manifest: Manifest) -> Path:
    """Write the manifest alongside the weights, durably, whole or not at all; without any secret."""
    file = Path(folder) / MANIFEST_NAME
    if manifest.get("inputs"):
        # One that is written again elsewhere keeps its own; a run's is another one in each of its folders.
        manifest = {STARTED_IN: os.path.relpath(os.getcwd(), os.path.abspath(folder)), **manifest}
    # `default=str`: arguments hold paths and enumerations.
    write_file(file, json.dumps(redacted(manifest), indent=2, ensure_ascii=False, default=str) + "\n")
    return file


def from_here(path: str, folder: str | Path, manifest: Manifest) -> str:
    """A path that the manifest of a folder names, as it is reached from here; as it is where nothing is there."""
    started = manifest.get(STARTED_IN)
    if not isinstance(started, str) or Path(path).is_absolute():
        return path
    found = os.path.relpath(os.path.join(os.path.abspath(folder), started, path))
    return path if not os.path.exists(found) or os.path.realpath(found) == os.path.realpath(path) else found


def finish_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write the manifest of a folder to which nothing will be added, with records of all its files.

    `written` records every file, by which hftune knows the folder as its own; `files` those that make the result.
    """
    # Before the manifest itself is written, which cannot hold its own digest.
    manifest[WRITTEN] = record_written(folder)
    manifest["files"] = {name: manifest[WRITTEN][name] for name in result_files(folder)}
    write_manifest(folder, manifest)
    return manifest


def is_complete(folder: str | Path | None) -> bool:
    """Whether a folder holds a finished result of hftune."""
    manifest = read_manifest(folder)
    return manifest is not None and manifest.get("status") == COMPLETE


def text_fingerprint(text: str) -> str:
    """Sixteen hex digits of a text's sha256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def library_versions() -> dict[str, str]:
    """Versions of everything that shapes a result, Python included."""
    versions = {name: version for name in _LIBRARIES if (version := installed(name))}
    return {"python": platform.python_version(), **versions}
