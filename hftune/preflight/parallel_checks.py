"""Rules of tensor and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.arguments import StageArguments
from hftune.errors import ArgumentError, UserError


def check_parallel(training_args: StageArguments) -> Iterator[UserError]:
    """What is not built yet may not be asked for in silence."""
    for name in ("tensor_parallel_size", "expert_parallel_size"):
        if getattr(training_args, name) > 1:
            yield ArgumentError(f"--{name} does nothing yet", place=f"--{name}", fix="use --deepspeed zero3")
