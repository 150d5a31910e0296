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
class Answers:
    """What a model says to `PROMPTS`: logits at every position, and greedy answers of a causal LM."""

    logits: list[torch.Tensor]
    greedy: list[list[int]]


@dataclass
class Comparison:
    """How far two models' answers are apart; reward models choose no tokens and give no greedy answers (None)."""

    largest: float
    mean: float
    same_choice: float | None
    same_greedy: float | None

    def __str__(self) -> str:
        distance = f"differ by {self.largest:.1e} at most, {self.mean:.1e} on average"
        if self.same_choice is None or self.same_greedy is None:
            return f"scores {distance}"
        return (
            f"logits {distance}; "
            f"same most likely token at {self.same_choice:.1%}; same greedy answers: {self.same_greedy:.0%}"
        )

    def to_dict(self) -> dict[str, float]:
        """Plain values for the manifest."""
        return asdict(self)


def answer(model: Any, tokenizer: PreTrainedTokenizerBase, *, new_tokens: int = 16) -> Answers:
    """Logits of each prompt, float32: (length, vocabulary) of a causal LM, (1,) of a reward model; and greedy answers.

    Args:
        model: In eval mode; a reward model has no `lm_head` and gives no greedy answers.
        tokenizer: Its tokenizer; prompts are plain text, without a template.
        new_tokens: Length of each greedy answer.
    """
    said = Answers([], [])
    generates = not hasattr(model, "score")
    with torch.no_grad():
        for prompt in PROMPTS:
            inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
            said.logits.append(model(**inputs).logits[0].float())
            if generates:
                ids = model.generate(
                    **inputs, max_new_tokens=new_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id
                )
                said.greedy.append(ids[0].tolist())
    return said


def compare(before: Answers, after: Answers) -> Comparison:
    """Compare position by position, and greedy answers as a whole."""
    pairs = list(zip(before.logits, after.logits, strict=True))
    differences = torch.cat([(a - b).abs().flatten() for a, b in pairs])
    same = torch.cat([(a.argmax(-1) == b.argmax(-1)).flatten() for a, b in pairs])
    greedy = [a == b for a, b in zip(before.greedy, after.greedy, strict=True)]
    return Comparison(
        largest=float(differences.max()),
        mean=float(differences.mean()),
        same_choice=float(same.float().mean()) if greedy else None,
        same_greedy=sum(greedy) / len(greedy) if greedy else None,
    )
