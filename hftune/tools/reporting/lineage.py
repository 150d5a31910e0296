"""Where a model came from: from its folder back to the base, by the manifests, and whether all of it still holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hftune.checkpoints.file_records import changed_input
from hftune.checkpoints.manifest import (
    COMPLETE,
    HISTORY,
    SETTINGS,
    Manifest,
    from_here,
    read_manifest,
    same_records,
    settings,
)
from hftune.digests import changed_files
from hftune.errors import ManifestError
from hftune.tools.reporting.stages import ASKED, EVALUATED, written_by_hftune
from hftune.tools.words import Words
from hftune.visible import as_json, say
from hftune.weight_files import fingerprint

_METRICS = ("train_loss", "eval_loss", "eval_perplexity", "eval_accuracy", "eval_token_accuracy", "eval_reward")
_COUNTS = ("files", "rows", "used", "dropped", "truncated", "tokens", "trained_tokens", "fingerprint")

Origin = dict[str, Any]
"""A model or adapter in the chain, as `--json` prints it.

`name` is its folder or Hub name; `role`, what the one below it used it as (empty for the model asked about); `faults`,
what no longer is as it was when it was used; `parents`, origins that it was made from. `stage` and what follows from
the manifest are None or empty where hftune did not make it.
"""


def trace(folder: str | Path) -> Origin:
    """A folder with everything that it was made from, back to the base.

    Raises:
        ManifestError: The folder is not there, or hftune did not make it.
    """
    if read_manifest(folder) is None:
        raise ManifestError(
            f"{folder} has no hftune.json" if Path(folder).is_dir() else f"there is no folder {folder}",
            place=str(folder),
            fix="give an output folder of a stage or a merge",
        )
    return _trace(str(folder), "", None, {}, ())


def _trace(name: str, role: str, expected: str | None, known: dict[str, Origin], within: tuple[str, ...]) -> Origin:
    """A folder with everything that it was made from; each folder is read once."""
    if name not in known:
        known[name] = _origin(name, known, within)
    # A copy: role and weights that have changed belong to this use of the folder, not to the folder.
    return known[name] | {"role": role, "faults": [*known[name]["faults"], *_other_weights(name, expected)]}


def _origin(name: str, known: dict[str, Origin], within: tuple[str, ...]) -> Origin:
    manifest = read_manifest(name) or {}
    with written_by_hftune(name, "the manifest or the files"):
        origin = _about(name, manifest)
        # Whoever shows it must find what it reads.
        list(_details(origin))
        parents = [(from_here(parent, name, manifest), what, then) for parent, what, then in parents_of(manifest)]
    if name in within:  # a folder that was replaced by what was made from it
        origin["faults"].append("it was made from itself: the folder has been used again")
        return origin
    origin["parents"] = [_trace(parent, role, then, known, (*within, name)) for parent, role, then in parents]
    return origin


def _about(name: str, manifest: Manifest) -> Origin:
    """What a manifest says of a folder."""
    found = manifest.get("metrics") or {}
    origin = {key: manifest.get(key) for key in ("stage", "merged_stage", "status", "kind", "hftune", "verified")}
    before = [
        {"until_step": leg.get("until_step"), "trained_on": trained_on(leg), "changed": leg.get("changed")}
        | {"same_records": same_records(leg, manifest)}
        for leg in manifest.get(HISTORY) or []
    ]
    return origin | {
        "name": name,
        "trained_on": trained_on(manifest),
        "settings": settings(manifest),
        "metrics": {key: found[key] for key in _METRICS if isinstance(found.get(key), int | float)},
        "before_resuming": before,
        "faults": list(_own_faults(name, manifest)),
        "parents": [],
    }


def all_faults(origin: Origin) -> list[str]:
    """The faults of an origin and of all that it was made from, each once."""
    below = (fault for parent in origin["parents"] for fault in all_faults(parent))
    return list(dict.fromkeys([*origin["faults"], *below]))


def parents_of(manifest: Manifest) -> Iterator[tuple[str, str, str | None]]:
    """Name, role and fingerprint of everything that a result was made from, each once."""
    found: dict[str, tuple[str, str | None]] = {}
    # First: a base that is also listed among the parents keeps its role.
    base = manifest.get("base") or {}
    if base.get("name"):
        found[str(base["name"])] = ("base", base.get("fingerprint"))
    for teacher in manifest.get("teachers") or []:
        found.setdefault(str(teacher["name"]), ("teacher", teacher.get("fingerprint")))
    role = "asked" if manifest.get("stage") in (ASKED, EVALUATED) else "adapter"
    for parent in manifest.get("parents") or []:
        found.setdefault(str(parent["folder"]), (role, parent.get("fingerprint")))
    asked = (manifest.get("arguments") or {}).get("training") or {}
    inputs = manifest.get("inputs") or {}
    # Reward models are named in the arguments: nothing of their weights is in the result.
    for name in asked.get("reward_model_path") or []:
        found.setdefault(str(name), ("reward model", (inputs.get(name) or {}).get("model")))
    yield from ((name, role, seen) for name, (role, seen) in found.items())


def _other_weights(name: str, expected: str | None) -> Iterator[str]:
    """What is wrong where a parent no longer is what it was when it was used."""
    # A model of the Hub is recorded by its name; there is no folder to compare.
    if expected is None or expected.startswith("hub:"):
        return
    if not Path(name).is_dir():
        yield f"{name} is gone"
    elif fingerprint(name) != expected:
        yield f"the weights in {name} are not those that were used"


def _own_faults(name: str, manifest: Manifest) -> Iterator[str]:
    """What is wrong where the run did not finish, or its files or records are no longer what they were."""
    if manifest and manifest.get("status") != COMPLETE:
        yield f"it was not finished (status {manifest.get('status')})"
    # `whole`: every byte is read, since size and time also stay where a file was edited on purpose.
    yield from changed_files(Path(name), manifest.get("files") or {}, whole=True)
    # Of the legs before it was resumed, too. What several legs read is said once, by `all_faults`.
    for leg in (*(manifest.get(HISTORY) or []), manifest):
        for path, recorded in (leg.get("inputs") or {}).items():
            if "files" in recorded:  # models are parents and checked as such
                yield from changed_input(from_here(path, name, manifest), recorded, whole=True)


def trained_on(manifest: Manifest) -> list[dict[str, Any]]:
    """The records of a stage: files, counts and fingerprint of each split."""
    splits = (manifest.get("data") or {}).items()
    return [{"split": split} | {name: about.get(name) for name in _COUNTS} for split, about in splits]


# --- as text ----------------------------------------------------------------------------------------------------------


def draw(origin: Origin) -> str:
    """The chain as a tree, the model asked about at the root, and below it whether all of it still holds."""
    faults = all_faults(origin)
    told = f"{len(faults)} thing(s) no longer hold (marked !)" if faults else "all fingerprints hold"
    return "\n".join([*_tree(origin, "", "", set()), "", told])


def _tree(origin: Origin, first: str, rest: str, shown: set[str]) -> Iterator[str]:
    # A folder that several came from is drawn with its parents once.
    known = origin["name"] in shown and bool(origin["stage"])
    shown.add(origin["name"])
    role = f"{origin['role']}: " if origin["role"] else ""
    yield f"{first}{role}{origin['name']}{'  (see above)' if known else _what(origin)}"
    parents = [] if known else origin["parents"]
    for detail in [f"! {fault}" for fault in origin["faults"]] if known else _details(origin):
        yield f"{rest}{'│ ' if parents else '  '}  {detail}"
    for number, parent in enumerate(parents, start=1):
        branch, below = ("└─ ", "   ") if number == len(parents) else ("├─ ", "│  ")
        yield from _tree(parent, rest + branch, rest + below, shown)


def _what(origin: Origin) -> str:
    if not origin["stage"]:
        return "  (not made by hftune)"
    if origin["stage"] == "merge":
        return f"  [{origin['merged_stage'] or 'adapter'} merged]"
    return f"  [{origin['stage']}, {origin['kind']}]"


def _details(origin: Origin) -> Iterator[str]:
    yield from map(_records, origin["trained_on"])
    for leg in origin["before_resuming"]:
        until = f"until step {leg['until_step']}: "
        if not leg["same_records"]:
            yield from (until + _records(split) for split in leg["trained_on"] if split["split"] == "train")
        changed = leg["changed"] or {}
        other = [f"{name} {changed[name][0]} (then {changed[name][1]})" for name in SETTINGS if name in changed]
        yield from (until + ", ".join(other),) if other else ()
    shown = [f"{name} {value}" for name, value in origin["settings"].items()]
    found = [f"{name} {value:.4g}" for name, value in origin["metrics"].items()]
    yield from (", ".join(words) for words in (shown, found) if words)
    if origin["verified"] and origin["verified"].get("largest") is not None:
        yield f"verified: differs from base + adapter by {origin['verified']['largest']:.1e} at most"
    yield from (f"! {fault}" for fault in origin["faults"])


def _records(split: dict[str, Any]) -> str:
    files = split["files"] or []
    names = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
    parts = [f"{split['used']:,} of {split['rows']:,} records" if split.get("rows") else f"{split.get('used')} records"]
    parts += [f"{sum(split['dropped'].values())} dropped"] if split.get("dropped") else []
    parts += [f"{split['truncated']} truncated"] if split.get("truncated") else []
    parts += [f"{split['trained_tokens']:,} trained tokens an epoch"] if split.get("trained_tokens") else []
    return f"{split['split']}: {names or 'generated'} ({', '.join(parts)})"


def main(argv: list[str]) -> None:
    """Run `hftune lineage FOLDER [--json]`.

    Raises:
        SystemExit: With 1 where something no longer holds.
    """
    words = Words("hftune lineage")
    words.add_argument("folder")
    words.add_argument("--json", action="store_true")
    given = words.parse_args(argv)
    origin = trace(given.folder)
    say(as_json(origin, indent=2) if given.json else draw(origin))
    if all_faults(origin):
        raise SystemExit(1)
