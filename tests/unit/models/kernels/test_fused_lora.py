"""LoRA layers and gated MLPs whose passes are written out give what peft gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from hftune.models.kernels import fused_lora
from hftune.models.kernels.fused_lora import fuse_lora, is_gated_mlp

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
MODELS: dict[str, Any] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, mlp_bias=True)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES)),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(**SIZES, head_dim=8)),
    "phi3": (Phi3ForCausalLM, Phi3Config(**SIZES)),
}


def adapted(name: str = "llama", *, fused: bool, **config: Any) -> Any:
    torch.manual_seed(0)
    kind, of_model = MODELS[name]
    config = {"target_modules": "all-linear", "init_lora_weights": False, **config}
    model = get_peft_model(kind(of_model), LoraConfig(r=4, lora_alpha=12, **config))
    if fused:
        assert fuse_lora(model)
    return model


def step(model: Any, seed: int = 1, **kwargs: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    torch.manual_seed(seed)
    ids = torch.randint(1, 61, (2, 9))
    logits = model(input_ids=ids, **kwargs).logits
    logits.float().square().mean().backward()
    return logits.detach(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def alike(first: Any, second: Any, **kwargs: Any) -> None:
    (logits, gradients), (others, other_gradients) = step(first, **kwargs), step(second, **kwargs)
    torch.testing.assert_close(logits, others, rtol=1e-4, atol=1e-5)
    assert gradients.keys() == other_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, other_gradients[name], rtol=2e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_equals_peft(name: str) -> None:
    alike(adapted(name, fused=True), adapted(name, fused=False))


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj", "down_proj"]},
        {"target_modules": ["up_proj"]},
        {"use_rslora": True},
        {"use_dora": True},
        {"lora_bias": True},
        {"rank_pattern": {"gate_proj": 2}},
        {"bias": "all"},
        {"lora_dropout": 0.5, "target_modules": ["o_proj", "down_proj"]},  # draws as peft does
    ],
    ids=str,
)
def test_every_make_of_adapter(config: dict[str, Any]) -> None:
    alike(adapted(fused=True, **config), adapted(fused=False, **config))


def test_follows_what_happens_to_the_adapter() -> None:
    fused, plain = adapted(fused=True), adapted(fused=False)
    with fused.disable_adapter(), plain.disable_adapter():
        ids = torch.arange(1, 9)[None]
        torch.testing.assert_close(fused(input_ids=ids).logits, plain(input_ids=ids).logits)
    for model in (fused, plain):
        torch.manual_seed(2)
        model.add_adapter("other", LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
        model.base_model.set_adapter(["default", "other"])
    alike(fused, plain)
    for model in (fused, plain):
        model.base_model.set_adapter("other")
    alike(fused, plain)
    fused.merge_adapter()
    plain.merge_adapter()
    torch.testing.assert_close(fused(input_ids=ids).logits, plain(input_ids=ids).logits)
    unloaded = fused.merge_and_unload()
    torch.testing.assert_close(unloaded(input_ids=ids).logits, plain(input_ids=ids).logits, rtol=1e-4, atol=1e-5)


def test_autocast_and_recomputing() -> None:
    fused, plain = adapted(fused=True), adapted(fused=False)
    for model in (fused, plain):
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    alike(fused, plain)
    fused.zero_grad()
    plain.zero_grad()
    distances = [0.0, 0.0]
    for seed in range(6):
        plain.zero_grad()
        _, exact = step(plain, seed)
        exact = {name: gradient.clone() for name, gradient in exact.items()}
        for number, model in enumerate((fused, plain)):
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                logits, gradients = step(model, seed)
            assert logits.dtype == torch.bfloat16
            assert all(gradient.dtype == torch.float32 for gradient in gradients.values())
            distances[number] += sum(float((gradients[name] - each).norm()) for name, each in exact.items())
    assert distances[0] < 1.75 * distances[1], "about as far from float32 as peft is"


def test_a_16_bit_base_with_a_float32_adapter_is_left_to_peft() -> None:
    fused, plain = adapted(fused=True), adapted(fused=False)
    for model in (fused, plain):
        for name, one in model.named_parameters():
            if "lora_" not in name:
                one.data = one.data.bfloat16()
    (logits, gradients), (others, other_gradients) = step(fused), step(plain)
    assert torch.equal(logits, others)
    assert all(torch.equal(gradients[name], other_gradients[name]) for name in gradients)


def test_a_4_bit_base() -> None:
    from bitsandbytes.nn import Linear4bit

    def packed(*, fused: bool) -> Any:
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(LlamaConfig(**{**SIZES, "hidden_size": 64, "intermediate_size": 64}))
        model.is_loaded_in_4bit = True
        for layer in model.model.layers:
            for owner in (layer.self_attn, layer.mlp):
                for name, linear in list(owner.named_children()):
                    if isinstance(linear, torch.nn.Linear):
                        four = Linear4bit(linear.in_features, linear.out_features, bias=False)
                        four.load_state_dict(linear.state_dict())
                        four.to("cpu")
                        setattr(owner, name, four)
        config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        model = get_peft_model(model, config)
        if fused:
            assert fuse_lora(model)
            linear = model.base_model.model.model.layers[0].self_attn.q_proj
            assert fused_lora.Projection.of(linear, torch.zeros(1, 64)) is not None
        return model

    alike(packed(fused=True), packed(fused=False))


def test_keeps_less_for_the_backward_pass() -> None:
    def kept(model: Any) -> int:
        held: dict[int, int] = {}
        parameters = {one.data_ptr() for one in model.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.data_ptr() not in parameters:
                held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(input_ids=torch.randint(1, 61, (1, 256)))
        return sum(held.values())

    assert kept(adapted(fused=True)) < 0.8 * kept(adapted(fused=False))


def test_a_gated_mlp_is_known_by_what_it_computes() -> None:
    mlp = LlamaForCausalLM(MODELS["llama"][1]).model.layers[0].mlp
    assert is_gated_mlp(mlp)

    class Halved(type(mlp)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 0.5

    class WithScale(type(mlp)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.scale

    for kind in (Halved, WithScale):
        assert not is_gated_mlp(kind(MODELS["llama"][1]))


@pytest.mark.parametrize("module", ["q_proj", "mlp"])
def test_what_comes_out_may_be_changed_in_place(module: str) -> None:
    # As Llama 4 and Gemma 3n do: x += ... on what a layer gave.
    for fused in (False, True):
        model = adapted(fused=fused)
        layer = model.base_model.model.model.layers[0]
        one = layer.mlp if module == "mlp" else layer.self_attn.q_proj
        x = torch.linspace(-1, 1, 2 * 3 * 32).view(2, 3, 32)
        out = one(x)
        out += 1.0
        out.square().sum().backward()
        assert any(each.grad is not None and each.grad.any() for each in one.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_passes_without_gradients_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = adapted(name, fused=True).eval(), torch.arange(1, 9)[None]
    wanted = model(input_ids=ids).logits.detach()
    monkeypatch.setattr(fused_lora._LoraLinear, "apply", None)
    monkeypatch.setattr(fused_lora._GatedMLP, "apply", None)
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, wanted)


def test_an_adapter_that_is_held_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = adapted(fused=True).eval(), torch.arange(1, 9)[None]
    looked: list[torch.nn.Module] = []
    of = fused_lora.Projection.of
    monkeypatch.setattr(fused_lora.Projection, "of", lambda module, x: looked.append(module) or of(module, x))
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
        once = len(looked)
        with fused_lora.adapters_held():
            assert torch.equal(model(input_ids=ids).logits, wanted)
            assert torch.equal(model(input_ids=ids).logits, wanted)
        assert len(looked) == 2 * once
        with model.disable_adapter():
            assert not torch.equal(model(input_ids=ids).logits, wanted), "nothing is held after the block"
