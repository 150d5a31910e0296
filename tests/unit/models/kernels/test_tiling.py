"""MLPs in pieces: the same numbers, less memory."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from hftune.models.kernels.tiling import tile_mlps, tileable, tiles_for
from tests.architectures import make_config


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(make_config(name), attn_implementation="eager")


def step(model: torch.nn.Module, length: int = 24) -> tuple[torch.Tensor, list[torch.Tensor]]:
    ids = torch.randint(3, 200, (2, length), generator=torch.Generator().manual_seed(1))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize(("name", "tiles"), [("llama", 2), ("llama", 64), ("gemma3_text", 5), ("phi", 5), ("glm4", 5)])
def test_same_loss_and_gradient(name: str, tiles: int) -> None:
    whole, tiled = made(name).train(), made(name).train()
    assert tile_mlps(tiled, tiles) == tiled.config.num_hidden_layers
    (loss, gradients), (other, others) = step(whole), step(tiled)
    assert other == pytest.approx(float(loss), rel=1e-6)
    for here, there in zip(gradients, others, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-6)


def test_the_number_of_pieces_does_not_depend_on_the_row() -> None:
    """Under ZeRO-3 every piece gathers weights, and processes with rows of unlike lengths must take part alike."""
    model = made("llama").train()
    tile_mlps(model, 4)
    for length in (3, 24):
        calls = []
        hook = model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_, seen=calls: seen.append(1))
        model(input_ids=torch.ones(1, length, dtype=torch.long))
        hook.remove()
        assert len(calls) == 4


def test_wide_activations_are_not_kept() -> None:
    """What autograd keeps of an MLP without tiles are tensors as wide as it; with tiles its input alone."""
    kept: dict[bool, int] = {}
    for tiled in (False, True):
        model = made("llama").train()
        if tiled:
            tile_mlps(model, 3)
        wide = []

        def pack(tensor: torch.Tensor, wide: list[int] = wide) -> torch.Tensor:
            if tensor.shape[-1] == 64 and tensor.dim() > 1 and not isinstance(tensor, torch.nn.Parameter):
                wide.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(input_ids=torch.ones(1, 24, dtype=torch.long))
        kept[tiled] = sum(wide)
    assert kept[False] >= 2 * 2 * 24 * 64  # in each of two layers at least the two factors of the product
    assert kept[True] == 0


def test_experts_are_left_alone() -> None:
    assert tileable(made("mixtral")) == []
    assert len(tileable(made("deepseek_v3"))) == 1  # its first layer is dense


def test_tiles_for() -> None:
    assert [tiles_for(tokens, 4096) for tokens in (1, 4096, 4097, 131072)] == [1, 1, 2, 32]
