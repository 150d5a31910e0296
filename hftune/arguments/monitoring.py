"""What watches a run: a time-out for hangs, a profile of some steps, early stopping, and callbacks of the user's."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.errors import ArgumentError
from hftune.logging import notice

_FLAG = "--hang_timeout"
# Torch's own time-out of collectives waits so many seconds longer, so that the message that names the culprit comes.
_AFTER = 300


@dataclass
class HangTimeoutFields:
    """A time-out for every phase of a step, in every stage."""

    hang_timeout: float = field(
        default=1500.0,
        metadata={
            "help": "Seconds in which training must move on from one phase (data, forward, backward, optimizer step, "
            "save, a batch of evaluation, generation) to the next. After that every process says which rank is behind, "
            "and where, and ends with exit code 76. 0: never."
        },
    )

    def raise_ddp_timeout(self) -> None:
        """Let torch's own time-out come after this one: it says less, and ends a process in the middle of its words."""
        # NCCL's own time-out aborts the process at once: the watchdog must come first to say which rank was behind.
        collectives = self.ddp_timeout
        if self.hang_timeout and collectives < self.hang_timeout + _AFTER:
            # Of the TrainingArguments alongside; annotated, since this class does not declare it.
            self.ddp_timeout: int = int(self.hang_timeout) + _AFTER
            notice(f"--ddp_timeout is {self.ddp_timeout}: collectives wait longer than {_FLAG} {self.hang_timeout:g}")


@dataclass
class ProfileFields:
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

    def check_profile(self) -> None:
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


@dataclass
class CallbackFields:
    """Callbacks of transformers' Trainer by name, and what is measured of checkpoints."""

    callbacks: list[str] | None = field(
        default=None,
        metadata={
            "help": "Callbacks of yours: FILE.py:CLASS or MODULE:CLASS, subclasses of transformers' TrainerCallback; "
            "with arguments 'FILE.py:CLASS{\"after\": 3}'."
        },
    )
    eval_tasks: list[str] | None = field(
        default=None,
        metadata={
            "help": "Have `hftune evaluate` measure these tasks of every checkpoint, on --validation_file_dir (loss, "
            "exact_match, chrf, ...) or as lm-eval has them; training waits meanwhile."
        },
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": "Stop after so many evaluations in a row that bring --metric_for_best_model no further. It needs "
            "held-out records, --eval_strategy and --load_best_model_at_end."
        },
    )
    early_stopping_threshold: float = field(
        default=0.0,
        metadata={"help": "For --early_stopping_patience: what is no more than this does not count as better."},
    )
