"""Imports that a run does not need, left out, and quicker ones: two seconds of every start."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "bitsandbytes"

SELDOM = 100_000
"""Objects that are made between two searches for garbage while modules load; they make a million that stay."""

_usual = gc.get_threshold()
_frozen = False


def collect_seldom() -> None:
    """Have Python look for garbage less often, until `collect_as_usual`."""
    gc.set_threshold(SELDOM, *_usual[1:])


def collect_as_usual() -> None:
    """From here on cycles may hold tensors, and are looked for as Python does; what the modules made stays out of it."""
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True
    gc.set_threshold(*_usual)


@contextmanager
def without_bitsandbytes(model: object = None) -> Iterator[None]:
    """Inside, PEFT takes bitsandbytes for not installed, unless it has been imported or `model` is quantised.

    PEFT 0.21 imports it with itself, for one function of `peft.helpers`, and whenever it makes adapter layers; with it
    come torch's compilers. What PEFT found out inside is forgotten at the end, so that it finds bitsandbytes later.
    """
    if NAME in sys.modules or getattr(model, "is_quantized", False):
        yield
        return
    _forget()
    sys.modules[NAME] = None  # type: ignore[assignment]  # how Python marks what cannot be imported
    try:
        yield
    finally:
        del sys.modules[NAME]
        _forget()


def _forget() -> None:
    """Clear the answers that PEFT keeps."""
    helpers = sys.modules.get("peft.import_utils")
    for asked in ("is_bnb_available", "is_bnb_4bit_available"):
        if helpers is not None:
            getattr(helpers, asked).cache_clear()
