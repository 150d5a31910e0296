"""Weights of routers' losses in Megatron's words: sums over layers become means where the layers can be counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hftune.arguments.names.row import Request
from hftune.arguments.names.translators.models import ernie_z, expert_layers, megatron_balance, megatron_z
from hftune.models.experts import routers_of
from hftune.trainers.losses.routers import balance_loss, z_loss
from tests.architectures import MIXTURES_OF_EXPERTS, make_config


def ask(name: str, value: str, model: Path | None = None) -> Request:
    return Request({name: [value]}, {"model_name_or_path": [str(model)]} if model else {})


@pytest.mark.parametrize("name", MIXTURES_OF_EXPERTS)
def test_layers_are_counted_as_the_model_has_them(name: str, tmp_path: Path) -> None:
    config = make_config(name)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert expert_layers(str(tmp_path)) == (len(routers_of(model)), config.num_experts_per_tok)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2, "mlp_only_layers": [1]}, (3, 2)),
        ({"model_type": "deepseek_v3", "first_k_dense_replace": 3}, (5, 2)),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 2}, None),
        ({"model_type": "new_moe"}, None),
    ],
)
def test_dense_layers_count_for_nothing(
    config: dict[str, Any], expected: tuple[int, int] | None, tmp_path: Path
) -> None:
    shared = {"num_hidden_layers": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(shared | config))
    assert expert_layers(str(tmp_path)) == expected


def test_the_sum_of_layers_is_what_it_is_there(tmp_path: Path) -> None:
    """Megatron: over layers, the sum of c E sum(f P) / k, f the share of tokens, and of c' times the z-loss."""
    layers, experts, k, tokens = 4, 8, 2, 50
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "mixtral", "num_hidden_layers": layers, "num_experts_per_tok": k})
    )
    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(0))
    shares, chosen = logits.softmax(-1), logits.topk(k).indices
    per_expert = torch.bincount(chosen.flatten(), minlength=experts)
    of_a_layer = 0.01 * experts / (k * tokens * tokens) * (shares.sum(0) * per_expert).sum()
    answer = megatron_balance(ask("moe_aux_loss_coeff", "0.01", tmp_path))
    assert answer.given == [("router_aux_loss_coef", ["0.02"])] and "adds up 4 expert layers" in answer.notices[0]
    mine = 0.02 * balance_loss(shares.repeat(layers, 1), chosen.repeat(layers, 1))
    torch.testing.assert_close(mine, layers * of_a_layer)
    answer = megatron_z(ask("moe_z_loss_coeff", "0.001", tmp_path))
    assert answer.given == [("moe_z_loss_coef", ["0.004"])]
    torch.testing.assert_close(
        0.004 * z_loss(logits.repeat(layers, 1)), layers * 0.001 * logits.logsumexp(-1).square().mean()
    )


def test_what_cannot_be_counted_is_said() -> None:
    answer = megatron_balance(ask("moe_aux_loss_coeff", "0.01"))
    assert (
        answer.given == [("router_aux_loss_coef", ["0.01"])] and "weighs a mean over layers here" in answer.notices[0]
    )
    assert megatron_z(ask("moe_z_loss_coeff", "0")).notices == ()
    assert "a mean over layers" in ernie_z(ask("moe_z_loss_lambda", "0.001")).notices[0]
