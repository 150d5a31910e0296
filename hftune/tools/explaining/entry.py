"""`hftune explain NAME ...`."""

from __future__ import annotations

from hftune.errors import ArgumentError
from hftune.visible import say


def explain(argv: list[str]) -> None:
    """What names of arguments mean, hftune's own and those of other tools."""
    if not argv:
        raise ArgumentError("`hftune explain` needs a name", fix="hftune explain lora_rank")
    # It builds the parsers of all stages: not before the command is known to be right.
    from hftune.tools.explaining.explain import explain as meaning

    say("\n\n".join(meaning(name.partition("=")[0]) for name in argv))
