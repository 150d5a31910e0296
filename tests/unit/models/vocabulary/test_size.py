"""Rows of embeddings and heads."""

from __future__ import annotations

import torch
from transformers import MllamaForCausalLM

from hftune.models.vocabulary.size import predicted_rows, vocabulary_rows
from tests.table.tiny import VOCABULARY, model_class, tiny_config


def test_embeddings_with_rows_that_the_head_lacks() -> None:
    with torch.device("meta"):
        mllama = MllamaForCausalLM(tiny_config("mllama").get_text_config())
        llama = model_class("llama")(tiny_config("llama"))
    assert (vocabulary_rows(mllama), predicted_rows(mllama)) == (VOCABULARY + 8, VOCABULARY)
    assert vocabulary_rows(llama) == predicted_rows(llama) == VOCABULARY
