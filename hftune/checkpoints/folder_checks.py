"""Problems of a folder before something is loaded from it, and of adapters upon what they were trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hftune.checkpoints.file_records import result_files
from hftune.checkpoints.integrity import altered_files
from hftune.checkpoints.manifest import read_manifest
from hftune.constants import MANIFEST_NAME
from hftune.digests import changed_files
from hftune.errors import ManifestError, UserError
from hftune.logging import notice
from hftune.opening.files import unsafe_entries
from hftune.opening.model_files import json_problems, read_checked
from hftune.weight_files import fingerprint


def check_recorded_base(base: str, adapter: str, flag: str) -> Iterator[UserError]:
    """Problems of using the adapter in folder `adapter` on the model `base`: it was trained on other weights.

    Its manifest has the fingerprint of its base. Without one (an adapter from elsewhere, or a base on the Hub) another
    name is only said.
    """
    manifest = read_manifest(adapter) or {}
    recorded = manifest.get("base") or {}
    known = str(recorded.get("fingerprint", ""))
    if known and not known.startswith("hub:") and Path(base).is_dir():
        if known != fingerprint(base):
            yield ManifestError(
                f"the adapter in {adapter} was trained on other weights than those in {base}",
                place=f"{flag}: base fingerprint {known}",
                fix=f"use the base it was trained on: {recorded.get('name')}",
            )
        return
    named = read_checked(Path(adapter) / "adapter_config.json").get("base_model_name_or_path")
    if named and Path(named).name != Path(base).name:
        notice(f"the adapter in {adapter} names the base {named}, here it is used on {base}")


def recorded_chain(folder: str | Path) -> list[str] | None:
    """Folders of the adapters that were folded into the base when this one was trained; None without a record."""
    base = (read_manifest(folder) or {}).get("base")
    # Only runs on top of other adapters have the field.
    return None if base is None else list(base.get("adapters") or [])


def whole_chain(folders: list[str]) -> list[str]:
    """`folders`, preceded by the adapters that the first one was itself trained on."""
    if not folders:
        return []
    return [*(recorded_chain(folders[0]) or []), *folders]


def chain_problems(folders: list[str], flag: str) -> Iterator[UserError]:
    """Adapters that were trained on others than those before them.

    Args:
        folders: A whole chain, the adapter next to the base first.
        flag: The flag that named them.
    """
    for position, folder in enumerate(folders):
        recorded = recorded_chain(folder)
        if recorded is None:
            continue
        # By contents, not by path: a folder may have been moved, or another model written into it.
        then = [fingerprint_at_training(folder, below) or fingerprint(below) for below in recorded]
        now = [fingerprint(below) for below in folders[:position]]
        if then != now:
            was = " + ".join(["the base", *recorded])
            yield ManifestError(
                f"the adapter in {folder} was trained on {was}, here it would lie upon "
                + " + ".join(["the base", *folders[:position]]),
                place=f"{flag} {','.join(folders)}",
                fix=f"name {folder} alone, hftune knows the rest"
                if all(Path(below).is_dir() for below in recorded)
                else f"bring back {', '.join(below for below in recorded if not Path(below).is_dir())}",
            )


def fingerprint_at_training(folder: str | Path, below: str) -> str | None:
    """The fingerprint that the folder `below` had when the adapter in `folder` was trained on it."""
    parents = (read_manifest(folder) or {}).get("parents") or []
    return next((str(parent["fingerprint"]) for parent in parents if parent.get("folder") == below), None)


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
