"""Muon: orthogonal updates for the matrices of the layers (arXiv:2502.16982), AdamW for all other weights.

The optimizer is DeepSpeed's, which ZeRO-1, 2 and 3 know: they gather a whole matrix, orthogonalise it, and split it
again. torch's own would be given flat pieces.
"""

from __future__ import annotations

from typing import Any

import torch

from hftune.arguments.optimizer import MUON
from hftune.compat.deepspeed_patches import run_muon_eagerly
from hftune.distributed import op_builder
from hftune.trainers.optimizers.parameter_groups import Group


def muon_class(*, on_cpu: bool) -> type[torch.optim.Optimizer]:
    """DeepSpeed's Muon, which updates all other weights by AdamW; without torch.compile where that is no help."""
    from deepspeed.runtime.zero.muon import muon_optimizer

    # On a CPU compiling takes longer than it saves, and without a C++ compiler it fails at the first step.
    if on_cpu or not op_builder.has_cpp_compiler():
        run_muon_eagerly()
    chosen: type[torch.optim.Optimizer] = muon_optimizer.MuonWithAuxAdam
    return chosen


def mark_parameters(groups: list[Group]) -> None:
    """Tell ZeRO which parameters to gather whole for Muon: it reads a mark on each (0.19), not the group."""
    for group in groups:
        for _, parameter in group.members:
            marked: Any = parameter
            marked.use_muon = group.rule == MUON
