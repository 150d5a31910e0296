"""The arguments of `hftune chat`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hftune.arguments.asking import TalkerFields
from hftune.errors import ArgumentError


@dataclass
class ChatArguments(TalkerFields):
    """A conversation in the terminal with one model, or the same questions to two."""

    models: list[str] | None = field(
        default=None,
        metadata={"help": "One folder (whole, merged or an adapter) or Hub name, or two; also given alone."},
    )
    adapter: list[str] | None = field(
        default=None,
        metadata={"help": "Folders of adapters on the model, the one next to it first; each alone knows its base."},
    )
    system_prompt: str | None = field(
        default=None, metadata={"help": "The system message. Left out: as the run was that made the model; '': none."}
    )
    tools: str | None = field(
        default=None,
        metadata={"help": "JSON file of the tools that are offered, as records of a data set have them."},
    )
    max_new_tokens: int = field(default=1024, metadata={"help": "Tokens of an answer; a longer one is cut, and said."})
    temperature: float | None = field(
        default=None,
        metadata={"help": "0: the likeliest token each time. Left out: as the model's generation_config.json says."},
    )
    top_p: float | None = field(
        default=None, metadata={"help": "Draw from the likeliest tokens that have this probability together."}
    )
    top_k: int | None = field(
        default=None, metadata={"help": "Draw from this many of the likeliest tokens; 0: from all."}
    )
    seed: int | None = field(default=None, metadata={"help": "Seed of what is drawn; left out: another one each time."})


def check_models(args: ChatArguments) -> Iterator[ArgumentError]:
    """Models that are too few or too many."""
    if not args.models:
        yield ArgumentError("no model was named", place="--models", fix="hftune chat outputs/sft-merged")
    elif len(args.models) > 2:
        fix = "hftune ask puts the same questions to any number"
        yield ArgumentError(f"{len(args.models)} models are named, and two talk alongside", place="--models", fix=fix)
    elif args.adapter and len(args.models) == 2:
        fix = "name the adapter's folder as a model: its base is known"
        yield ArgumentError("of two models it is open which one the adapter is for", place="--adapter", fix=fix)
