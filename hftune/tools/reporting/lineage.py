"""Where a model came from: from its folder back to the base, by the manifests, and whether all of it still holds."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
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
from hftune.errors import ArgumentError, ManifestError
from hftune.tools.reporting.stages import ASKED, EVALUATED, written_by_hftune
from hftune.tools.words import taken
from hftune.visible import as_json, say
from hftune.weight_files import fingerprint

_METRICS = ("train_loss", "eval_loss", "eval_perplexity", "eval_accuracy", "eval_token_accuracy", "eval_reward")


@dataclass
class Origin:
    """A model or adapter in the chain.

    Args:
        name: Its folder, or a Hub name.
        role: What the one below it used it as: base, adapter, reward model, ...; empty for the model asked about.
        manifest: Empty where hftune did not make it.
        faults: What no longer is as it was when it was used.
        parents: What it was made from.
    """

    name: str
    role: str
    manifest: Manifest
    faults: list[str] = field(default_factory=list)
    parents: list[Origin] = field(default_factory=list)

    def walk(self, without: Container[str] = ()) -> Iterator[Origin]:
        """All origins, parents before what was made from them, each folder once; no parents of roles `without`."""
        seen: set[str] = set()

        def behind(origin: Origin) -> Iterator[Origin]:
            if origin.name not in seen:
                seen.add(origin.name)
                for parent in origin.parents:
                    if parent.role not in without:
                        yield from behind(parent)
                yield origin

        return behind(self)

    def all_faults(self) -> list[str]:
        """The faults of all origins and of all uses of them, each once."""
        uses = [use for origin in self.walk() for use in (origin, *origin.parents)]
        return list(dict.fromkeys(fault for use in uses for fault in use.faults))

    def to_dict(self) -> dict[str, Any]:
        """The origin and its parents as plain values for JSON."""
        return {
            "name": self.name,
            "role": self.role,
            "stage": self.manifest.get("stage"),
            "status": self.manifest.get("status"),
            "kind": self.manifest.get("kind"),
            "hftune": self.manifest.get("hftune"),
            "trained_on": trained_on(self.manifest),
            "settings": settings(self.manifest),
            "metrics": metrics(self.manifest),
            "verified": self.manifest.get("verified"),
            "before_resuming": [
                {"until_step": leg.get("until_step"), "trained_on": trained_on(leg), "changed": leg.get("changed")}
                for leg in self.manifest.get(HISTORY) or []
            ],
            "faults": self.faults,
            "parents": [parent.to_dict() for parent in self.parents],
        }


def trace(folder: str | Path) -> Origin:
    """A folder with everything that it was made from, back to the base.

    Raises:
        ManifestError: The folder is not there, or hftune did not make it.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise ManifestError(
            f"{folder} has no hftune.json" if Path(folder).is_dir() else f"there is no folder {folder}",
            place=str(folder),
            fix="give an output folder of a stage or a merge",
        )
    return _trace(str(folder), "", {}, ())


def _trace(name: str, role: str, known: dict[str, Origin], within: tuple[str, ...]) -> Origin:
    """A folder with everything that it was made from; each folder is read once."""
    if name in known:
        # A copy: role and weights that have changed belong to this use of the folder, not to the folder.
        found = known[name]
        return Origin(name, role, found.manifest, list(found.faults), found.parents)
    manifest = read_manifest(name) or {}
    with written_by_hftune(name, "the manifest or the files"):
        origin = Origin(name, role, manifest, list(_own_faults(name, manifest)))
        # Whoever shows or counts it must find what it reads.
        origin.to_dict(), [*_details(origin)]
        parents = [(from_here(parent, name, manifest), what, then) for parent, what, then in parents_of(manifest)]
    if name in within:  # a folder that was replaced by what was made from it
        origin.faults.append("it was made from itself: the folder has been used again")
        return origin
    for parent, what, expected in parents:
        traced = _trace(parent, what, known, (*within, name))
        traced.faults += _other_weights(parent, expected)
        origin.parents.append(traced)
    known[name] = origin
    return origin


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
    return [
        {
            "split": split,
            **{
                name: about.get(name)
                for name in ("files", "rows", "used", "dropped", "truncated", "tokens", "trained_tokens", "fingerprint")
            },
        }
        for split, about in (manifest.get("data") or {}).items()
    ]


def metrics(manifest: Manifest) -> dict[str, float]:
    """The metrics of the run that a line has room for."""
    found = manifest.get("metrics") or {}
    return {name: found[name] for name in _METRICS if isinstance(found.get(name), int | float)}


# --- as text ----------------------------------------------------------------------------------------------------------


