"""Rows of embeddings and heads."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from transformers import MllamaForCausalLM

from hftune.models.vocabulary import predicted_rows, vocabulary_rows
from tests.table.tiny import VOCABULARY, model_class, tiny_config


def test_embeddings_with_rows_that_the_head_lacks() -> None:
    with torch.device("meta"):
        mllama = MllamaForCausalLM(tiny_config("mllama").get_text_config())
        llama = model_class("llama")(tiny_config("llama"))
    assert (vocabulary_rows(mllama), predicted_rows(mllama)) == (VOCABULARY + 8, VOCABULARY)
    assert vocabulary_rows(llama) == predicted_rows(llama) == VOCABULARY


def test_the_wrapper_of_trained_rows_is_not_asked_for_a_weight() -> None:
    """It would compute one, from rows that ZeRO-3 may have partitioned."""
    model = model_class("llama")(tiny_config("llama"))
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"], trainable_token_indices={"lm_head": [3]}))
    adapted.get_output_embeddings().token_adapter.get_merged_weights = None
    assert predicted_rows(adapted) == vocabulary_rows(adapted) == VOCABULARY
