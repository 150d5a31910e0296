"""Matrix products with frozen weights, by whichever library is quicker.

torch's float32 products on a CPU are MKL's. oneDNN, which torch comes with and uses for 16 bit, is quicker for those of
training: `benchmarks/products.py` has the figures. Both sum in float32 and differ in the last digit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

FEWEST = 32
"""Tokens from which on it is used: below, as in generation, setting it up costs what it saves."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b of x (tokens, in), a weight (out, in) and a bias (out,); no gradient is recorded for any of them."""
    if not _is_for_onednn(x, weight):
        return linear(x, weight, bias)
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def multiply(left: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """left W of (tokens, out) and a weight (out, in): the way back through `project`."""
    if not _is_for_onednn(left, weight):
        return left @ weight
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, weight.T, None, "none", [], "")
    return out


def _is_for_onednn(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Plain float32 matrices on a CPU: others, those of a planner's trace too, are torch's own business."""
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and x.dim() == 2
        and len(x) >= FEWEST
        and type(x) in _PLAIN
        and type(weight) in _PLAIN
        and _has_onednn()
    )


def _has_onednn() -> bool:
    backend: Any = torch.backends.mkldnn
    return bool(backend.is_available() and backend.enabled and hasattr(torch.ops.mkldnn, "_linear_pointwise"))
