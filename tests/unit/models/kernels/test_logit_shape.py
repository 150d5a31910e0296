"""What comes between a head and the logits, by the fields of a config."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.models.kernels.answer_projection import LogitShape


@pytest.mark.parametrize(
    ("fields", "scale", "softcap"),
    [
        ({}, 1.0, None),
        ({"final_logit_softcapping": 30.0}, 1.0, 30.0),
        ({"logits_scaling": 8.0}, 1 / 8, None),
        ({"logits_scaling": 8.0, "model_type": "hyperclovax"}, 8.0, None),
        ({"logits_scaling": None, "dim_model_base": 16, "hidden_size": 64}, 0.25, None),
        ({"dim_model_base": None, "logits_mup_width_multiplier": 4.0}, 0.25, None),
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
