"""The losses of routers in the training loss: what they add, to which gradient, in every stage and batch split."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from hftune.models.structure import routers_of
from hftune.trainers.features.router_loss import RouterListener
from tests.architectures import MIXTURES_OF_EXPERTS, make_model
from tests.parity.shared_models import cells
from tests.parity.stages import METHODS, STAGES, losses, run_stage
from tests.table.tiny import tiny_config

AUX, Z = 0.5, 0.1
WITH = ("--router_aux_loss_coef", str(AUX), "--moe_z_loss_coef", str(Z))
WITHOUT = ("--router_aux_loss_coef", "0")


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("mixtral", tmp_path_factory.mktemp("mixtral"))


def entries(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize(
    ("stage", "method"),
    cells([*product(STAGES, ["full"]), ("sft", "lora"), ("rl", "lora")], [("dpo", "full"), ("rl", "lora")]),
)
def test_they_are_in_the_loss_of_every_stage(
    mixtral: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, method: str
) -> None:
    """The first step's loss is that without them plus their weighted values, as logged, and weights move otherwise."""
    runs = {}
    for name, flags in (("with", WITH), ("without", WITHOUT)):
        flags = (*flags, *METHODS[method])
        runs[name] = run_stage(stage, mixtral, tiny_data, tmp_path / name, *flags, monkeypatch=monkeypatch)
    (aux,), (z,) = entries(runs["with"], "aux_loss"), entries(runs["with"], "z_loss")
    # Two of four experts a token: 2 when used alike, more otherwise; log(4)^2 = 1.9 for logits of 0.
    assert 2.0 < aux < 8.0 and 1.0 < z < 20.0
    assert losses(runs["with"])[0] == pytest.approx(losses(runs["without"])[0] + AUX * aux + Z * z, abs=2e-4)
    assert not entries(runs["without"], "aux_loss")
    changed = zip(runs["with"].model.parameters(), runs["without"].model.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in changed)


@pytest.mark.parametrize("name", [*MIXTURES_OF_EXPERTS, "llama4_text"])
def test_routers_are_heard(name: str, tmp_path: Path) -> None:
    """Padding left out, one pass a forward pass with gradients, recomputed ones not twice; the balance is right."""
    if name == "llama4_text":  # whose routers give scores, and logits behind them
        model = AutoModelForCausalLM.from_config(tiny_config(name), attn_implementation="sdpa").train()
    else:
        model = AutoModelForCausalLM.from_pretrained(make_model(name, tmp_path)).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    listener = RouterListener(model)
    ids = torch.randint(3, 200, (3, 16), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    with listener.open() as passes:
        with torch.no_grad():
            model(input_ids=ids, attention_mask=mask)
        output = model(input_ids=ids, attention_mask=mask, labels=ids)
    balance, z = listener.losses(passes)
    assert len(passes) == 1 and len(passes[0].logits) == len(routers_of(model)) > 0
    (balance + z + output.loss).backward()
    assert len(passes[0].logits) == len(routers_of(model)), "the backward pass was heard"
    assert all(router.weight.grad.abs().sum() > 0 for router in routers_of(model))
    if name in ("mixtral", "qwen3_moe", "llama4_text"):
        own = load_balancing_loss_func(tuple(passes[0].logits), 4, listener.top_k, mask)
        torch.testing.assert_close(balance, own)
    if name == "llama4_text":
        said = model(input_ids=ids, attention_mask=mask, output_router_logits=True).router_logits
        torch.testing.assert_close(tuple(passes[0].logits), tuple(one.reshape(-1, 4) for one in said))
