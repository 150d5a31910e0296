"""PiSSA and OLoRA: saved adapters are of the whole base, and a run that goes on is where it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hftune.errors import ArgumentError
from hftune.models.adapters.initialisation import (
    as_plain_lora,
    check_same_initialisation,
    load_plain_lora,
    rewrite_as_plain,
    split_plain_lora,
)
from hftune.models.adapters.preparation import add_adapter
from tests.unit.models.adapting import arguments, load, logits, train


def test_factors_by_hand() -> None:
    """W + s (B A - B0 A0): rank 1, [A; A0] above each other, [B, -B0] beside each other."""
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]])
    a0, b0 = torch.tensor([[5.0, 6.0]]), torch.tensor([[7.0], [8.0]])
    trained = {"x.lora_A.weight": a, "x.lora_B.weight": b, "norm.weight": torch.ones(2)}
    start = {"x.lora_A.weight": a0, "x.lora_B.weight": b0}
    plain = as_plain_lora(trained, start)
    assert plain["x.lora_A.weight"].tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert plain["x.lora_B.weight"].tolist() == [[3.0, -7.0], [4.0, -8.0]]
    assert torch.equal(plain["x.lora_B.weight"] @ plain["x.lora_A.weight"], b @ a - b0 @ a0)
    back, began = split_plain_lora(plain)
    assert all(torch.equal(back[name], trained[name]) for name in trained)
    assert all(torch.equal(began[name], start[name]) for name in start)


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_8", "olora"])
def test_a_run_that_goes_on(tiny_model: Path, tmp_path: Path, init: str) -> None:
    """What is read back from a checkpoint trains on as if nothing had been between."""
    _, adapter_args, training_args = arguments(tiny_model, "--init_lora_weights", init)
    first = add_adapter(load(tiny_model), adapter_args, training_args)
    train(first)
    first.save_pretrained(tmp_path)
    rewrite_as_plain(first, tmp_path)
    second = add_adapter(load(tiny_model), adapter_args, training_args)
    check_same_initialisation(second, tmp_path)
    load_plain_lora(second, tmp_path)
    assert torch.equal(logits(second), logits(first))
    train(first), train(second)
    assert torch.equal(logits(second), logits(first))


def test_another_start_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    _, adapter_args, training_args = arguments(tiny_model, "--init_lora_weights", "pissa")
    first = add_adapter(load(tiny_model), adapter_args, training_args)
    first.save_pretrained(tmp_path)
    rewrite_as_plain(first, tmp_path)
    other = load(tiny_model)
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.mul_(1.1)
    with pytest.raises(ArgumentError, match="begins differently"):
        check_same_initialisation(add_adapter(other, adapter_args, training_args), tmp_path)


def test_a_copy_as_reference_takes_nothing_more_out_of_the_base(tiny_model: Path) -> None:
    """DPO adds a second adapter of the same config and copies the weights: it must say what the base said."""
    _, adapter_args, training_args = arguments(tiny_model, "--init_lora_weights", "pissa")
    adapted = add_adapter(load(tiny_model), adapter_args, training_args)
    adapted.add_adapter("ref", adapted.peft_config["default"])
    for name, parameter in adapted.named_parameters():
        if ".default." in name:
            adapted.get_parameter(name.replace(".default.", ".ref.")).data.copy_(parameter.data)
    adapted.set_adapter("ref")
    torch.testing.assert_close(logits(adapted), logits(load(tiny_model)), atol=1e-4, rtol=1e-4)
