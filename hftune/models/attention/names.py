"""The names of hftune's own attention functions, and the modules that register them with transformers."""

from __future__ import annotations

from hftune.on_demand import on_demand

SEGMENTS = "hftune_segments"
"""SDPA a document, on any device."""

VARLEN = "hftune_varlen"
"""All documents in one call, on CUDA in half precision; what the kernel does not take goes to `segments_attention`."""

ULYSSES = "hftune_ulysses"
"""For slices of a row, shared by the processes of a sequence-parallel group."""

MAX_HEAD_SIZE = 256
"""What torch's FlashAttention goes up to."""

MIN_FLEX_HEAD_SIZE = 16
"""What torch's FlexAttention begins with on a GPU (2.11 to 2.13)."""

_OWN = {
    SEGMENTS: "hftune.models.attention.segments:segments_attention",
    VARLEN: "hftune.models.attention.varlen:varlen_attention",
    ULYSSES: "hftune.models.attention.ulysses:ulysses_attention",
}


def registered(name: str | None) -> str | None:
    """The same name; if it is one of hftune's own, transformers knows the function and its mask from now on."""
    if name in _OWN:
        on_demand(_OWN[name])  # each module registers what it defines
    return name


def whole_row_attention(has_varlen: bool) -> str:
    """The attention that ULYSSES uses over a whole row."""
    return VARLEN if has_varlen else SEGMENTS
