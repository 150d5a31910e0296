"""What reading a GGUF file leaves on a model."""

from __future__ import annotations

from transformers import PreTrainedModel


def forget_gguf(model: PreTrainedModel) -> None:
    """The weights were dequantised on reading; what is left of the GGUF would only refuse to be saved."""
    for holder, name in (
        (model, "hf_quantizer"),
        (model, "quantization_method"),
        (model.config, "quantization_config"),
    ):
        if hasattr(holder, name):
            delattr(holder, name)
    model.is_quantized = False
