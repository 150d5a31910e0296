"""What reading a GGUF file leaves on a model."""

from __future__ import annotations

from transformers import PreTrainedModel


def forget_gguf(model: PreTrainedModel) -> None:
    """Remove what reading a GGUF file leaves on a model, whose weights were dequantised on the way."""
    # transformers would refuse to train or save it as a quantised model (5.23).
    for holder, name in (
        (model, "hf_quantizer"),
        (model, "quantization_method"),
        (model.config, "quantization_config"),
    ):
        if hasattr(holder, name):
            delattr(holder, name)
    model.is_quantized = False
