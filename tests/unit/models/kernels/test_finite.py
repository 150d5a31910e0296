"""Whether a tensor holds NaN or infinity."""

from __future__ import annotations

import pytest
import torch

from hftune.models.kernels.finite import finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_one_value_among_many(dtype: torch.dtype) -> None:
    values = torch.randn(3, 1001).to(dtype)
    assert finite(values) and finite(values[:0])
    for value in (torch.nan, torch.inf, -torch.inf):
        for place in ((0, 0), (1, 500), (2, 1000)):
            broken = values.clone()
            broken[place] = value
            assert not finite(broken)
