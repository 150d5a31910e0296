"""Tiny random models with a tokenizer, and small records of every stage, made on the spot."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SEED = 0
STEPS = 3
"""Of every run."""
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
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "teacher": {"hidden_size": 48, "head_dim": 12, "tie_word_embeddings": False},
}
"""Of the two models, what differs from `_SIZES`."""
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FACTS = [
    (f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}." + " Yes." * (b % 3)) for a in range(2, 8) for b in range(4)
]
"""Questions and answers of several lengths."""
REFUSED = "Great question! Well, {} Who knows."


def make_tokenizer(texts: Iterable[str], vocabulary: int = 281) -> Any:
    """Byte-level BPE with ChatML, trained on some texts; `<|im_end|>` ends a turn and a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,  # few enough to be reached, or ties between merges would change the number
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|pad|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(name: str, folder: Path) -> Path:
    """A random Llama of `MODELS` with its tokenizer, as a folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(text for fact in FACTS for text in fact)
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    torch.manual_seed(SEED + list(MODELS).index(name))
    LlamaForCausalLM(LlamaConfig(**{**_SIZES, "vocab_size": len(tokenizer), **ids, **MODELS[name]})).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    return folder


def make_data(folder: Path, count: int | None = None) -> None:
    """Folders of records, `count` in each: `pt`, `sft`, `pairs`, `prompts`."""
    records: dict[str, list[dict[str, Any]]] = {
        "sft": [{"messages": _turns(question, answer)} for question, answer in FACTS],
        "pairs": [_pair(question, answer) for question, answer in FACTS],
        "prompts": [{"prompt": question} for question, _ in FACTS],
        "pt": [{"text": " ".join([question, answer] * 6)} for question, answer in FACTS],
    }
    for name, values in records.items():
        file = folder / name / "train.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(record) + "\n" for record in values[:count]), encoding="utf-8")


def _turns(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _pair(question: str, answer: str) -> dict[str, Any]:
    refused = REFUSED.format(question.lower())
    return {"conversations": [{"from": "human", "value": question}], "chosen": answer, "rejected": refused}


def uneven(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that random answers differ in: the share of even token ids."""
    return [sum(token % 2 == 0 for token in ids) / max(len(ids), 1) for ids in completion_ids]
