"""Kernels on a CUDA device against our attention a document at a time, which the CPU tests hold against the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available, is_flash_attn_4_available

from hftune.data.collators import FlatCollator
from hftune.models.attention.machine import has_varlen
from hftune.models.attention.segments import SEGMENTS, VARLEN
from hftune.models.classes import causal_class
from hftune.trainers.isolation import prove_isolation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SMALL: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.06,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {},
    "Mistral": {"sliding_window": 33},
    "Gemma2": {"sliding_window": 33, "attn_logit_softcapping": 20.0},
    "GptOss": {"sliding_window": 33, "num_local_experts": 4, "num_experts_per_tok": 2},
}
LENGTHS = [130, 7, 1, 250, 64, 60]
KERNELS = {
    VARLEN: has_varlen,
    "flex_attention": lambda: True,
    "sdpa": lambda: True,
    "flash_attention_2": is_flash_attn_2_available,
    "flash_attention_3": is_flash_attn_3_available,
    "flash_attention_4": is_flash_attn_4_available,
}


def tiny(name: str, attention: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **MODELS[name]})
    model = causal_class(config)(config).to("cuda", dtype)
    model.set_attn_implementation(attention)
    return model.train()


def batch() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(3, 256, (length,), generator=generator).tolist() for length in LENGTHS]
    made = FlatCollator()([{"input_ids": row, "labels": row} for row in rows])
    return {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in made.items()}


def loss_and_gradient(model: Any) -> tuple[float, torch.Tensor]:
    """Loss, and all gradients as one vector."""
    loss = model(**batch()).loss
    loss.backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return loss.item(), torch.cat(gradients).float()


def skip_unless_there(name: str, kernel: str) -> None:
    if not KERNELS[kernel]():
        pytest.skip(f"no {kernel} here")
    if kernel.startswith("flash") and name in ("Gemma2", "GptOss"):
        pytest.skip("hftune does not choose FlashAttention for soft caps and sinks")
    if name == "GptOss" and kernel != VARLEN:
        pytest.skip("transformers 5.23 keeps its position ids from its mask")
    if name == "Gemma2" and kernel == "sdpa":
        pytest.skip("transformers has no SDPA for it")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", MODELS)
def test_same_loss_and_gradients_in_bf16(name: str, kernel: str) -> None:
    """Both round; the gradients must point the same way, as two roundings of one thing do."""
    skip_unless_there(name, kernel)
    expected, gradient = loss_and_gradient(tiny(name, SEGMENTS, torch.bfloat16))
    loss, found = loss_and_gradient(tiny(name, kernel, torch.bfloat16))
    assert loss == pytest.approx(expected, rel=5e-3)
    assert torch.cosine_similarity(found, gradient, dim=0) > 0.999


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", MODELS)
def test_documents_stay_apart(name: str, kernel: str) -> None:
    skip_unless_there(name, kernel)
    prove_isolation(tiny(name, kernel, torch.bfloat16), 256, kernel, torch.device("cuda"))


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Mistral"])
def test_varlen_under_autocast_is_its_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in float32: norms of queries and keys give float32, which must not send the row round the kernel."""
    if not has_varlen():
        pytest.skip("no varlen here")
    from torch.nn.attention import varlen

    calls = []
    original = varlen.varlen_attn
    monkeypatch.setattr(varlen, "varlen_attn", lambda *a, **k: calls.append(1) or original(*a, **k))
    with torch.autocast("cuda", torch.bfloat16):
        loss, _ = loss_and_gradient(tiny(name, VARLEN, torch.float32))
    assert len(calls) == SMALL["num_hidden_layers"]
    expected, _ = loss_and_gradient(tiny(name, SEGMENTS, torch.float32))
    assert loss == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_what_varlen_cannot_do_is_done_exactly(name: str) -> None:
    """float32 without autocast goes to SDPA, a document at a time."""
    expected, gradient = loss_and_gradient(tiny(name, SEGMENTS, torch.float32))
    loss, found = loss_and_gradient(tiny(name, VARLEN, torch.float32))
    assert loss == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(found, gradient, atol=1e-4, rtol=1e-3)


def test_checkpointing_with_varlen() -> None:
    if not has_varlen():
        pytest.skip("no varlen here")
    _, expected = loss_and_gradient(tiny("Mistral", VARLEN, torch.bfloat16))
    for reentrant in (False, True):
        model = tiny("Mistral", VARLEN, torch.bfloat16)
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.testing.assert_close(loss_and_gradient(model)[1], expected, atol=1e-3, rtol=1e-2)
