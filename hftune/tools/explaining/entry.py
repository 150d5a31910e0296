"""`hftune explain NAME|NUMBER ...`."""

from __future__ import annotations

from hftune.errors import ArgumentError
from hftune.tools.explaining.numbers import explain_number, is_number, of_language
from hftune.visible import say


def explain(argv: list[str]) -> None:
    """What names mean, hftune's own and those of other tools, and what the numbers of errors mean."""
    names, language = of_language(argv)
    if not names:
        raise ArgumentError("`hftune explain` needs a name", fix="hftune explain lora_rank, or hftune explain HF101")
    say("\n\n".join(explain_number(name, language) if is_number(name) else _meaning(name) for name in names))


def _meaning(name: str) -> str:
    # It builds the parsers of all stages: not before the command is known to be right.
    from hftune.tools.explaining.explain import explain as meaning

    return meaning(name.partition("=")[0])
