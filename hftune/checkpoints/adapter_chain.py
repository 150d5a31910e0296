"""What an adapter lies upon: the base and the other adapters that `hftune.json` says it was trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hftune.checkpoints.manifest import read_manifest
from hftune.errors import ManifestError, UserError
from hftune.logging import notice
from hftune.opening.model_files import read_checked
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
