"""`hftune consolidate`."""

from __future__ import annotations

from hftune.arguments.stages import parse_command
from hftune.tools.consolidating.run import ConsolidateArguments
from hftune.tools.consolidating.run import consolidate as write


def consolidate(argv: list[str]) -> None:
    """Whole weights from a DeepSpeed checkpoint."""
    write(parse_command(ConsolidateArguments, argv))
