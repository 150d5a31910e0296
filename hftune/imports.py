"""Imports that a run does not need, left out, and quicker ones: some seconds of every start."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HIDDEN = {
    "bitsandbytes": ("is_bnb_available", "is_bnb_4bit_available", "is_bitsandbytes_available"),
    "torchao": ("is_torchao_available",),
}
"""Libraries, and by which functions PEFT and transformers ask for them."""

ASKERS = ("peft.import_utils", "transformers.utils.import_utils")

_frozen = False


def collect_nothing() -> None:
    """Have Python not look for garbage until `collect_as_usual`.

    While modules load, a million objects are made that stay, and 10 MiB that do not; looking takes 0.3 s.
    """
    gc.disable()


def collect_as_usual() -> None:
    """Cycles may hold tensors from here on, and are looked for as Python does; what modules made is left out."""
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True
    gc.enable()


@contextmanager
def without_quantisers(model: object = None) -> Iterator[None]:
    """Inside, PEFT takes what quantises for not installed, unless it has been imported or `model` is quantised.

    PEFT 0.21 imports bitsandbytes with itself, for one function of `peft.helpers`, and it and torchao whenever it makes
    adapter layers; with them come torch's compilers, and an error where torchao is old. What PEFT found out inside is
    forgotten at the end, so that it finds them later.
    """
    hidden = [name for name in HIDDEN if name not in sys.modules and not getattr(model, "is_quantized", False)]
    _forget(hidden)
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # how Python marks what cannot be imported
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        _forget(hidden)


def _forget(names: list[str]) -> None:
    """Clear the answers that are kept."""
    for module in (sys.modules.get(asker) for asker in ASKERS):
        for asked in (asked for name in names for asked in HIDDEN[name]):
            clear = getattr(getattr(module, asked, None), "cache_clear", None)
            if clear is not None:
                clear()
