"""What plain transformers says of one conversation. Not a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def answer(model: Any, folder: Path, chat: list[Any], tokens: int) -> str:
    """The greedy answer of a model, by the tokenizer in a folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        said = model.eval().generate(**ids, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(said[0, ids["input_ids"].shape[1] :], skip_special_tokens=True).rstrip("\ufffd").strip()


def score(folder: Path, chat: list[Any]) -> float:
    """The raw score by the reward model in a folder."""
    ids = AutoTokenizer.from_pretrained(folder).apply_chat_template(chat, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        return AutoModelForSequenceClassification.from_pretrained(folder)(**ids).logits.item()
