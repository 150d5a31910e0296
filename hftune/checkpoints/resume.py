"""Which checkpoint a run resumes from, and which old ones are removed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hftune.arguments.training import StageArguments
from hftune.checkpoints.integrity import RECORD_NAME, TRAINER_STATE, added_files, altered_files, checkpoint_fault
from hftune.checkpoints.manifest import is_complete
from hftune.constants import MANIFEST_NAME
from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError, raise_together
from hftune.logging import notice
from hftune.on_demand import on_demand
from hftune.opening.files import unsafe_entries
from hftune.opening.model_files import read_checked
from hftune.path_hints import missing_folder
from hftune.publishing.disk import free_name, is_plain_folder, lexists
from hftune.publishing.folder import clear_work, is_ours
from hftune.publishing.locks import folder_lock
from hftune.publishing.result_files import complete_result

_NAME = re.compile(r"checkpoint-(\d+)$")
# What `discard` calls a checkpoint.
_DISCARDED = re.compile(r"\.(checkpoint-\d+)\.old(-\d+)?")
FLAG = "--resume_from_checkpoint"
# Values of the flag that ask for a fresh start.
_ANEW = ("", "no", "none", "false")
REPLACED = ".replaced"
"""Ends the name of a checkpoint that makes room for another."""

PARTIAL = ".partial"
"""Folder below the output folder in which checkpoints are written before they are published."""


@dataclass
class FoundCheckpoint:
    """The checkpoint that was named, or the newest whole one of a folder.

    Attributes:
        folder: None where there is none.
        skipped: Newer ones that are not whole, with the reason.
        disagreement: Which machine has which as its newest, where no checkpoint is whole on all of them.
        fault: Why the folder is not whole, every byte of it read.
    """

    folder: Path | None = None
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    disagreement: str | None = None
    fault: str | None = None

    @cached_property
    def problems(self) -> tuple[UserError, ...]:
        """Why a run cannot resume from it; looked for once, though several rules ask."""
        return tuple(resume_problems(self))


def checkpoints(output_dir: Path) -> list[Path]:
    """Checkpoints of an output folder by step, the newest first, whole or not."""
    numbered = [(int(match[1]), folder) for folder in output_dir.glob("checkpoint-*") if (match := _step(folder))]
    return [folder for _, folder in sorted(numbered, reverse=True)]


def newest_whole(output_dir: Path) -> FoundCheckpoint:
    """The newest checkpoint that a run can resume from."""
    found = FoundCheckpoint()
    for folder in checkpoints(output_dir):
        fault = fault_of(folder)
        if fault is None:
            found.folder = folder
            break
        found.skipped.append((folder, fault))
    return found


def newest_on_all_machines(output_dir: Path) -> FoundCheckpoint:
    """The newest checkpoint that is whole on every machine; every rank must ask, and gets the same one.

    The first process of a machine looks for all of it. Machines that share their files have the same answer.
    """
    # Reading every byte of a checkpoint once per machine is enough.
    looks = ranks.local_rank() == 0
    own = newest_whole(output_dir) if looks else FoundCheckpoint()
    step = steps_done(own.folder)[0] if own.folder else None
    newest_common_step = on_demand("hftune.checkpoints.unshared_storage:newest_common_step")
    found, differ = newest_common_step(step, _older_whole(output_dir, step) if looks else [])
    if differ and found is None:
        return FoundCheckpoint(disagreement="; ".join(differ))
    if differ:
        notice(f"machines have different newest checkpoints ({'; '.join(differ)}): all resume from checkpoint-{found}")
    return FoundCheckpoint(output_dir / f"checkpoint-{found}" if found is not None else None, own.skipped)


def _older_whole(output_dir: Path, newest: int | None) -> list[int]:
    """Steps of whole checkpoints up to the newest."""
    # Without digests: the newest was read to the last byte already, and reading all of them would take minutes.
    folders = [folder for folder in checkpoints(output_dir) if newest is not None and checkpoint_fault(folder) is None]
    return [step for folder in folders if (step := steps_done(folder)[0]) <= (newest or 0)]


def find_checkpoint(args: StageArguments) -> str | None:
    """The checkpoint that `--resume_from_checkpoint` means: a folder, or the newest whole one for auto, last or true.

    Raises:
        ArgumentError: The run cannot resume from the folder that was named or found.
    """
    found = requested_checkpoint(args)
    for folder, fault in found.skipped:
        notice(f"{folder} is skipped: {fault}")
    raise_together(found.problems)
    if _wants_newest(args):
        start = f"no checkpoint in {args.output_dir}; starting anew"
        notice(f"resuming from {found.folder}" if found.folder else start)
    return str(found.folder) if found.folder else None


def requested_checkpoint(args: StageArguments) -> FoundCheckpoint:
    """What `--resume_from_checkpoint` means, looked up once for these arguments; every rank must ask. Says nothing."""
    # Kept: every byte is read for it. And by collectives: later some ranks may have stopped at a problem that others
    # do not have, and the rest would wait for them.
    known: FoundCheckpoint | None = vars(args).get("_requested_checkpoint")
    if known is None:
        known = vars(args)["_requested_checkpoint"] = _look_up(args)
    return known


def _look_up(args: StageArguments) -> FoundCheckpoint:
    if starts_fresh(args):
        return FoundCheckpoint()
    if _wants_newest(args):
        output = Path(args.output_dir or "")
        return newest_on_all_machines(output) if ranks.is_distributed() else newest_whole(output)
    folder = Path(str(args.resume_from_checkpoint))
    # Reading every byte once per machine is enough, here as there.
    own = fault_of(folder) if ranks.local_rank() == 0 and folder.is_dir() else None
    return FoundCheckpoint(folder, fault=next(filter(None, ranks.gathered_objects(own)), None))


def resume_problems(found: FoundCheckpoint) -> Iterator[UserError]:
    """Why a run cannot resume from what was asked for."""
    if found.folder and not found.folder.is_dir():
        yield missing_folder(found.folder, FLAG, "a checkpoint, or auto for the newest whole one")
        return
    if found.disagreement:
        yield ArgumentError(
            f"no checkpoint is whole on every machine: {found.disagreement}",
            place=FLAG,
            fix="name one, after copying its folders together; or start anew in another --output_dir",
        )
    elif found.folder and _is_output(found.folder):
        inside = newest_whole(found.folder).folder
        warm = f"it holds none; to begin anew with its weights, in another --output_dir: --warm_start {found.folder}"
        yield ArgumentError(
            f"{found.folder} is an output folder, not a checkpoint",
            place=FLAG,
            fix=f"give its newest one: {FLAG} {inside}; or auto with --output_dir {found.folder}" if inside else warm,
        )
    elif found.fault is not None:
        yield ArgumentError(
            f"nothing can resume from {found.folder}: {found.fault}",
            place=FLAG,
            fix="give another checkpoint, or auto for the newest whole one",
        )
    elif found.folder and has_weights_only(found.folder):
        yield ArgumentError(
            f"{found.folder} was saved without the optimizer's state (--save_only_model), and a run cannot resume "
            "without it",
            place=FLAG,
            fix=f"start anew from its weights, in another --output_dir: --warm_start {found.folder}",
        )
    elif found.folder:
        yield from on_demand("hftune.checkpoints.unshared_storage:missing_shards")(found.folder)
        yield from unsafe_entries(found.folder)


def _is_output(folder: Path) -> bool:
    """Whether a folder is a run's output, and no checkpoint under another name."""
    is_run = (folder / MANIFEST_NAME).is_file() or any(checkpoints(folder))
    return is_run and not _NAME.search(folder.name) and has_weights_only(folder)


