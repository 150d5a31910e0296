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
from tests.architectures import MIXTURES_OF_EXPERTS, few_quick, make_model
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


@pytest.mark.parametrize("stage", few_quick(["pt", "sft", "dpo"], ["sft"]))
def test_the_same_however_a_step_is_split(
    mixtral: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Four rows at once, or one after the other: a mean over micro batches, not a sum."""
    splits = {"4": ("4", "1"), "1": ("1", "4")}
    runs = {
        name: run_stage(
            stage,
            mixtral,
            tiny_data,
            tmp_path / name,
            *("--per_device_train_batch_size", rows, "--gradient_accumulation_steps", steps, "--moe_z_loss_coef", "1"),
            *WITHOUT,
            monkeypatch=monkeypatch,
            steps=2,
        )
        for name, (rows, steps) in splits.items()
    }
    # z is a mean over tokens, and micro batches have nearly as many each: not equal, but no factor of 4.
    assert losses(runs["4"])[0] == pytest.approx(losses(runs["1"])[0], rel=0.01)
    assert entries(runs["4"], "z_loss")[0] == pytest.approx(entries(runs["1"], "z_loss")[0], rel=0.02)
    norms = [entries(runs[name], "grad_norm")[0] for name in splits]
    assert norms[0] == pytest.approx(norms[1], rel=0.1)


def test_evaluation_is_the_loss_of_tokens_alone(
    mixtral: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = ("--validation_file_dir", str(tiny_data / "pt_eval"), "--learning_rate", "0")
    results = [
        run_stage("pt", mixtral, tiny_data, tmp_path / str(len(flags)), *held_out, *flags, monkeypatch=monkeypatch)
        for flags in (WITH, WITHOUT)
    ]
    assert entries(results[0], "eval_loss") == entries(results[1], "eval_loss")


def test_the_models_own_coefficient_counts_and_is_kept(
    mixtral: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in ("pt", "sft"):
        trainer = run_stage(stage, mixtral, tiny_data, tmp_path / stage, monkeypatch=monkeypatch)
        assert len(entries(trainer, "aux_loss")) == 1
        assert AutoModelForCausalLM.from_pretrained(tmp_path / stage).config.router_aux_loss_coef == 0.001


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
