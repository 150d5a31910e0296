"""What is said of the parameters that are trained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hftune.models.adapters import parameter_report
from hftune.models.adapters.parameter_report import report_low_precision, report_trained_parameters


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(parameter_report, "notice", lines.append)
    return lines


def tower(dtype: torch.dtype = torch.float32) -> Any:
    model = nn.ModuleDict({"self_attn": nn.Linear(4, 4, bias=False), "mlp": nn.Linear(4, 2, bias=False)})
    model["self_attn"].requires_grad_(False)
    return model.to(dtype)


def test_counts_by_kind(said: list[str]) -> None:
    report_trained_parameters(tower())
    assert said == ["trained: 8 of 24 parameters (33.33%): mlp 8; left as they are: attention 16"]
    report_trained_parameters(nn.Linear(2, 1, bias=False))
    assert said[1] == "trained: 2 of 2 parameters (100.00%): other 2"


@pytest.mark.parametrize(
    ("dtype", "deepspeed", "warned"),
    [(torch.bfloat16, None, True), (torch.bfloat16, {"zero": 2}, False), (torch.float32, None, False)],
)
def test_16_bits_without_deepspeed(said: list[str], dtype: torch.dtype, deepspeed: Any, warned: bool) -> None:
    args: Any = SimpleNamespace(ds_resolved=deepspeed)
    report_low_precision(tower(dtype), args)
    assert [line.partition(":")[0] for line in said] == (
        ["1 trained parameters are kept in 16 bit, mlp.weight the first"] if warned else []
    )
