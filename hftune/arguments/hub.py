"""Which hub names are looked up on."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class HubFields:
    """For all that takes the name of a model or a data set."""

    hub: str | None = field(
        default=None,
        metadata={
            "help": "Where names of models and data sets are looked up, and results are pushed to. Left out: as the "
            "variable HFTUNE_HUB says, else huggingface.",
            "choices": ["huggingface", "modelscope"],
        },
    )
