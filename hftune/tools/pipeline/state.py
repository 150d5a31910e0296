"""Of each step of a pipeline whether it is finished, to be resumed, or run again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.arguments.merging import parse_merge_arguments
from hftune.arguments.raw_arguments import given_on_command_line
from hftune.checkpoints.file_records import changed_input
from hftune.checkpoints.inputs import paths_of
from hftune.checkpoints.manifest import COMPLETE, Manifest, read_manifest
from hftune.digests import changed_files
from hftune.secrets import command_without_secrets, without_secrets
from hftune.tools.pipeline.steps import COMMANDS, HUB_TOKENS, MERGE, Step
from hftune.weight_files import fingerprint

DONE, RESUME, START, AGAIN, DAMAGED = "done", "resume", "start", "again", "damaged"

_WITHOUT_EFFECT = {
    *HUB_TOKENS,
    *("resume_from_checkpoint", "overwrite_output_dir", "local_rank", "disable_tqdm", "report_to", "run_name"),
    *("save_total_limit", "save_only_model", "async_save", "preprocessing_num_workers", "ignore_memory_check"),
    "preview",
    *("logging_steps", "logging_strategy", "logging_first_step", "log_level", "log_level_replica", "hang_timeout"),
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor"),
    *("profile", "profile_step_start", "profile_step_end", "push_to_hub", "hub_model_id", "hub_strategy"),
}
"""Arguments that change nothing of what a stage learns."""

_OF_CHECKPOINTS = {"save_steps", "save_strategy"}
"""Without effect as well, unless the result is chosen among the checkpoints."""


@dataclass(frozen=True)
class State:
    """The state of a step, which says what is to be done with it.

    Args:
        verdict: `DONE`, `RESUME` (it was interrupted), `START` (there is nothing), `AGAIN` (what it is made from has
            changed) or `DAMAGED` (its own files have).
        reasons: Of the last two: what has changed.
    """

    verdict: str
    reasons: tuple[str, ...] = ()


def state_of(step: Step) -> State:
    """The state of a step, read from its folder.

    Raises:
        ManifestError: Its manifest is damaged.
    """
    manifest = read_manifest(step.folder)
    if manifest is None:
        left = step.folder.is_dir() and any(step.folder.glob("checkpoint-*"))
        return State(AGAIN, ("there are checkpoints of an unknown run",)) if left else State(START)
    # Before completeness and damage: a result that is replaced anyway need be neither.
    reasons = tuple(changes(step, manifest))
    if reasons:
        return State(AGAIN, reasons)
    if manifest.get("status") != COMPLETE:
        return State(RESUME)
    broken = tuple(changed_files(step.folder, manifest.get("files") or {}))
    return State(DAMAGED, broken) if broken else State(DONE)


def damage(folder: Path) -> list[str]:
    """Files of a finished result that are no longer what was written; every byte is read."""
    manifest = read_manifest(folder) or {}
    return list(changed_files(folder, manifest.get("files") or {}, whole=True))


def changes(step: Step, manifest: Manifest) -> Iterator[str]:
    """Reasons why a result is not that of the step as it is now: other arguments, parents or data."""
    if step.script == MERGE:
        yield from _other_merge(step, manifest)
        return
    # Without `hftune ask` or its like, or the script. Manifests have secrets masked, so masked ones are compared.
    typed = manifest.get("command", [""])[2 if step.script in COMMANDS else 1 :]
    yield from _differences(_as_given(typed), _as_given(command_without_secrets(step.argv)))
    recorded = manifest.get("inputs")
    if recorded is None:
        yield "its manifest does not say what files it was made from"
        return
    for path in dict.fromkeys(paths_of(step.argv)):
        if path in recorded:
            yield from changed_input(path, recorded[path])


def _other_merge(step: Step, manifest: Manifest) -> Iterator[str]:
    now = without_secrets(vars(parse_merge_arguments(step.argv)))
    # An argument that an older version did not have counts as it is now, and is no change.
    then = {**now, **(manifest.get("arguments") or {})}
    yield from _differences({k: [str(v)] for k, v in then.items()}, {k: [str(v)] for k, v in now.items()})
    for parent in manifest.get("parents") or []:
        if fingerprint(parent["folder"]) != parent["fingerprint"]:
            yield f"the adapter in {parent['folder']} is another one"
    base = manifest.get("base") or {}
    # Only a local base can be read again; the Hub is not asked.
    if Path(str(base.get("name"))).is_dir() and fingerprint(base["name"]) != base.get("fingerprint"):
        yield f"the model in {base['name']} is another one"


def _as_given(argv: list[str]) -> dict[str, list[Any]]:
    given = dict(given_on_command_line(argv))
    without = _WITHOUT_EFFECT if "load_best_model_at_end" in given else _WITHOUT_EFFECT | _OF_CHECKPOINTS
    return {name: values for name, values in given.items() if name not in without}


def _differences(then: dict[str, list[Any]], now: dict[str, list[Any]]) -> Iterator[str]:
    for name in sorted({*then, *now}):
        before, after = (" ".join(given[name]) if name in given else None for given in (then, now))
        if before == after:
            continue
        if before is None:
            yield f"{name} {after} is new"
        elif after is None:
            yield f"{name} {before} was taken out"
        else:
            yield f"{name} was {before}, is {after}"
