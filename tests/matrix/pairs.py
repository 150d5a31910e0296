"""Runs both commands of a case and says what differs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.matrix.cases import Case
from tests.matrix.commands import Command, first, second
from tests.matrix.compare import differences, read

LIMIT_SECONDS = 60
"""A run takes one to five; one that hangs is ended."""
REFUSED = 2
_SAID = 1500


class Pairs:
    """Runs each command once: cases share what they begin with.

    Args:
        run: The fixture of this name.
        prepared: A folder that `prepare` has filled.
        work: Outputs and caches go here; each run has a cache of its own, or the second could take from it what it
            should have computed.
    """

    def __init__(self, run: Callable[..., Any], prepared: Path, work: Path) -> None:
        self.run, self.prepared, self.work = run, prepared, work
        self.made: dict[tuple[Command, str], tuple[Path, Any]] = {}

    def differences(self, case: Case, planted: str = "") -> list[str]:
        """What is not the same in both runs of a case, in words; none where both are refused alike.

        Args:
            planted: A fault of `planted.py` that both runs have.
        """
        one = first(case, self.prepared)
        folder, begun = self.start(one, planted)
        other = second(case, self.prepared, folder)
        if begun.code not in (0, REFUSED):
            return [f"the first run ended with code {begun.code}: {begun.output[-_SAID:]}"]
        changed, finished = self.start(other, planted)
        if finished.code != begun.code:
            said = f"the runs ended with codes {begun.code} and {finished.code}: {finished.output[-_SAID:]}"
            return [said if begun.code == 0 else f"{said} {begun.output[-_SAID:]}"]
        return differences(case, read(folder), read(changed)) if begun.code == 0 else []

    def start(self, command: Command, planted: str = "") -> tuple[Path, Any]:
        """The output folder of a command, and how it ended."""
        if (command, planted) not in self.made:
            folder = self.work / str(len(self.made))
            words = ("tests/matrix/planted.py", planted, command.script) if planted else (command.script,)
            with mock.patch.dict(os.environ, HFTUNE_CACHE=f"{folder}-cache"):
                finished = self.run(
                    *words,
                    *command.flags,
                    *("--output_dir", str(folder)),
                    launcher=f"torchrun {command.processes}" if command.processes > 1 else "python",
                    warm=True,
                    timeout=LIMIT_SECONDS,
                )
            self.made[command, planted] = folder, finished
        return self.made[command, planted]

    def lines(self, case: Case) -> str:
        """The two commands as a user types them."""
        folder, _ = self.start(first(case, self.prepared))
        both = (first(case, self.prepared), second(case, self.prepared, folder))
        return "\n".join(command.line(self.work / f"again-{n}") for n, command in enumerate(both, start=1))
