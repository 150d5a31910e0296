"""Flags that many runs of `hftune parity` share."""

from __future__ import annotations

from hftune.tools.parity.runs import Run


def sft(*flags: str, **more: object) -> Run:
    """A run of SFT."""
    return Run("sft", flags, **more)  # type: ignore[arg-type]


WHOLE = ("--packing", "False", "--block_size", "256")
"""PT: a text a row, uncut."""
HALVES = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2")
QUARTERS = ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4")
EACH_FOUR: tuple[str, ...] = ("--per_device_train_batch_size", "4")
LORA = ("--use_peft", "--lora_rank", "4", "--target_modules", "all")
PADDED = ("--padding_free", "False")
