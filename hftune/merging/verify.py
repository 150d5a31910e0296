"""Whether a merged model says the same as base + adapter."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from hftune.constants import AUTO_CLASSES
from hftune.errors import ManifestError
from hftune.models.loading.from_pretrained import pretrained

PROMPTS = (
    "Who are you?",
    "The capital of France is",
    "Explain in one sentence why the sky is blue.",
    "What should I check before I merge an adapter?",
)
# Mean difference over the logits' root mean square. Measured over the architectures of the tests, float32 stays below
# 1e-6 and bfloat16 below 2e-2; a transposed, missing or doubled update is above 1e-1.
LIMIT_FLOAT32, LIMIT_HALF = 1e-4, 1e-1


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
    relative: float = 0.0
    """The mean difference over the root mean square of the logits."""

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
    """Logits of each prompt, float32: (length, vocabulary) of a causal LM, (labels,) of a reward model; and answers.

    Args:
        model: In eval mode; a reward model has no `lm_head` and gives no greedy answers.
        tokenizer: Its tokenizer; the first half of the prompts go through its chat template, where it has one.
        new_tokens: Length of each greedy answer.
    """
    said = Answers([], [])
    generates = not hasattr(model, "score")
    with torch.no_grad():
        for number, prompt in enumerate(PROMPTS):
            text = _in_template(tokenizer, prompt) if tokenizer.chat_template and number % 2 == 0 else prompt
            inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            said.logits.append(model(**inputs).logits[0].float())
            if generates:
                ids = model.generate(
                    **inputs, max_new_tokens=new_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id
                )
                said.greedy.append(ids[0].tolist())
    return said


def _in_template(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    turn = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))


def compare(before: Answers, after: Answers) -> Comparison:
    """Compare position by position, and greedy answers as a whole."""
    pairs = list(zip(before.logits, after.logits, strict=True))
    differences = torch.cat([(a - b).abs().flatten() for a, b in pairs])
    same = torch.cat([(a.argmax(-1) == b.argmax(-1)).flatten() for a, b in pairs])
    greedy = [a == b for a, b in zip(before.greedy, after.greedy, strict=True)]
    size = torch.cat([a.flatten() for a, _ in pairs]).square().mean().sqrt()
    return Comparison(
        largest=float(differences.max()),
        mean=float(differences.mean()),
        same_choice=float(same.float().mean()) if greedy else None,
        same_greedy=sum(greedy) / len(greedy) if greedy else None,
        relative=float(differences.mean() / size.clamp_min(1e-12)),
    )


def judge(comparison: Comparison, *, half: bool) -> None:
    """Refuse a merge whose model says something else.

    Args:
        comparison: Of base + adapter with the merged model.
        half: Whether its weights were rounded to 16 bit.

    Raises:
        ManifestError: The difference is beyond rounding (NaN is, too).
    """
    limit = LIMIT_HALF if half else LIMIT_FLOAT32
    if not comparison.relative <= limit:
        raise ManifestError(
            f"the merged model does not say what base + adapter say: {comparison}",
            place=f"--verify (relative difference {comparison.relative:.1e}, at most {limit:.0e} is rounding)",
            fix="this is a fault of the merge: please report it; --verify False writes the model all the same",
        )


def reload_strictly(folder: Path, *, head: str = "causal_lm", trust_remote_code: bool = False) -> Any:
    """The merged model as plain transformers loads it, in float32.

    Raises:
        ManifestError: Missing or left-over weights, or ties that are not what the config says.
    """
    import transformers

    auto: Any = getattr(transformers, AUTO_CLASSES[head])
    model, info = pretrained(
        auto, folder, output_loading_info=True, trust_remote_code=trust_remote_code, dtype=torch.float32
    )
    wrong = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    if wrong:
        raise ManifestError(
            f"the merged model does not load strictly: {wrong}",
            place="--verify",
            fix="this is a fault of the merge: please report it; --verify False writes the model all the same",
        )
    _check_ties(model)
    return model.eval()


def _check_ties(model: Any) -> None:
    head = model.get_output_embeddings()
    asked = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    if head is None or model.get_input_embeddings() is None:
        return
    tied = head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    if tied != bool(asked):
        raise ManifestError(
            f"the merged config says tie_word_embeddings: {asked}, and the loaded model has them "
            + ("tied" if tied else "apart"),
            place="--verify",
            fix="this is a fault of the merge: please report it",
        )
