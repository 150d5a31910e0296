"""The same tokens give the same loss and gradients alone, padded, side by side and packed; documents stay apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from hftune.data.collators import CausalCollator, FlatCollator
from hftune.models.attention.segments import SEGMENTS
from hftune.models.classes import causal_class
from tests.unit.data.helpers import pack, to_dataset

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
LENGTHS = [7, 3, 11, 1, 2, 9]


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


@pytest.fixture(scope="module")
def examples() -> list[dict[str, list[int]]]:
    """Documents of several lengths; every third label is masked."""
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]
    return [
        {"input_ids": row, "labels": [-100 if place % 3 == 1 else token for place, token in enumerate(row)]}
        for row in ids
    ]


def loss_and_gradients(model: Any, batches: list[dict[str, Any]]) -> tuple[float, dict[str, torch.Tensor]]:
    """Of several batches as the Trainer forms them: summed, over the number of all targets."""
    targets = sum(int((batch["labels"][..., 1:] != -100).sum()) for batch in batches)
    model.zero_grad()
    total = 0.0
    for batch in batches:
        if (batch["labels"][..., 1:] == -100).all():
            continue
        loss = model(**batch, num_items_in_batch=targets).loss
        loss.backward()
        total += loss.item()
    return total, {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def layouts(examples: list[dict[str, list[int]]]) -> dict[str, list[dict[str, Any]]]:
    columns = {name: [example[name] for example in examples] for name in ("input_ids", "labels")}
    rows = list(pack(to_dataset(columns), 12)[0])
    assert len(rows) < len(examples)
    flat, padded = FlatCollator(), CausalCollator(pad_token_id=0)
    return {
        "padded": [padded(examples)],
        "padding-free": [flat(examples)],
        "packed": [flat(rows)],
        "packed, accumulated": [flat([row]) for row in rows],
        "padded, accumulated": [padded(examples[:2]), padded(examples[2:])],
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_same_loss_and_gradients(name: str, examples: list[dict[str, list[int]]]) -> None:
    alone = [CausalCollator(pad_token_id=0)([example]) for example in examples]
    expected, gradients = loss_and_gradients(tiny(name, "eager"), alone)
    assert expected > 1
    model = tiny(name, SEGMENTS)
    for layout, batches in layouts(examples).items():
        loss, found = loss_and_gradients(model, batches)
        assert loss == pytest.approx(expected, abs=1e-5), layout
        assert found.keys() == gradients.keys()
        for parameter, gradient in found.items():
            off = (gradient - gradients[parameter]).abs().max()
            assert off <= 2e-5 * gradients[parameter].abs().max().clamp(min=1), (layout, parameter, off)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2"])
def test_attentions_of_transformers_keep_documents_apart_too(
    name: str, attention: str, examples: list[dict[str, list[int]]]
) -> None:
    """With a dense mask: what `--attn_implementation` may ask for.

    Not GPT-OSS: transformers 5.23 keeps its position ids from its mask, so documents see each other with eager and flex
    attention there. A run finds out before its first step (`trainers/isolation.py`), and our own attention cuts the row
    at the borders that came with the batch.
    """
    if attention == "sdpa" and not causal_class(tiny(name, "eager").config)._supports_sdpa:
        pytest.skip("transformers has no SDPA for it")
    expected, _ = loss_and_gradients(tiny(name, SEGMENTS), layouts(examples)["packed"])
    loss, _ = loss_and_gradients(tiny(name, attention), layouts(examples)["packed"])
    assert loss == pytest.approx(expected, abs=1e-5)


def test_generation_is_that_of_sdpa() -> None:
    """What was trained on packed rows may be sampled from at once: a cache needs another mask."""
    prompts = {
        "input_ids": torch.tensor([[0, 0, 5, 6], [9, 8, 7, 6]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]),
    }
    for name in ("llama", "mistral"):
        texts = []
        for attention in ("sdpa", SEGMENTS):
            model = tiny(name, attention).eval()
            texts.append(model.generate(**prompts, max_new_tokens=8, do_sample=False).tolist())
        assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_flex_attention_keeps_documents_apart_too(name: str) -> None:
    """Forward only: that is all it does on a CPU, after half a minute of compiling."""
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in (100, 156)]
    batch = FlatCollator()([{"input_ids": row, "labels": row} for row in ids])
    with torch.no_grad():
        logits = [tiny(name, attention).eval()(**batch).logits for attention in ("flex_attention", SEGMENTS)]
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)
