"""Vocabularies that grew before training: the merge makes the same rows from the base and the adapter's record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from hftune.models.vocabulary import Growth, grow
from tests.unit.merging.models import ATTENTION, IDS, load_plain, merge, merged_logits, settings

ROWS = 320
NEW = [318, 320, 321, 330]
GROWTH = Growth(ROWS, 344, ids=NEW)
CASES = {
    "nothing of it trained": {},
    "both trained": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "its tokens trained": {"trainable_token_indices": NEW},
    "LoRA on both": {"target_modules": [*ATTENTION, "embed_tokens", "lm_head"]},
}


@pytest.mark.parametrize(
    ("name", "tied"), [(name, tied) for name in CASES for tied in (True, False) if tied or "tokens" not in name]
)
def test_grown_rows(name: str, tied: bool, make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama", tie_word_embeddings=tied, vocab_size=ROWS)
    adapter = tmp_path / "adapter"
    wanted = trained(base, adapter, CASES[name])
    manifest = merge(adapter, tmp_path / "merged")
    assert manifest["merged_by"] == "peft" and manifest["vocabulary"]["rows"] == 344
    assert manifest["vocabulary"]["new_tokens"] == [[318, 318], [320, 321], [330, 330]]
    assert settings(tmp_path / "merged")["vocab_size"] == 344
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), wanted, atol=1e-5, rtol=1e-5)
    suppressed = settings(tmp_path / "merged", "generation_config.json")["suppress_tokens"]
    assert suppressed == list(range(281, 344)), "the base's tokenizer has 281 tokens"


def trained(base: Path, folder: Path, config: dict[str, Any]) -> torch.Tensor:
    """An adapter on the grown base; only its own tensors are saved, as hftune does. Returns what both say."""
    model = load_plain(base)
    grow(model, GROWTH)
    adapted = get_peft_model(
        model, LoraConfig(**{"r": 4, "task_type": "CAUSAL_LM", "target_modules": ATTENTION} | config)
    )
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1
    adapted.save_pretrained(folder, save_embedding_layers=False)
    vocabulary = {"growth": GROWTH.to_json(), "new_tokens": [[318, 318], [320, 321], [330, 330]]}
    manifest = {"kind": "adapter", "status": "complete", "base": {"name": str(base)}, "vocabulary": vocabulary}
    (folder / "hftune.json").write_text(json.dumps(manifest))
    with torch.no_grad():
        return adapted.eval()(IDS).logits


def test_the_rows_are_those_of_training(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama", tie_word_embeddings=False, vocab_size=ROWS)
    trained(base, tmp_path / "adapter", {})
    merge(tmp_path / "adapter", tmp_path / "merged")
    model = load_plain(base)
    grow(model, GROWTH)
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert torch.equal(merged["model.embed_tokens.weight"], model.get_input_embeddings().weight)
    assert torch.equal(merged["lm_head.weight"], model.get_output_embeddings().weight)
