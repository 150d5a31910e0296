"""FP8 products, emulated: rounded to FP8 as the GPU's kernels do, and multiplied in float32."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from hftune.logging import notices
from hftune.models.kernels import float8
from hftune.models.kernels.float8 import to_float8
from tests.unit.models.adapting import loaded

pytest.importorskip("torchao")

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 160, "max_position_embeddings": 64}
RECIPES = list(float8.CAPABILITY)


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def batch(tokens: int = 21) -> dict[str, torch.Tensor]:
    """A number of tokens that is no multiple of 16: they are the inner size of the weights' gradients."""
    ids = torch.randint(0, 160, (3, tokens), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("recipe", RECIPES)
def test_losses_and_gradients_are_those_of_the_model_to_eight_bits(recipe: str) -> None:
    plain = llama()
    rounded = copy.deepcopy(plain)
    names = [name for name, _ in rounded.named_parameters()]
    assert to_float8(rounded, recipe) == 2 * 7
    assert [name for name, _ in rounded.named_parameters()] == names, "a checkpoint is the same"
    assert type(rounded.lm_head) is torch.nn.Linear
    for model in (plain, rounded):
        model(**batch()).loss.backward()
    ours, exact = rounded(**batch()).loss, plain(**batch()).loss
    assert ours != exact, "something was rounded"
    torch.testing.assert_close(ours, exact, rtol=2e-3, atol=0)
    for (name, mine), parameter in zip(rounded.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and parameter.grad is not None, name
        assert torch.cosine_similarity(mine.grad.flatten(), parameter.grad.flatten(), dim=0) > 0.99, name


def test_routers_and_odd_sizes_stay() -> None:
    torch.manual_seed(0)
    mixture = MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4))
    assert to_float8(mixture, "tensorwise") == 2 * 4, "attention alone: experts are no linear layers"
    odd = LlamaForCausalLM(LlamaConfig(**(SIZES | {"intermediate_size": 120})))
    assert to_float8(odd, "tensorwise") == 2 * 4


def test_the_loader_replaces_them(tiny_model: Path) -> None:
    model, _ = loaded("sft", tiny_model, "--fp8", "tensorwise")
    replaced = [name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"]
    assert replaced and all(".layers." in name for name in replaced)
    said = [line for line in notices() if "FP8" in line or "--fp8" in line]
    assert f"{len(replaced)} linear layers" in said[0] and "--fp8 without --torch_compile True" in said[1]


def test_for_a_proof_nothing_is_rounded() -> None:
    """A tensorwise scale is that of all tokens: what one document says rounds another."""
    plain = llama()
    rounded = copy.deepcopy(plain)
    to_float8(rounded, "tensorwise")
    layer = rounded.model.layers[0].self_attn.q_proj
    with float8.without_float8(rounded):
        assert torch.equal(rounded(**batch()).logits, plain(**batch()).logits)
    assert not torch.equal(rounded(**batch()).logits, plain(**batch()).logits)
    assert "forward" not in vars(layer)
    layer.forward = before = lambda *_: None  # somebody else's
    with float8.without_float8(rounded):
        assert layer.forward is not before
    assert layer.forward is before
