"""What a script was asked for: four groups of arguments, typed by the stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from hftune.arguments.adapter import AdapterArguments
    from hftune.arguments.data import DataArguments
    from hftune.arguments.model import ModelArguments

Training = TypeVar("Training", covariant=True)


class RunArguments(NamedTuple, Generic[Training]):
    """The arguments of a run; `training` is the class of the stage, of RL that of the algorithm."""

    model: ModelArguments
    data: DataArguments
    adapter: AdapterArguments
    training: Training
