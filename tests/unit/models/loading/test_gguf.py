"""What is left on a model of the GGUF that it was read from."""

from __future__ import annotations

from types import SimpleNamespace

from transformers import LlamaConfig, LlamaForCausalLM

from hftune.models.loading.causal_lm import forget_gguf


def test_nothing_is_left() -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 32}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes))
    forget_gguf(model)  # nothing was there
    model.hf_quantizer, model.quantization_method, model.is_quantized = SimpleNamespace(), "gguf", True
    model.config.quantization_config = {"quant_method": "gguf"}
    forget_gguf(model)
    assert not hasattr(model, "hf_quantizer") and not hasattr(model, "quantization_method") and not model.is_quantized
    assert "quantization_config" not in model.config.to_dict()
