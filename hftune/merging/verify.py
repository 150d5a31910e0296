"""Whether a merged model says the same as base + adapter."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

PROMPTS = (
    "Who are you?",
    "The capital of France is",
    "Explain in one sentence why the sky is blue.",
    "What should I check before I merge an adapter?",
)


@dataclass
class Comparison:
    """Differences between two sets of logits (or scores) at every position of `PROMPTS`."""

    largest: float
    mean: float
    same_choice: float

    def __str__(self) -> str:
        return f"largest difference {self.largest:.2e}, mean {self.mean:.2e}, same choice {self.same_choice:.1%}"

    def to_dict(self) -> dict[str, float]:
        """Plain values for the manifest."""
        return asdict(self)


def last_logits(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[torch.Tensor]:
    """Logits of each prompt: (length, vocabulary) of a causal LM, (1,) of a reward model, in float32."""
    results = []
    with torch.no_grad():
        for prompt in PROMPTS:
            logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0]
            results.append(logits.float())
    return results


def compare(before: list[torch.Tensor], after: list[torch.Tensor]) -> Comparison:
    """Compare logits position by position; `same_choice` is the share of positions with the same most likely token."""
    differences = torch.cat([(a - b).abs().flatten() for a, b in zip(before, after, strict=True)])
    same = torch.cat([(a.argmax(-1) == b.argmax(-1)).flatten() for a, b in zip(before, after, strict=True)])
    return Comparison(
        largest=float(differences.max()), mean=float(differences.mean()), same_choice=float(same.float().mean())
    )
