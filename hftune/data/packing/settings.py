"""Whether and how the records of each split are packed."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError
from hftune.logging import notice

STRATEGIES = ("bfd", "bfd_split", "wrapped")


@dataclass(frozen=True)
class Packing:
    """How documents are packed.

    Args:
        max_length: Tokens a row, at most.
        strategy: `bfd` keeps documents whole (best fit, decreasing); `bfd_split` does so for segments of at most
            `max_length`; `wrapped` cuts one stream of all documents, in their order, every `max_length` tokens.
        cross_document_attention: Each row counts as one document: its tokens see all before them.
    """

    max_length: int
    strategy: str = "bfd"
    cross_document_attention: bool = False

    @property
    def cuts(self) -> bool:
        """Whether documents may be cut while packing, and so must not be before."""
        return self.strategy != "bfd"


def packing_by_split(training_args: StageArguments, length: str) -> dict[str, Packing]:
    """How the splits "train" and "eval" are packed; those that are not are left out.

    Args:
        length: Name of the argument that is the length of a row, of the arguments and of the function that tokenises.

    Raises:
        ArgumentError: No such length.
    """
    train = bool(training_args.packing)
    # Held-out records are packed as training ones are, unless asked otherwise: their losses stay comparable.
    chosen = {"train": train, "eval": train if training_args.eval_packing is None else training_args.eval_packing}
    _notice_unused_settings(training_args, any(chosen.values()), all(chosen.values()))
    if not any(chosen.values()):
        return {}
    if getattr(training_args, length) is None:
        raise ArgumentError("packing needs to know how long rows are", place=f"--{length}", fix="Give a length.")
    packing = Packing(
        getattr(training_args, length),
        training_args.packing_strategy,
        getattr(training_args, "cross_document_attention", False),
    )
    return {name: packing for name, packs in chosen.items() if packs}


def _notice_unused_settings(training_args: StageArguments, some: bool, every: bool) -> None:
    """Tell of settings of what is not done."""
    # A value that is the default may not have been given; only others are worth a word.
    defaults = {field.name: field.default for field in fields(training_args)}
    for name in ("packing_strategy", "cross_document_attention"):
        if not some and getattr(training_args, name, None) != defaults.get(name):
            notice(f"--{name} has no effect without --packing")
    if every and training_args.padding_free:
        notice("--padding_free has no effect: packed rows have no padding")
