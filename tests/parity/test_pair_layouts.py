"""Pairs padded, side by side, and with one prompt for both answers: the same log-probabilities and gradients."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import transformers

from hftune.models.attention.segments import SEGMENTS
from hftune.models.classes import causal_class
from hftune.models.kernels.heads import add_answer_head
from hftune.trainers.preference.batches import PairCollator

VOCABULARY = 97
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WINDOW = {"sliding_window": 5}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-window": ("Qwen2Config", {**WINDOW, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {}),
    "mistral": ("MistralConfig", WINDOW),
    "gemma2": ("Gemma2Config", {**WINDOW, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0}),
    "gemma3": ("Gemma3TextConfig", WINDOW),
    "phi3": ("Phi3Config", {**WINDOW, "partial_rotary_factor": 1.0}),
    "gpt-oss": ("GptOssConfig", {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
                            "resid_pdrop": 0.0}),
}  # fmt: skip

LENGTHS = [(7, 5, 3), (1, 2, 6), (4, 1, 1), (9, 4, 8)]
"""Tokens of prompts, chosen and rejected answers; one of a single token each."""

LAYOUTS = {
    "padded": {"flat": False},
    "side by side": {"flat": True},
    "shared": {"flat": True, "shared": True},
}
NOT_OF_THE_MODEL = ("answer_lengths", "num_tokens", "chosen_total", "paired")
NAMES = ("prompt_ids", "chosen_ids", "rejected_ids")


def tiny(name: str, attention: str) -> Any:
    config_name, more = CONFIGS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**{**SMALL, **more})
    # float32 at 1e-5 asks for weights that make scores of about 1, not of 0.01.
    config.initializer_range = 0.2
    model = causal_class(config)(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape)  # sinks and biases that are not 0
    model.set_attn_implementation(attention)
    return model.train()


def records() -> list[dict[str, list[int]]]:
    """Of made-up tokens."""
    generator = torch.Generator().manual_seed(1)
    return [
        {
            name: torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
            for name, length in zip(NAMES, lengths, strict=True)
        }
        for lengths in LENGTHS
    ]


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], where: Any) -> None:
    assert found.keys() == expected.keys() and expected
    for name, gradient in found.items():
        off = (gradient - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1)
        assert off <= 1e-5, (where, name, float(off))


@pytest.mark.parametrize(("name", "head"), [*product(CONFIGS, ["trained"]), ("llama", "frozen"), ("gemma2", "frozen")])
def test_every_architecture(name: str, head: str) -> None:
    """Log-probabilities and gradients of all answers, against eager attention on padded rows."""
    expected: Any = None
    for attention, layout in [("eager", "padded"), *((SEGMENTS, layout) for layout in LAYOUTS)]:
        model = tiny(name, attention)
        if head == "frozen":
            model.get_output_embeddings().requires_grad_(False)
        add_answer_head(model)
        batch = PairCollator(0, **LAYOUTS[layout])(records())
        inputs = {key: batch[key] for key in batch if key not in NOT_OF_THE_MODEL}
        log_probs = model(**inputs).log_probs
        (log_probs * torch.linspace(-1, 1, len(log_probs))).sum().backward()
        if expected is None:
            expected = log_probs.detach(), gradients(model)
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.float()
            flat = logits.flatten(0, 1).log_softmax(-1)[batch["answer_at"]]
            torch.testing.assert_close(flat.gather(1, batch["answer_ids"][:, None])[:, 0], log_probs)
        torch.testing.assert_close(log_probs.detach(), expected[0], atol=1e-5, rtol=0)
        assert_same(gradients(model), expected[1], layout)
