"""What a user may ask for: dataclasses a topic, on the field's and TRL's names, and the parser that reads them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hftune.arguments.adapter import AdapterArguments
    from hftune.arguments.data import DataArguments
    from hftune.arguments.entry import parse_arguments
    from hftune.arguments.model import ModelArguments
    from hftune.arguments.preference import DPOArguments
    from hftune.arguments.reinforcement import GRPOArguments, OnlineDPOArguments, PPOArguments, RLOOArguments
    from hftune.arguments.rl import RLFields
    from hftune.arguments.run_arguments import RunArguments
    from hftune.arguments.training import PTArguments, RMArguments, SFTArguments, StageArguments

__all__ = [
    "AdapterArguments",
    "DPOArguments",
    "DataArguments",
    "GRPOArguments",
    "ModelArguments",
    "OnlineDPOArguments",
    "PPOArguments",
    "PTArguments",
    "RLFields",
    "RLOOArguments",
    "RMArguments",
    "RunArguments",
    "SFTArguments",
    "StageArguments",
    "parse_arguments",
]

_HOME = {
    "AdapterArguments": "adapter",
    "DPOArguments": "preference",
    "DataArguments": "data",
    "GRPOArguments": "reinforcement",
    "ModelArguments": "model",
    "OnlineDPOArguments": "reinforcement",
    "PPOArguments": "reinforcement",
    "RLFields": "rl",
    "RLOOArguments": "reinforcement",
    "RunArguments": "run_arguments",
    "parse_arguments": "entry",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the stages' arguments bring TRL along, which merging does not need."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'training')}"), name)
