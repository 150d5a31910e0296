"""Adapters on quantised bases are trained in the precision they were made in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peft import PeftModel


class AdapterPrecisionMixin:
    """Put before a `Trainer` subclass.

    TRL (1.16) casts the adapter of a quantised model to bf16 when a trainer is made. AdamW then updates bf16 weights,
    where small updates vanish, and gradients differ by 1 % with the size of a batch. Adapters are in float32 here, on
    a quantised base as on any other (DeepSpeed in bf16 keeps a float32 copy of its own).
    """

    def __init__(self: Any, *positional: Any, model: Any, **kwargs: Any) -> None:
        with _not_said_to_be_quantised(model.get_base_model() if isinstance(model, PeftModel) else model):
            super().__init__(*positional, model=model, **kwargs)  # type: ignore[call-arg]


@contextmanager
def _not_said_to_be_quantised(model: Any) -> Iterator[None]:
    """TRL asks these two attributes; transformers and accelerate, which must know, ask later or ask others."""
    said = [name for name in ("is_loaded_in_4bit", "is_loaded_in_8bit") if getattr(model, name, False)]
    for name in said:
        setattr(model, name, False)
    try:
        yield
    finally:
        for name in said:
            setattr(model, name, True)
