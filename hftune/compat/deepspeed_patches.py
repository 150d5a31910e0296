"""Replacements in DeepSpeed, which is imported only when needed: it takes seconds."""

from __future__ import annotations

import inspect

from hftune.compat.installing import usable
from hftune.logging import notice

_MUON = "deepspeed.runtime.zero.muon"
_COMPILED = ("muon_update", "zeropower_via_newtonschulz5", "zeropower_via_gram_newtonschulz")


def compile_no_shared_memory() -> None:
    """Keep DeepSpeed from compiling a shared-memory operator as it makes a gloo group.

    Only AutoTP inference uses it, and a machine without a compiler would stop there.
    """
    import deepspeed.ops

    if usable("deepspeed.ops.__compatible_ops__"):
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def run_muon_eagerly() -> None:
    """Have DeepSpeed's Muon run the functions that it decorates with torch.compile as they were written."""
    from deepspeed.runtime.zero.muon import muon_optimizer, original_muon

    names = [f"{_MUON}.original_muon.{name}" for name in _COMPILED]
    # A list: all of them are asked, so that every change is said.
    if not all([usable(symbol) for symbol in (*names, f"{_MUON}.muon_optimizer.muon_update")]):
        return
    for name in _COMPILED:
        written = inspect.unwrap(getattr(original_muon, name))
        # `inspect.unwrap` ends at what torch has put there where it no longer says what it wraps.
        if written.__code__.co_filename != original_muon.__file__:
            notice(f"off: --optim muon without compiling; torch hides what {name} was before")
        setattr(original_muon, name, written)
    # The optimizer's module has imported the compiled one by name.
    muon_optimizer.muon_update = original_muon.muon_update
