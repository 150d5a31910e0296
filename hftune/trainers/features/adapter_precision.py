"""Adapters on quantised bases are trained in the precision they were made in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hftune.arguments.training import StageArguments
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import plain_model


class AdapterPrecision(Feature):
    """Keeps TRL (1.16) from casting the adapter of a quantised model to bf16 when a trainer is made.

    AdamW would then update bf16 weights, where small updates vanish, and gradients differ by 1 % with the size of a
    batch. Adapters are in float32 here, on a quantised base as on any other (DeepSpeed in bf16 keeps a float32 copy of
    its own).
    """

    @contextmanager
    def building(self, model: Any, args: StageArguments) -> Iterator[None]:
        """TRL asks these two attributes; transformers and accelerate, which must know, ask later or ask others."""
        # The marks are on the base; an adapter around it has none of its own.
        plain = plain_model(model)
        said = [name for name in ("is_loaded_in_4bit", "is_loaded_in_8bit") if getattr(plain, name, False)]
        for name in said:
            setattr(plain, name, False)
        try:
            # TRL (1.16) casts here, in its constructor.
            yield
        finally:
            for name in said:
                setattr(plain, name, True)