def unfinished_problems(args: StageArguments) -> Iterator[UserError]:
    """The error for a fresh run in a folder with checkpoints: `auto` would later resume those of the run before."""
    if args.resume_from_checkpoint or not args.output_dir or not args.do_train or args.overwrite_output_dir:
        return
    if is_complete(Path(args.output_dir)):
        return  # said by what looks at the folder: there is nothing to resume
    found = [folder for folder in checkpoints(Path(args.output_dir)) if checkpoint_fault(folder) is None]
    if not found:
        return
    anew = f"to begin anew: --resume_from_checkpoint none, which renames them ({found[0].name}{REPLACED})"
    takes_up = "to resume it: --resume_from_checkpoint auto"
    if has_weights_only(found[0]):
        takes_up = f"to begin with its weights in another --output_dir: --warm_start {found[0]}"
    yield ArgumentError(
        f"{args.output_dir} holds a run that reached {found[0].name}",
        place="--output_dir",
        fix=f"{takes_up}; {anew}",
    )


def rename_earlier_run(output_dir: Path, logs: Iterable[str]) -> None:
    """Rename the checkpoints and logs of an earlier run, so that nothing takes them for those of the run that starts.

    Args:
        logs: Names of the files to which a run appends.
    """
    for place in (*checkpoints(output_dir), *filter(lexists, (output_dir / name for name in logs))):
        kept = free_name(place.with_name(f"{place.name}{REPLACED}"))
        place.rename(kept)
        notice(f"{place} of an earlier run is now {kept.name}")


def has_weights_only(folder: Path) -> bool:
    """Whether a whole checkpoint holds no state of an optimizer."""
    return not any(folder.glob("global_step*")) and not any(folder.glob("*optimizer*"))


def starts_fresh(args: StageArguments) -> bool:
    """Whether nothing is to be resumed."""
    return str(args.resume_from_checkpoint or "").lower() in _ANEW


def _wants_newest(args: StageArguments) -> bool:
    return str(args.resume_from_checkpoint).lower() in ("auto", "last", "true")


def report_nothing_left(args: StageArguments, resume: str) -> None:
    """Say that nothing is left to train where a checkpoint has all steps asked for: the Trainer ends in silence."""
    steps, epochs = steps_done(Path(resume))
    if steps >= args.max_steps > 0 or (args.max_steps <= 0 and epochs >= args.num_train_epochs):
        goal = (
            f"--max_steps {args.max_steps}" if args.max_steps > 0 else f"--num_train_epochs {args.num_train_epochs:g}"
        )
        notice(f"nothing is left to train: {resume} has {steps} steps ({epochs:g} epochs) behind it; raise {goal}")


