"""Replacements in accelerate."""

from __future__ import annotations

import functools

from accelerate.utils import imports, other

from hftune.compat.installing import usable


def look_for_engines(*, needed: bool) -> None:
    """Whether accelerate looks for DeepSpeed's engines around models, for which it imports DeepSpeed.

    A run without DeepSpeed starts some seconds sooner without. Only `other` is told: what else asks accelerate whether
    DeepSpeed is installed gets the true answer.
    """
    # From where `other` has imported it: that one stays what it was, so that this works twice.
    original = imports.is_deepspeed_available
    if needed:
        other.is_deepspeed_available = original
    elif usable("accelerate.utils.other.is_deepspeed_available"):
        other.is_deepspeed_available = functools.wraps(original)(lambda: False)
