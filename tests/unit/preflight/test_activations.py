"""Activations by a formula, of configs whose layers differ."""

from __future__ import annotations

import pytest

from hftune.preflight.activations import layer_bytes
from tests.table.tiny import tiny_config


@pytest.mark.parametrize("model_type", ["gemma3n_text", "gemma4_text", "dots3_note_text", "mamba2", "llama"])
def test_any_config(model_type: str) -> None:
    config = tiny_config(model_type)
    few, many = (layer_bytes(config, tokens, tokens, 2, keeps_scores=False) for tokens in (10, 20))
    assert 0 < few == many / 2


def test_the_mean_over_layers() -> None:
    one, other = tiny_config("gemma3n_text"), tiny_config("gemma3n_text")
    one.intermediate_size, other.intermediate_size = [64] * 6, [32] * 3 + [96] * 3
    assert layer_bytes(one, 8, 8, 2, keeps_scores=False) == layer_bytes(other, 8, 8, 2, keeps_scores=False)
