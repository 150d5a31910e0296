"""FP8 on a GPU that has it: the kernels agree with what a CPU emulates, for any number of tokens."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hftune.models.kernels.float8 import CAPABILITY, has_float8, to_float8

pytest.importorskip("torchao")
pytestmark = pytest.mark.gpu

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256}


@pytest.mark.parametrize("autocast", [True, False], ids=["float32-weights", "bf16-weights"])
@pytest.mark.parametrize("recipe", list(CAPABILITY))
def test_losses_and_gradients_stay_near_those_of_bf16(recipe: str, autocast: bool) -> None:
    if not has_float8(recipe):
        pytest.skip("this GPU has no such products")
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(**SIZES)).cuda()
    plain = plain if autocast else plain.bfloat16()
    rounded = copy.deepcopy(plain)
    assert to_float8(rounded, recipe) == 2 * 7
    ids = torch.randint(0, 512, (3, 37), generator=torch.Generator().manual_seed(1)).cuda()
    losses = []
    for model in (plain, rounded):
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            losses.append(model(input_ids=ids, labels=ids).loss)
        losses[-1].backward()
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-2, atol=0)
    for (name, mine), parameter in zip(rounded.named_parameters(), plain.named_parameters(), strict=True):
        assert mine.grad is not None and parameter[1].grad is not None, name
        likeness = torch.cosine_similarity(mine.grad.float().flatten(), parameter[1].grad.float().flatten(), dim=0)
        assert likeness > 0.98, name