def steps_done(checkpoint: Path) -> tuple[int, float]:
    """Optimizer steps and epochs that a checkpoint has behind it."""
    state = read_checked(checkpoint / TRAINER_STATE)
    return int(state["global_step"]), float(state.get("epoch") or 0.0)


def remove_old(output_dir: Path, limit: int | None, best: str | None) -> list[Path]:
    """Delete the oldest checkpoints beyond `limit`; returns them.

    What is not whole counts for nothing and is left alone, so the newest whole one always stays, as does the best. So
    do checkpoints of other tools, links, and those into which somebody has put a file: they are not hftune's to delete.
    """
    if not limit or limit <= 0:
        return []
    whole = [
        folder
        for folder in filter(is_plain_folder, checkpoints(output_dir))
        if checkpoint_fault(folder) is None and not added_files(folder)
    ]
    # The newest whole one stays whatever the limit: a run must be able to resume.
    kept = whole[:1] + [folder for folder in whole[1:] if best and folder.resolve() == Path(best).resolve()]
    others = [folder for folder in whole if folder not in kept]
    doomed = others[max(0, limit - len(kept)) :]
    for folder in doomed:
        delete_discarded(discard(folder))
    return doomed


def discard(folder: Path) -> Path:
    """Take its name from a checkpoint of hftune's that is to be deleted; returns where it is now.

    A deletion that is cut short must not leave something that looks like a checkpoint.
    """
    discarded = free_name(folder.with_name(f".{folder.name}.old"))
    folder.rename(discarded)
    return discarded


def delete_discarded(folder: Path) -> None:
    """Delete what `discard` has renamed; what cannot be deleted now is left for the next start."""
    with suppress(OSError):
        # The record last: by it the next start knows that all that is left is hftune's.
        clear_work(folder, mark=RECORD_NAME)
        folder.rmdir()


def work_folder_in_the_way(output_dir: Path) -> Path | None:
    """What has the name of the folder in which checkpoints are written, and is not hftune's."""
    work = output_dir / PARTIAL
    return work if lexists(work) and not is_ours(work) else None


def remove_leftovers(output_dir: Path) -> None:
    """Delete what killed runs left half written or half deleted.

    Raises:
        ArgumentError: Something that hftune did not make has the name under which checkpoints are written.
    """
    foreign = work_folder_in_the_way(output_dir)
    if foreign is not None:
        raise ArgumentError(
            f"{foreign} is in the way, and hftune did not make it", place=str(foreign), fix="move it away"
        )
    shutil.rmtree(output_dir / PARTIAL, ignore_errors=True)
    _restore(output_dir)
    for folder, _ in _discarded(output_dir):
        delete_discarded(folder)


def restore_checkpoints(args: StageArguments) -> None:
    """Give checkpoints their names back that a run had renamed when it was killed in the middle of an exchange.

    A result that it had left ready is put in place, too. Such a checkpoint may be the only copy of the newest step.
    Called before the checkpoint to resume from is chosen. Where another run is at work in the folder nothing is done:
    this may be an exchange of its own.
    """
    folders = [Path(args.output_dir)] if args.output_dir else []
    for folder in folders:
        complete_result(folder)
    if not starts_fresh(args) and not _wants_newest(args):
        folders.append(Path(str(args.resume_from_checkpoint)).parent)
    for folder in folders:
        if any(_exchanged(folder)):
            # A folder that cannot be written is the business of its own rule.
            with suppress(ArgumentError, OSError), folder_lock(folder):
                _restore(folder)


def _restore(output_dir: Path) -> None:
    # Looked at one by one: of two that had one name, the first gets it back.
    for folder, place in _exchanged(output_dir):
        folder.rename(place)


def _exchanged(output_dir: Path) -> Iterator[tuple[Path, Path]]:
    """Discarded checkpoints that are whole and whose name nothing has, each with its place."""
    for folder, place in _discarded(output_dir):
        if not lexists(place) and checkpoint_fault(folder) is None:
            yield folder, place


def _discarded(output_dir: Path) -> list[tuple[Path, Path]]:
    """Checkpoints of hftune's that `discard` has renamed, each with the place it was taken from."""
    found = []
    for folder in filter(is_plain_folder, sorted(output_dir.glob(".checkpoint-*"))):
        named = _DISCARDED.fullmatch(folder.name)
        # Somebody may have a folder of such a name, or have put a file into this one.
        if named is not None and not added_files(folder):
            found.append((folder, output_dir / named[1]))
    return found


def fault_of(folder: Path) -> str | None:
    """Why a run cannot resume from a checkpoint, every byte of it read; None where it is whole."""
    # Digests first: what has changed may no longer be JSON or safetensors, and need not be parsed.
    names = altered_files(folder)
    return f"{', '.join(names)} no longer holds what was written" if names else checkpoint_fault(folder)


def _step(folder: Path) -> re.Match[str] | None:
    return _NAME.match(folder.name) if folder.is_dir() else None
