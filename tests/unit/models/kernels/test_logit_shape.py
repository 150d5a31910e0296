"""What comes between a head and the logits, by the fields of a config."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.models.kernels.chunked_heads import LogitShape


@pytest.mark.parametrize(
    ("fields", "scale", "softcap"),
    [
        ({}, 1.0, None),
        ({"final_logit_softcapping": 30.0}, 1.0, 30.0),
        ({"logits_scaling": 8.0}, 1 / 8, None),
        ({"logits_scaling": 8.0, "model_type": "hyperclovax"}, 8.0, None),
        ({"logits_scaling": None, "dim_model_base": 16, "hidden_size": 64}, 0.25, None),
        ({"dim_model_base": None, "logits_mup_width_multiplier": 4.0}, 0.25, None),
        ({"logit_scale": 3.0, "logits_scaling": 8.0, "dim_model_base": 16, "hidden_size": 64}, 3.0, None),
        ({"logit_scale": None, "output_multiplier": 0.25, "logits_mup_width_multiplier": 8.0}, 0.25, None),
        ({"lm_head_multiplier": 0.75}, 0.75, None),
        ({"dim_model_base": 16, "hidden_size": 64, "logits_mup_width_multiplier": 8.0}, 0.25, None),
        (
            {"logits_scaling": 2.0, "dim_model_base": 16, "hidden_size": 64, "logits_mup_width_multiplier": 4.0},
            0.5,
            None,
        ),
    ],
)
def test_by_the_config(fields: dict[str, Any], scale: float, softcap: float | None) -> None:
    text = SimpleNamespace(**{"model_type": "made_up", **fields})
    config: Any = SimpleNamespace(get_text_config=lambda: text)
    found = LogitShape.of(config)
    assert (found.scale, found.softcap) == (scale, softcap)


@pytest.mark.parametrize(
    ("scale", "softcap", "logit", "slope"),
    [
        (1.0, None, 2.0, 1.0),
        (0.25, None, 0.5, 0.25),
        (2.0, None, 4.0, 2.0),
        (1.0, 4.0, 4 * math.tanh(0.5), 1 - math.tanh(0.5) ** 2),
        (3.0, 4.0, 4 * math.tanh(1.5), 3 * (1 - math.tanh(1.5) ** 2)),
    ],
)
def test_a_logit_by_hand(scale: float, softcap: float | None, logit: float, slope: float) -> None:
    """Of 2: scaled, then capped; its slope is that of both."""
    shape = LogitShape(scale, softcap)
    raw = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    found = shape(raw)
    assert found.dtype == torch.float32 and found.item() == pytest.approx(logit)
    found.sum().backward()
    assert raw.grad is not None and raw.grad.item() == pytest.approx(slope)
    # Capped before it is divided.
    assert LogitShape(scale, softcap, 2.0)(raw).item() == pytest.approx(logit / 2)
