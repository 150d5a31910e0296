"""What is measured of a run beside its losses."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.errors import ArgumentError


@dataclass
class MeasuringFields:
    """A profile of some steps. The names of its steps are Megatron's."""

    profile: bool = field(
        default=False,
        metadata={
            "help": "Write a torch.profiler trace of some steps and a table of what cost most, to output_dir/profile."
        },
    )
    profile_step_start: int = field(default=4, metadata={"help": "First step, counted from 1, of --profile."})
    profile_step_end: int = field(default=6, metadata={"help": "Last step of --profile."})
    profiler_rank0_only: bool = field(
        default=True, metadata={"help": "Profile the first process alone, not every one."}
    )

    def settle_profile(self) -> None:
        """Refuse steps that are none.

        Raises:
            ArgumentError: The last step comes before the first, or the first is none.
        """
        if not 1 <= self.profile_step_start <= self.profile_step_end:
            raise ArgumentError(
                f"steps {self.profile_step_start} to {self.profile_step_end} are none",
                place="--profile_step_start, --profile_step_end",
                fix="count steps from 1, the last at or after the first",
            )
