"""Problems of a folder before something is loaded from it: foreign links, damaged JSON, contents not as recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hftune.checkpoints.adapter_chain import chain_problems, check_recorded_base, whole_chain
from hftune.checkpoints.file_records import result_files
from hftune.checkpoints.integrity import altered_files
from hftune.checkpoints.manifest import read_manifest
from hftune.constants import MANIFEST_NAME
from hftune.digests import changed_files
from hftune.errors import ManifestError, UserError
from hftune.opening.folders import unsafe_entries
from hftune.opening.model_files import json_problems

_INSTEAD = (".jinja", ".safetensors", ".safetensors.index.json")
"""Ends of names that are read in the place of others: of a template, of weights."""


def check_recorded(folder: str | Path | None, flag: str) -> Iterator[UserError]:
    """Why nothing should be loaded from a folder; nothing about a name on the Hub.

    Every byte of a result of hftune is compared with its manifest's digests: it is read right after by whoever loads
    it, and a file that several checks of a command ask for is read once.

    Args:
        folder: A result of hftune, whose manifest or record knows each file's digest, or any other folder.
        flag: What named it.
    """
    place = Path(folder or "")
    if not folder or not place.is_dir():
        return
    yield from unsafe_entries(place)
    yield from json_problems(place)
    changed = list(_changed(place))
    if changed:
        yield ManifestError(
            f"{folder} is not as hftune wrote it: {'; '.join(changed[:3])}{', ...' if len(changed) > 3 else ''}",
            place=f"{flag} {folder}",
            fix="copy it again from where it is whole, or make it again; a file that you changed on purpose: in "
            f'"files" of {place / MANIFEST_NAME} set its name to null',
        )


def check_recorded_whole(folder: str | None, flag: str) -> Iterator[UserError]:
    """As `check_recorded`; of an adapter also its base and the adapters below it, as its manifest names them."""
    problems = list(check_recorded(folder, flag))
    yield from problems
    if problems or not folder or not (Path(folder) / "adapter_config.json").is_file():
        return
    chain = whole_chain([folder])
    base = ((read_manifest(folder) or {}).get("base") or {}).get("name")
    for below in [*chain[:-1], *([base] if base else [])]:
        yield from check_recorded(below, flag)
    yield from chain_problems(chain, flag)
    if base:
        yield from check_recorded_base(base, folder, flag)


def _changed(folder: Path) -> Iterator[str]:
    recorded = (read_manifest(folder) or {}).get("files") or {}
    yield from changed_files(folder, recorded, whole=True)
    if not recorded:
        # A checkpoint has a record of its own, which lists the optimizer's files as well: those are not used here.
        yield from (f"{folder / name} has other contents" for name in altered_files(folder, top=True))
        return
    for name, file in result_files(folder).items():
        if name not in recorded and name.endswith(_INSTEAD):
            yield f"{file} is new"
