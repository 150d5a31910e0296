"""Tiny random checkpoints of several parts: a language model with a vision tower, or with a head that looks further."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.architectures import make_model
from tests.conftest import tiny_tokenizer

_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "initializer_range": 0.1,
}
_SIGLIP = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_QWEN_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
_SLIDING = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
# model_type: fields of the text's config, of the vision tower's, and of the whole.
_CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen3_5": (
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
                "partial_rotary_factor": 1.0,
            },
        },
        {name: value for name, value in _QWEN_VISION.items() if name != "deepstack_visual_indexes"},
        {"image_token_id": 300, "video_token_id": 301, "vision_start_token_id": 302, "vision_end_token_id": 303},
    ),
    "qwen3_vl": (
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
            }
        },
        _QWEN_VISION,
        {"image_token_id": 300, "video_token_id": 301, "vision_start_token_id": 302, "vision_end_token_id": 303},
    ),
    "gemma3": (
        {**_SLIDING, "query_pre_attn_scalar": 8, "model_type": "gemma3_text"},
        {**_SIGLIP, "model_type": "siglip_vision_model"},
        {"image_token_index": 300, "boi_token_index": 301, "eoi_token_index": 302, "mm_tokens_per_image": 4},
    ),
    "mistral3": (
        {"model_type": "mistral", "sliding_window": None},
        {**_SIGLIP, "model_type": "pixtral", "head_dim": 8},
        {"image_token_index": 300, "spatial_merge_size": 2},
    ),
    "gemma4": (
        {
            **_SLIDING,
            "model_type": "gemma4_text",
            "global_head_dim": 8,
            "hidden_size_per_layer_input": 4,
            "vocab_size_per_layer_input": 320,
            "num_kv_shared_layers": 0,
        },
        {
            **_SIGLIP,
            "model_type": "gemma4_vision",
            "head_dim": 8,
            "num_key_value_heads": 2,
            "pooling_kernel_size": 2,
            "position_embedding_size": 16,
        },
        {"image_token_id": 300, "video_token_id": 304, "boi_token_id": 301, "eoi_token_id": 302, "audio_config": None},
    ),
}
WHOLE = tuple(_CONFIGS)
"""transformers' `model_type` of each that has a vision tower."""


def make_whole(name: str, folder: Path, *, tied: bool | None = None) -> Path:
    """A random model with a vision tower, as the class for images and text saves it, with the tests' tokenizer.

    Args:
        name: One of `WHOLE`.
        folder: Where it is saved, in bfloat16 but for what its class keeps in float32.
        tied: Whether the head is the embeddings; None: as its class has it.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    tokenizer = tiny_tokenizer()
    text, vision, whole = _CONFIGS[name]
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    if tied is not None:
        whole = whole | {"tie_word_embeddings": tied}
        text = text | {"tie_word_embeddings": tied}
    config = AutoConfig.for_model(
        name, text_config=_TEXT | {"vocab_size": 320} | ids | text, vision_config=vision, **whole
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
        # A projector that begins as zeros (Gemma 3) would show no image.
        for parameter in (one for one in model.parameters() if one.ndim > 1 and not one.any()):
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "Tiny", "size": 28}))
    (folder / "video_preprocessor_config.json").write_text(json.dumps({"size": 28}))
    return folder


def make_with_further_head(folder: Path) -> Path:
    """A tiny DeepSeek-V3 with a layer that predicts the token after the next, stored behind the others."""
    import torch
    from safetensors.torch import load_file, save_file

    make_model("deepseek_v3", folder, num_nextn_predict_layers=1)
    tensors = load_file(folder / "model.safetensors")
    last = {name: tensor for name, tensor in tensors.items() if name.startswith("model.layers.2.")}
    further = {name.replace("layers.2.", "layers.3."): tensor + 0.5 for name, tensor in last.items()}
    further["model.layers.3.eh_proj.weight"] = torch.randn(32, 64)
    further["model.layers.3.enorm.weight"] = torch.randn(32)
    save_file(tensors | further, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def image_logits(folder: Path, seed: int = 0) -> Any:
    """Logits for a random image among a few tokens, (1, tokens, vocabulary): what the class for images and text says.

    Args:
        folder: A model of one of `WHOLE`.
        seed: Of the image.
    """
    import torch
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    random = torch.Generator().manual_seed(seed)
    pixels, tokens = torch.rand(2, 3, 28, 28, generator=random), 4
    given: dict[str, Any] = {"pixel_values": pixels[:1]}
    kind = model.config.model_type
    if kind.startswith("qwen3"):
        # 4 x 4 patches, 2 x 2 of which are one token.
        given = {"pixel_values": torch.rand(16, 96, generator=random), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    elif kind == "mistral3":
        given, tokens = {"pixel_values": pixels, "image_sizes": torch.tensor([[28, 28]] * 2)}, 2
    elif kind == "gemma4":
        given["pixel_values"] = torch.rand(1, 16, 3 * 14 * 14, generator=random)
        given["image_position_ids"] = torch.cartesian_prod(torch.arange(4), torch.arange(4))[None]
    ids = torch.tensor([[5, 7, *[300] * tokens, 9, 17]])
    if kind != "mistral3":
        given["token_type_ids" if kind == "gemma3" else "mm_token_type_ids"] = (ids == 300).long()
    with torch.no_grad():
        return model(input_ids=ids, **given).logits
