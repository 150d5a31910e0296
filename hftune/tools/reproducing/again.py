"""The command line that runs what a manifest says once more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hftune.arguments.names.table import table
from hftune.arguments.raw_arguments import RawArguments, given_on_command_line, take_config
from hftune.arguments.stage_table import STAGES
from hftune.checkpoints.file_records import changed_input
from hftune.checkpoints.inputs import paths_of
from hftune.checkpoints.manifest import Manifest
from hftune.errors import ArgumentError, ManifestError, UserError, raise_together
from hftune.secret_names import MASK
from hftune.tools.reporting.stages import PROGRESS

_STOP = "hftune.trainers.callbacks:StopAt"


def stage_of_run(manifest: Manifest | None, folder: Path) -> str:
    """The stage that made a folder.

    Raises:
        ManifestError: It is none of a training run.
    """
    stage = (manifest or {}).get("stage")
    if manifest is None or str(stage) not in STAGES or not isinstance(manifest.get("command"), list):
        made = f"a result of `{stage}`" if stage else "not made by hftune"
        fix = f"name the output folder of one of: {', '.join(STAGES)}"
        raise ManifestError(f"{folder} holds no training run: it is {made}", place=str(folder), fix=fix)
    return str(stage)


def words_again(
    manifest: Manifest,
    lines: Sequence[Mapping[str, Any]],
    folder: Path,
    output: Path,
    steps: int | None,
    rest: list[str],
) -> list[str]:
    """The arguments of the script: those of the manifest, with a folder of its own and without uploads.

    Args:
        lines: Of the run's log.
        rest: What the user gives in addition; it replaces what the manifest says.

    Raises:
        UserError: What the run needs is not there any more.
    """
    config, words = take_config([str(word) for word in manifest["command"][1:]])
    given = given_on_command_line(words)
    new = [*_of_its_own(manifest, lines, folder, output, steps), *given_on_command_line(rest)]
    replaced = {plain(name) for name, _ in new}
    kept = [(name, values) for name, values in given if plain(name) not in replaced]
    named = [*(["--config", config] if config else []), *_as_words(kept), *_as_words(_last_of_each(new))]
    _check_there(manifest, named)
    return named


def _of_its_own(
    manifest: Manifest, lines: Sequence[Mapping[str, Any]], folder: Path, output: Path, steps: int | None
) -> Iterator[tuple[str, list[Any]]]:
    asked = (manifest.get("arguments") or {}).get("training") or {}
    yield "output_dir", [str(output)]
    yield "resume_from_checkpoint", [_resumes_from(asked, lines, folder)]
    if asked.get("push_to_hub"):
        yield "push_to_hub", ["False"]
    if asked.get("report_to") not in (None, [], "none", ["none"]):
        yield "report_to", ["none"]
    if steps is not None:
        yield "callbacks", [*(asked.get("callbacks") or []), _STOP + json.dumps({"step": steps})]


def _resumes_from(asked: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """The checkpoint of another folder that the run began with; `none` where its own log has every step."""
    first = next((line["step"] for line in lines if line.get("began")), 0)
    if not first:
        return "none"
    checkpoint = str(asked.get("resume_from_checkpoint") or "")
    if not Path(checkpoint).is_dir():
        raise ManifestError(
            f"the run began at step {first}, from a checkpoint that is not there: {checkpoint or 'not named'}",
            place=str(folder / PROGRESS),
            fix="bring it back, or reproduce the run that wrote it",
        )
    return checkpoint


def plain(name: str) -> str:
    """An argument as hftune calls it, also where the command line has another tool's name."""
    row = table().get(name)
    return row.to if row is not None and isinstance(row.to, str) and row.to else name.replace("-", "_")


def _last_of_each(given: Iterable[tuple[str, list[Any]]]) -> RawArguments:
    return list({plain(name): (name, values) for name, values in given}.values())


def _as_words(given: Iterable[tuple[str, list[Any]]]) -> list[str]:
    # One value is joined to its name: it may begin with a dash.
    return [
        word
        for name, values in given
        for word in ([f"--{name}={values[0]}"] if len(values) == 1 else [f"--{name}", *map(str, values)])
    ]


def _check_there(manifest: Manifest, words: list[str]) -> None:
    """Refuse to start without what the command names; all of it in one message."""
    missing: list[UserError] = []
    masked = [word.partition("=")[0] for word in words if MASK in word]
    if masked:
        fix = f"give them once more: hftune reproduce FOLDER {masked[0]}=VALUE"
        cause = "a manifest holds no secrets, and the run was started with some"
        missing.append(ArgumentError(cause, place=", ".join(masked), fix=fix))
    recorded = manifest.get("inputs") or {}
    gone = [path for path in dict.fromkeys(paths_of(words)) if path in recorded and not Path(path).exists()]
    if gone:
        relative = any(not Path(path).is_absolute() for path in gone)
        where = "start this in the folder where the run was started, or " if relative else ""
        fix = f"{where}name their new places: hftune reproduce FOLDER --train_file_dir NEW, for instance"
        missing.append(ArgumentError("what the run read is not there any more", place=", ".join(gone), fix=fix))
    raise_together(missing)


def changed_inputs(manifest: Manifest, words: list[str]) -> list[str]:
    """What the command reads that is no longer as it was, in words."""
    recorded = manifest.get("inputs") or {}
    named = (path for path in dict.fromkeys(paths_of(words)) if path in recorded)
    return [fault for path in named for fault in changed_input(path, recorded[path], whole=True)]
