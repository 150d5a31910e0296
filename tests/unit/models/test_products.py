"""Products by oneDNN are those by torch, and only plain float32 matrices on a CPU take that way."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from hftune.models import products
from hftune.models.products import FEWEST, multiply, project

HAS_ONEDNN = products._has_onednn()


def _matrices(tokens: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((tokens, 48), (80, 48), (80,))
    x, weight, bias = (torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)
    return x, weight, bias


@pytest.mark.parametrize("tokens", [1, FEWEST, 257])
@pytest.mark.parametrize("biased", [False, True])
def test_equal_to_torch(tokens: int, biased: bool) -> None:
    x, weight, bias = _matrices(tokens)
    out = project(x, weight, bias if biased else None)
    expected = x.double() @ weight.double().T + (bias.double() if biased else 0.0)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    back = multiply(out, weight)
    torch.testing.assert_close(back.double(), expected @ weight.double(), rtol=1e-5, atol=1e-4)


def test_views_are_read_as_they_are() -> None:
    x, weight, _ = _matrices(64)
    wide = torch.cat([x, x + 1.0], dim=1)[:, 48:]
    torch.testing.assert_close(project(wide, weight), (x + 1.0) @ weight.T)
    torch.testing.assert_close(multiply(x, weight.T.contiguous().T.T), x @ weight.T)


@pytest.mark.skipif(not HAS_ONEDNN, reason="torch was built without oneDNN")
@pytest.mark.parametrize(
    ("tokens", "dtype", "taken"),
    [(FEWEST, torch.float32, True), (FEWEST - 1, torch.float32, False), (FEWEST, torch.bfloat16, False)],
)
def test_who_takes_that_way(tokens: int, dtype: torch.dtype, taken: bool) -> None:
    x, weight, _ = _matrices(tokens, dtype)
    with mock.patch.object(products, "linear", wraps=products.linear) as by_torch:
        project(x, weight)
    assert by_torch.called is not taken


def test_switched_off_with_torchs_own_switch() -> None:
    x, weight, _ = _matrices(FEWEST)
    with torch.backends.mkldnn.flags(enabled=False), mock.patch.object(products, "linear") as by_torch:
        project(x, weight)
    assert by_torch.called


def test_a_planners_trace_sees_torchs_own_products() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, weight = torch.empty(64, 48), torch.empty(80, 48)
        with mock.patch.object(products, "linear", wraps=products.linear) as by_torch:
            assert project(x, weight).shape == (64, 80)
    assert by_torch.called
