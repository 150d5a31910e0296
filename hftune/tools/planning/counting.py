"""The number of optimizer steps of a run, where it is cheap to know: records are counted as lines, not read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from hftune.arguments.data import DataArguments
from hftune.arguments.training import PTArguments, StageArguments
from hftune.data.readers.files import find_files
from hftune.data.readers.specs import parse_sources
from hftune.errors import UserError

MOST_BYTES = 2 * 2**30
"""Most bytes of data files to count records in: more would take longer than the plan."""


@dataclass(frozen=True)
class Steps:
    """Steps of a run.

    Args:
        count: None where it is not known.
        because: Where the number is from, or why there is none.
    """

    count: int | None
    because: str


def steps_of(data_args: DataArguments, training_args: StageArguments, examples_a_step: int) -> Steps:
    """The steps of a run, from `--max_steps` or from the number of records.

    Args:
        examples_a_step: The global batch.
    """
    if training_args.max_steps > 0:
        return Steps(training_args.max_steps, "--max_steps")
    if isinstance(training_args, PTArguments) or getattr(training_args, "packing", False):
        return Steps(None, "rows are packed, and how many tokens the records have is known when they are tokenised")
    count, because = records(data_args)
    if count is None:
        return Steps(None, because)
    if data_args.max_train_samples >= 0:
        count = min(count, data_args.max_train_samples)
    # Without files of its own the validation set is taken from the training records.
    if not data_args.validation_file_dir and data_args.validation_split_percentage:
        count = round(count * (1 - data_args.validation_split_percentage / 100))
    # Two roundings as in the Trainer: an epoch's last, smaller batch is a step, and so is a last part of an epoch.
    steps = math.ceil(math.ceil(count / examples_a_step) * training_args.num_train_epochs)
    return Steps(max(1, steps), f"{count:,} records, {because}")


def records(data_args: DataArguments) -> tuple[int | None, str]:
    """The number of records and how they were counted; None and the reason where counting is not cheap."""
    if data_args.dummy_data:
        return data_args.dummy_data, "--dummy_data"
    if not data_args.train_file_dir:
        return None, "no data were named"
    try:
        specs = parse_sources(data_args.train_file_dir)
        # `PATH#500` is 500 records, however many the source has.
        files = [file for spec in specs if spec.take is None for file in find_files(spec.path, "--train_file_dir")]
    except UserError as problem:
        return None, problem.cause
    if any(file.suffix != ".jsonl" for file in files):
        return None, "only the lines of .jsonl files are counted here"
    if sum(file.stat().st_size for file in files) > MOST_BYTES:
        return None, "the files are too large to count them here"
    return sum(spec.take or 0 for spec in specs) + sum(map(_lines, files)), "one a line"


def _lines(file: Path) -> int:
    with file.open("rb") as stream:
        # Readers skip empty lines, so they are no records.
        return sum(bool(line.strip()) for line in stream)
