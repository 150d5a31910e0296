"""Replacements in DeepSpeed, which is imported only when needed: it takes seconds."""

from __future__ import annotations

from hftune.compat.installing import usable


def compile_no_shared_memory() -> None:
    """Keep DeepSpeed from compiling a shared-memory operator as it makes a gloo group.

    Only AutoTP inference uses it, and a machine without a compiler would stop there.
    """
    import deepspeed.ops

    if usable("deepspeed.ops.__compatible_ops__"):
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