def draw(origin: Origin) -> str:
    """The chain as a tree, the model asked about at the root, and below it what all of it was trained on."""
    lines = [*_tree(origin, "", "", "", set()), "", *_summary(origin)]
    return "\n".join(lines)


def _tree(origin: Origin, first: str, rest: str, role: str, shown: set[str]) -> Iterator[str]:
    # A folder that several came from is drawn with its parents once.
    known = origin.name in shown and bool(origin.manifest)
    shown.add(origin.name)
    yield f"{first}{role}{origin.name}{'  (see above)' if known else _what(origin.manifest)}"
    parents = [] if known else origin.parents
    details = [f"! {fault}" for fault in origin.faults] if known else _details(origin)
    for detail in details:
        yield f"{rest}{'│ ' if parents else '  '}  {detail}"
    for number, parent in enumerate(parents, start=1):
        last = number == len(parents)
        branch, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
        yield from _tree(parent, rest + branch, rest + below, f"{parent.role}: ", shown)


def _what(manifest: Manifest) -> str:
    if not manifest:
        return "  (not made by hftune)"
    stage = manifest.get("stage")
    if stage == "merge":
        return f"  [{manifest.get('merged_stage') or 'adapter'} merged]"
    return f"  [{stage}, {manifest.get('kind')}]"


def _details(origin: Origin) -> Iterator[str]:
    manifest = origin.manifest
    for split in trained_on(manifest):
        yield _records(split)
    for leg in manifest.get(HISTORY) or []:
        yield from (f"until step {leg.get('until_step')}: {line}" for line in _other_leg(leg, manifest))
    shown = [f"{name} {value}" for name, value in settings(manifest).items()]
    if shown:
        yield ", ".join(shown)
    found = [f"{name} {value:.4g}" for name, value in metrics(manifest).items()]
    if found:
        yield ", ".join(found)
    verified = manifest.get("verified")
    if verified and verified.get("largest") is not None:
        yield f"verified: differs from base + adapter by {verified['largest']:.1e} at most"
    for fault in origin.faults:
        yield f"! {fault}"


def _other_leg(leg: Manifest, manifest: Manifest) -> Iterator[str]:
    """What was otherwise before a run was resumed: its records, and the settings that a line shows."""
    if not same_records(leg, manifest):
        yield from (_records(split) for split in trained_on(leg) if split["split"] == "train")
    changed = leg.get("changed") or {}
    other = [f"{name} {changed[name][0]} (then {changed[name][1]})" for name in SETTINGS if name in changed]
    if other:
        yield ", ".join(other)


def _records(split: dict[str, Any]) -> str:
    files = split["files"] or []
    names = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
    parts = [f"{split['used']:,} of {split['rows']:,} records" if split.get("rows") else f"{split.get('used')} records"]
    parts += [f"{sum(split['dropped'].values())} dropped"] if split.get("dropped") else []
    parts += [f"{split['truncated']} truncated"] if split.get("truncated") else []
    parts += [f"{split['trained_tokens']:,} trained tokens an epoch"] if split.get("trained_tokens") else []
    return f"{split['split']}: {names or 'generated'} ({', '.join(parts)})"


def _summary(origin: Origin) -> Iterator[str]:
    """The records of the stages whose weights are in the model, and whether all of it still holds."""
    # Reward models are none of them: the weights never saw their records.
    members = [member for member in origin.walk(without=("reward model", "asked")) if trained_on(member.manifest)]
    if members:
        yield f"{origin.name} was trained on:"
    for member in members:
        legs = [leg for leg in member.manifest.get(HISTORY) or [] if not same_records(leg, member.manifest)]
        for split in (split for leg in (*legs, member.manifest) for split in trained_on(leg)):
            if split["split"] == "train":
                files = ", ".join(split["files"] or ["generated records"])
                yield f"  {member.manifest['stage']:<4} {files}: {split.get('used') or 0:,} records"
    faults = origin.all_faults()
    yield "all fingerprints hold" if not faults else f"{len(faults)} thing(s) no longer hold (marked !)"


def main(argv: list[str]) -> None:
    """Run `hftune lineage FOLDER [--json]`.

    Raises:
        SystemExit: With 1 where something no longer holds.
    """
    folders, given = taken("hftune lineage", argv, switches={"--json"})
    if len(folders) != 1:
        raise ArgumentError("`hftune lineage` needs one folder", fix="hftune lineage outputs/sft-merged [--json]")
    origin = trace(folders[0])
    say(as_json(origin.to_dict(), indent=2) if "--json" in given else draw(origin))
    if origin.all_faults():
        raise SystemExit(1)
