"""Rotary positions of a slice of a row that stretch as the longest document of the whole row needs."""

from __future__ import annotations

from typing import Any

import torch

from hftune.distributed import sequence_parallel

_BY_LENGTH = ("dynamic", "longrope")
"""Rotary positions that stretch as far as the longest document of a row needs."""


def stretch_by_whole_rows(model: torch.nn.Module) -> int:
    """Have rotary positions that depend on length computed for the whole row; returns how many modules there are.

    In each forward pass all processes of the group must call them, since they exchange their largest positions.
    """
    # transformers looks at the largest position that it is given (`dynamic_rope_update`, 5.23): each process would
    # stretch by its own slice, and their queries and keys would not belong together. So the largest position of the row
    # is put after those of the slice, and what is computed of it is cut off.
    found = [module for module in model.modules() if _stretches_by_length(module)]
    for module in found:
        module.register_forward_pre_hook(_with_last_position, with_kwargs=True)
        module.register_forward_hook(_without_last_position)
    return len(found)


def _stretches_by_length(module: Any) -> bool:
    kinds = getattr(module, "rope_type", None)
    each = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any(isinstance(kind, str) and any(name in kind for name in _BY_LENGTH) for kind in each)


def _with_last_position(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    named = "position_ids" in kwargs
    here = kwargs["position_ids"] if named else args[1]
    last = sequence_parallel.active_group().largest(here.max()).expand(*here.shape[:-1], 1)
    whole = torch.cat([here, last], dim=-1)
    return (args, kwargs | {"position_ids": whole}) if named else ((args[0], whole, *args[2:]), kwargs)


def _without_last_position(module: Any, args: Any, output: Any) -> Any:
    """Cosines and sines, (..., tokens, size) each, or both as one complex tensor."""
    if isinstance(output, torch.Tensor):
        return output[..., :-1, :]
    return tuple(part[..., :-1, :] for part in output)
