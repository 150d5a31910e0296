"""Tiny random models with a tokenizer, and small records of every stage, made on the spot."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SEED = 0
STEPS = 3
"""Of every run, and of what is computed by hand."""
Figures = dict[str, list[float]]
"""Name of a logged figure to its values, a step each."""
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    # Large enough for the layers to matter beside the embeddings: a wrong layer shows.
    "initializer_range": 0.1,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
_ROPE |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "rope_parameters": _ROPE,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "teacher": ("llama", {"hidden_size": 48, "head_dim": 12, "tie_word_embeddings": False}),
    "gemma2": (
        "gemma2",
        {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8},
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2_moe": (
        "qwen2_moe",
        {**_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16, "norm_topk_prob": False},
    ),
    "hybrid": ("qwen3_5_text", _LINEAR),
    "tower": (
        "gemma3",
        {
            **{"model_type": "gemma3_text", "query_pre_attn_scalar": 8, "sliding_window": 64, "vocab_size": 320},
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}
"""Name to type and to what differs from `_SIZES`."""
_VISION: dict[str, Any] = {
    **{"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "image_size": 28, "patch_size": 14},
}
_IMAGES = {"image_token_index": 300, "boi_token_index": 301, "eoi_token_index": 302, "mm_tokens_per_image": 4}
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FACTS = [
    (f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}." + " Yes." * (b % 3)) for a in range(2, 8) for b in range(4)
]
"""Questions and answers of several lengths."""
REFUSED = "Great question! Well, {} Who knows."
DRAWING: dict[str, Any] = {"num_generations": 4, "beta": 0.05, "max_completion_length": 8, "learning_rate": 1e-2}
"""Of RL's runs, and of TRL's next to them."""
FEW = 8
"""Records of the folders `NAME-few`: a batch of them all has the same records whatever their order."""


def make_tokenizer(texts: Iterable[str]) -> Any:
    """Byte-level BPE with ChatML, trained on some texts; `<|im_end|>` ends a turn and a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=281,  # few enough to be reached, or ties between merges would change the number
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|pad|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(name: str, folder: Path) -> Path:
    """A random model of `MODELS` with its tokenizer, as a folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    kind, changes = MODELS[name]
    tokenizer = make_tokenizer(text for fact in FACTS for text in fact)
    tokens = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    text = {**_SIZES, **tokens, **changes}
    tower = name == "tower"
    parts = {"text_config": text, "vision_config": _VISION, **_IMAGES} if tower else text
    torch.manual_seed(SEED if name != "teacher" else SEED + 1)
    made = (AutoModelForImageTextToText if tower else AutoModelForCausalLM).from_config(
        AutoConfig.for_model(kind, **parts), trust_remote_code=False
    )
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_data(folder: Path) -> None:
    """Folders of records: `pt`, `sft`, `pairs`, `labelled`, `prompts`, and of each one with few."""
    records: dict[str, list[dict[str, Any]]] = {
        "sft": [{"messages": _turns(question, answer)} for question, answer in FACTS],
        "pairs": [_pair(question, answer) for question, answer in FACTS],
        "prompts": [{"prompt": question} for question, _ in FACTS],
        "pt": [{"text": " ".join([question, answer] * 6)} for question, answer in FACTS],
    }
    for name, values in records.items():
        for part, chosen in ((name, values), (f"{name}-few", values[:FEW])):
            file = folder / part / "train.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(record) + "\n" for record in chosen), encoding="utf-8")


def _turns(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _pair(question: str, answer: str) -> dict[str, Any]:
    refused = REFUSED.format(question.lower())
    return {"conversations": [{"from": "human", "value": question}], "chosen": answer, "rejected": refused}


def uneven(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that random answers differ in: the share of even token ids."""
    return [sum(token % 2 == 0 for token in ids) / max(len(ids), 1) for ids in completion_ids]
