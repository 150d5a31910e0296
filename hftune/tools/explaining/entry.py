"""`hftune explain NAME ...`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hftune.arguments.entry import kept
from hftune.errors import ArgumentError, did_you_mean
from hftune.visible import say


def explain(argv: list[str]) -> None:
    """What names of arguments mean, hftune's own and those of other tools.

    Raises:
        ArgumentError: No name, or one that neither hftune nor one of the other tools has; says the nearest.
    """
    if not argv:
        raise ArgumentError("`hftune explain` needs a name", fix="hftune explain lora_rank")
    texts = json.loads(kept("explain", [], _made))
    say("\n\n".join(_found(word.partition("=")[0].lstrip("-").replace("-", "_"), texts) for word in argv))


def _made() -> str:
    # The parsers of all stages import transformers, TRL and PEFT, which takes seconds: once for all names.
    from hftune.tools.explaining.explain import explanations

    return json.dumps(explanations())


def _found(name: str, texts: Mapping[str, str]) -> str:
    if name in texts:
        return texts[name]
    fix = did_you_mean(name, texts, written="--{}") or "all names, with what they do, are in docs/parameters.md"
    raise ArgumentError(f"nobody has --{name}", place="hftune explain", fix=fix)
