"""Muon: orthogonal updates for the matrices of the layers (arXiv:2502.16982), AdamW for all other weights.

The optimizer is DeepSpeed's, which ZeRO-1, 2 and 3 know: they gather a whole matrix, orthogonalise it, and split it
again. torch's own would be given flat pieces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from hftune.compat.deepspeed_patches import run_muon_eagerly
from hftune.distributed import op_builder


def muon_scale(shape: Sequence[int], mode: str) -> float:
    """Factor on the learning rate that turns DeepSpeed's scaled update of an (out, in) matrix into that of `mode`.

    DeepSpeed multiplies the orthogonal matrix by sqrt(max(1, out/in)) (Keller Jordan's Muon; Megatron's
    shape_scaling). Megatron's spectral wants sqrt(max(out, in)) instead, unit_rms_norm sqrt(out/in). Stacked experts,
    (experts, out, in), are updated matrix by matrix.
    """
    rows, columns = shape[-2], shape[-1]
    wanted = {
        "shape_scaling": max(1.0, rows / columns),
        "spectral": float(max(rows, columns)),
        "unit_rms_norm": rows / columns,
    }[mode]
    return math.sqrt(wanted / max(1.0, rows / columns))


def muon_class(*, eager: bool) -> type[torch.optim.Optimizer]:
    """DeepSpeed's Muon with AdamW beside it; `eager`: without torch.compile, which needs a compiler."""
    from deepspeed.runtime.zero.muon import muon_optimizer

    if eager:
        run_muon_eagerly()
    chosen: type[torch.optim.Optimizer] = muon_optimizer.MuonWithAuxAdam
    return chosen


def must_run_eagerly(*, on_cpu: bool) -> bool:
    """On a CPU compiling takes longer than it saves, and without a C++ compiler it fails at the first step."""
    return on_cpu or not op_builder.has_cpp_compiler()


def tag(parameter: torch.nn.Parameter, *, use_muon: bool) -> None:
    """Tell ZeRO which parameters to gather for Muon: it reads a mark on each, not the group."""
    parameter.use_muon = use_muon  # type: ignore[attr-defined]
