"""The global batch of a resumed run: as large as it was, or the steps would not be the same records.

The Trainer skips the records of a resumed epoch by steps times batch. Data that know their own position (tokenised
folders and streams) resume exactly with a batch of any size.
"""

from __future__ import annotations

from typing import Any

from hftune.arguments.data import DataArguments
from hftune.arguments.training import StageArguments
from hftune.checkpoints.integrity import read_record
from hftune.checkpoints.resume import requested_checkpoint
from hftune.errors import ArgumentError
from hftune.logging import notice

# Pairs of flags that a refusal names.
_SHOWN = 4


def matching_accumulation(args: StageArguments, data_args: DataArguments) -> int:
    """Gradient accumulation steps that keep the checkpoint's global batch; those asked for where nothing is resumed.

    Raises:
        ArgumentError: There is no such number.
    """
    steps, folder = int(args.gradient_accumulation_steps), requested_checkpoint(args).folder
    then = (read_record(folder) or {}).get("global_batch") if folder else None
    if then is None or _may_change(args, data_args):
        return steps
    share = args.per_device_train_batch_size * args.data_parallel_size
    if share * steps == then:
        return steps
    # In RL a step's batch is generated as a whole, so that its parts cannot be chosen here.
    if then % share or hasattr(args, "steps_per_generation"):
        raise ArgumentError(
            f"{folder} was made with {then} records a step, this run would make steps of "
            f"{args.data_parallel_size} process(es) x {args.per_device_train_batch_size} x {steps} = {share * steps}",
            place="--per_device_train_batch_size, --gradient_accumulation_steps and the number of processes",
            fix=_what_fits(int(then), args.data_parallel_size),
        )
    return int(then) // share


def keep_global_batch(args: StageArguments, data_args: DataArguments) -> None:
    """Set the accumulation to `matching_accumulation`, also in the DeepSpeed config made of the arguments."""
    steps = matching_accumulation(args, data_args)
    total = args.per_device_train_batch_size * args.data_parallel_size * steps
    if steps == args.gradient_accumulation_steps:
        return
    notice(
        f"--gradient_accumulation_steps {args.gradient_accumulation_steps} is {steps} in this run: steps have "
        f"{total} records, as in the checkpoint that it resumes from"
    )
    vars(args)["gradient_accumulation_steps"] = steps
    config: Any = getattr(getattr(args, "hf_deepspeed_config", None), "config", None)
    if config is not None:
        config["gradient_accumulation_steps"] = steps
        # DeepSpeed counts every process, also those that see the same rows.
        config["train_batch_size"] = total * args.mesh.sharing


def _may_change(args: StageArguments, data_args: DataArguments) -> bool:
    """Whether records are not skipped by counting steps, or the batch is split by somebody else."""
    other = args.ignore_data_skip or args.auto_find_batch_size or args.parallelism_config is not None
    return bool(other or data_args.tokenized or data_args.streaming)


def _what_fits(batch: int, processes: int) -> str:
    """Numbers whose product is the batch, as flags."""
    if batch % processes:
        counts = [str(count) for count in range(1, batch + 1) if batch % count == 0]
        return f"use a number of processes that {batch} can be divided by: {', '.join(counts[:12])}"
    share = batch // processes
    pairs = [(micro, share // micro) for micro in range(share, 0, -1) if share % micro == 0][:_SHOWN]
    shown = (f"--per_device_train_batch_size {micro} --gradient_accumulation_steps {steps}" for micro, steps in pairs)
    return f"use {', or '.join(shown)}"
