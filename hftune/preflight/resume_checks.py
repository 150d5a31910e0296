"""What a run goes on from: there, whole, with state, and made with a batch that this run can have."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.arguments import DataArguments, StageArguments
from hftune.checkpoints.batches import accumulation_that_fits
from hftune.checkpoints.resume import asked_for, resume_problems
from hftune.errors import UserError


def check_resume(data_args: DataArguments, training_args: StageArguments) -> Iterator[UserError]:
    """`--resume_from_checkpoint` can be done."""
    found = asked_for(training_args)
    problems = list(resume_problems(found))
    yield from problems
    if problems or found.folder is None:
        return
    try:
        accumulation_that_fits(training_args, data_args)
    except UserError as problem:
        yield problem
