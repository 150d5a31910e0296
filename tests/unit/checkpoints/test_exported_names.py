"""Names of live parameters as peft and transformers save them."""

from __future__ import annotations

import pytest

from hftune.checkpoints.sharded_state import exported_name


@pytest.mark.parametrize(
    ("live", "saved"),
    [
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("base_model.model.q_proj.lora_A.default.weight", "base_model.model.q_proj.lora_A.weight"),
        ("base_model.model.lora_embedding_A.default", "base_model.model.lora_embedding_A"),
        ("base_model.model.score.modules_to_save.default.weight", "base_model.model.score.weight"),
        ("model.default_head.weight", "model.default_head.weight"),
    ],
)
def test_parts_that_peft_leaves_out(live: str, saved: str) -> None:
    assert exported_name(live) == saved
