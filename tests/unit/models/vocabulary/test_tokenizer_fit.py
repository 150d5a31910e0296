"""A model has rows for its tokenizer, or the run is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from hftune.constants import MANIFEST_NAME
from hftune.errors import ArgumentError
from hftune.models.vocabulary import fit_to_tokenizer


class Tokens(dict[str, int]):
    """What of a tokenizer is asked for."""

    def get_vocab(self) -> dict[str, int]:
        return self


def fit(folder: Path, ids: dict[str, int]) -> Any:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 10}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes))
    tokenizer: Any = Tokens(ids)
    model_args: Any = SimpleNamespace(grows=False, model_name_or_path=str(folder))
    adapter_args: Any = SimpleNamespace(adapter_chain=())
    training_args: Any = SimpleNamespace()
    fit_to_tokenizer(model, tokenizer, model_args, adapter_args, training_args)
    return model


def test_ids_without_a_row_are_refused(tmp_path: Path) -> None:
    fit(tmp_path, {"a": 0, "z": 9})
    with pytest.raises(ArgumentError, match=r"ids up to 10 \(2 tokens\), the model has 10 embeddings"):
        fit(tmp_path, {"a": 0, "z": 10})


def test_rows_that_no_token_has_are_not_drawn(tmp_path: Path) -> None:
    """Behind the last token, and holes; the model's biases would have each answer be of these alone."""
    model = fit(tmp_path, {"a": 0, "b": 1, "c": 3, "d": 6})
    model.lm_head.bias = torch.nn.Parameter(torch.tensor([0.0, 0, 9, 0, 9, 9, 0, 9, 9, 9]))
    for config in (None, GenerationConfig(do_sample=True, top_k=0, eos_token_id=99)):  # TRL gives one of its own
        found = model.generate(torch.tensor([[0, 1]]), max_new_tokens=20, generation_config=config)
        assert found.shape[1] == 22 and set(found[0].tolist()) <= {0, 1, 3, 6}
    assert fit(tmp_path, {str(n): n for n in range(10)}).generation_config.suppress_tokens is None


def test_new_tokens_of_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({"vocabulary": {"new_tokens": [[3, 5]]}}))
    assert fit(tmp_path, {"a": 0}).trained_token_ids == [3, 4, 5]
