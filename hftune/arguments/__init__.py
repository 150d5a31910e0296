"""What a user may ask for: dataclasses a topic, on the field's and TRL's names, and the parser that reads them."""

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.data import DataArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.parser import parse_arguments
from hftune.arguments.training import (
    DPOArguments,
    GRPOArguments,
    PTArguments,
    RLOOArguments,
    RMArguments,
    SFTArguments,
    StageArguments,
)

__all__ = [
    "AdapterArguments",
    "DPOArguments",
    "DataArguments",
    "GRPOArguments",
    "ModelArguments",
    "PTArguments",
    "RLOOArguments",
    "RMArguments",
    "SFTArguments",
    "StageArguments",
    "parse_arguments",
]
