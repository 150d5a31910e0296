"""What watches a run from outside its main thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hftune.logging import notice

_FLAG = "--hang_timeout"
_AFTER = 300
"""Seconds that torch's own time-out of collectives waits longer, so that the message that names the culprit comes."""


@dataclass
class WatchFields:
    """A time-out for every phase of a step, in every stage."""

    hang_timeout: float = field(
        default=1500.0,
        metadata={
            "help": "Seconds in which training must move on from one phase (data, forward, backward, optimizer step, "
            "save, a batch of evaluation, generation) to the next. After that every process says which rank is behind, "
            "and where, and ends with exit code 76. 0: never."
        },
    )

    if TYPE_CHECKING:  # what the TrainingArguments beside this class bring

        def __getattr__(self, name: str) -> Any: ...

    def settle_watching(self) -> None:
        """Let torch's own time-out come after this one: it says less, and ends a process in the middle of its words."""
        collectives: int = self.ddp_timeout  # type: ignore[has-type]
        if self.hang_timeout and collectives < self.hang_timeout + _AFTER:
            self.ddp_timeout = int(self.hang_timeout) + _AFTER
            notice(f"--ddp_timeout is {self.ddp_timeout}: collectives wait longer than {_FLAG} {self.hang_timeout:g}")
