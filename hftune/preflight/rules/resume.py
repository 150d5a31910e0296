"""Rules about resuming: the checkpoint exists, is whole, has state, and fits this run's batch and groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hftune.arguments.training import StageArguments
from hftune.checkpoints.integrity import engine_folder, read_record
from hftune.checkpoints.resume import unfinished_problems
from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError
from hftune.preflight.facts import Facts


def check_resume(facts: Facts) -> Iterator[UserError]:
    """Problems of `--resume_from_checkpoint`, also where it was forgotten after an interruption."""
    yield from check_groups(facts.checkpoint.folder, facts.training_args)
    yield from unfinished_problems(facts.training_args)
    yield from facts.checkpoint.problems


def check_groups(folder: Path | None, training_args: StageArguments) -> Iterator[UserError]:
    """A problem where sharded matrices or experts would resume in other groups, another world or ZeRO stage."""
    engine = engine_folder(folder) if folder is not None and folder.is_dir() else None
    if folder is None or engine is None:
        return
    record = read_record(folder) or {}
    then: dict[str, int | None] = {
        # Machines that share no files have the pieces of their own processes only.
        "--tensor_parallel_size": int(record.get("tensor_parallel_size") or tensor_ranks(engine)),
        "--expert_parallel_size": int(record.get("expert_parallel_size", 1)),
    }
    now: dict[str, int | None] = {name: int(getattr(training_args, name.removeprefix("--"))) for name in then}
    # Without groups a state of any world is resharded when it is read.
    if any((size or 1) > 1 for size in (*then.values(), *now.values())):
        then |= {"ZeRO stage": record.get("zero_stage"), "processes": record.get("world_size")}
        now |= {"ZeRO stage": training_args.zero_stage, "processes": ranks.world_size()}
    other = [name for name, value in then.items() if value not in (None, now[name])]
    if other:
        yield ArgumentError(
            f"{folder} was written with {', '.join(f'{name} {then[name]}' for name in other)}, and this run has "
            f"{', '.join(str(now[name]) for name in other)}: the optimizer's state lies in other pieces",
            place=f"--resume_from_checkpoint, {', '.join(other)}",
            fix="resume as it was written; or begin with its weights alone, in another --output_dir: "
            f"--warm_start {folder}",
        )


def tensor_ranks(engine: Path) -> int:
    """The number of tensor-parallel processes that wrote a folder of DeepSpeed, by the names of its files."""
    found = {match[1] for file in engine.glob("*mp_rank_*.pt") if (match := re.search(r"mp_rank_(\d+)", file.name))}
    return max(1, len(found))
