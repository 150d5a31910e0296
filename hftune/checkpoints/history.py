"""What a run was before: the legs of one that resumes, and the runs whose weights one begins with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hftune.checkpoints.manifest import Manifest, read_manifest
from hftune.secrets import redacted

HISTORY = "history"
"""The key of a manifest under which the legs before the last stand, oldest first."""

_OF_A_LEG = ("command", "versions", "world_size", "machine", "data", "inputs")
# What is another one in each leg, and changes nothing of it.
_OF_A_START = {"resume_from_checkpoint", "resume_anyway", "overwrite_output_dir"}


def with_history(now: Manifest, then: Manifest, steps: int) -> Manifest:
    """The manifest of a run with the legs before it.

    Args:
        now: Of the run that resumes.
        then: Of the checkpoint.
        steps: That it has behind it.
    """
    leg = {name: then[name] for name in _OF_A_LEG if name in then} | {"until_step": steps}
    return now | {HISTORY: [*(then.get(HISTORY) or []), leg | {"changed": changed_arguments(then, now)}]}


def changed_arguments(then: Manifest, now: Manifest) -> dict[str, list[Any]]:
    """Arguments with another value than in an earlier leg: name to [then, now]."""
    # As `write_manifest` writes it: the other one was read.
    given = json.loads(json.dumps(redacted(now.get("arguments") or {}), default=str))
    return {
        name: [values[name], given[group][name]]
        for group, values in (then.get("arguments") or {}).items()
        for name in sorted((values.keys() & given.get(group, {}).keys()) - _OF_A_START)
        if values[name] != given[group][name]
    }


def same_records(then: Manifest, now: Manifest) -> bool:
    """Whether two legs train the same records, as far as their manifests say."""
    one, other = ((manifest.get("data") or {}).get("train") or {} for manifest in (then, now))
    if not one or one.get("fingerprint") == other.get("fingerprint"):
        return True
    # The fingerprint is also of hftune's version: after an update, by what the files hold and what became of them.
    return _records(then, one) == _records(now, other)


def trained_before(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Files with held-out records that an earlier stage has trained, by what they hold: file, and folder of that stage.

    Args:
        manifest: Of a run that begins; its base and its adapters are followed as far back as their manifests are there.
    """
    held = _contents(manifest, "eval")
    teachers = {str(one.get("name")) for one in manifest.get("teachers") or []}
    for folder, earlier in _ancestors(manifest, set(teachers)):
        legs = [*(earlier.get(HISTORY) or []), earlier]
        # What both splits of a leg are of was divided by the seed: the same records were held out then, most likely.
        seen = {one for leg in legs for one in {*_contents(leg, "train").values()} - {*_contents(leg, "eval").values()}}
        yield from ((file, folder) for file, digest in held.items() if digest in seen)


def _ancestors(manifest: Manifest, seen: set[str]) -> Iterator[tuple[str, Manifest]]:
    """Every folder whose weights are in a run's, with its manifest, each once."""
    base = (manifest.get("base") or {}).get("name")
    for folder in [str(base or ""), *(str(parent["folder"]) for parent in manifest.get("parents") or [])]:
        if folder not in seen and (found := read_manifest(folder)) is not None:
            seen.add(folder)
            yield folder, found
            yield from _ancestors(found, seen)


def _records(manifest: Manifest, about: dict[str, Any]) -> list[Any]:
    """Digests of the training files in their order, their names where those are not known, and counts."""
    known = _contents(manifest, "train")
    counts = [about.get(name) for name in ("rows", "used", "dropped", "tokens", "trained_tokens", "packing")]
    return [[known.get(file, file) for file in about.get("files") or []], counts]


def _contents(manifest: Manifest, split: str) -> dict[str, str]:
    """Digests of the files of a split, of those that the manifest's inputs record."""
    known = {
        place: record[2]
        for path, recorded in (manifest.get("inputs") or {}).items()
        for name, record in (recorded.get("files") or {}).items()
        for place in (str(Path(path) / name), path if Path(path).name == name else "")
    }
    files = ((manifest.get("data") or {}).get(split) or {}).get("files") or []
    return {file: known[file] for file in files if file in known}
