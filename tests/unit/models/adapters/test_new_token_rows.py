"""Which rows of which tables are trained for new tokens."""

from __future__ import annotations

import pytest
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from hftune.errors import ArgumentError
from hftune.models.adapters.new_token_rows import new_rows_config, new_rows_with_lora
from hftune.models.vocabulary import Growth


def model(*, tied: bool = False, new: tuple[int, ...] = (8, 9)) -> LlamaForCausalLM:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 10}
    made = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, tie_word_embeddings=tied, **sizes))
    made.vocabulary_growth = Growth(8, 10, ids=list(new))
    made.trained_token_ids = list(new)
    return made


def test_rows_of_both_tables_or_of_the_one_that_is_both() -> None:
    both = {"embed_tokens": [1, 8, 9], "lm_head": [1, 8, 9]}
    assert new_rows_with_lora(model(), [], [1, 8]) == both
    assert new_rows_with_lora(model(tied=True), [], None) == {"embed_tokens": [8, 9]}
    assert new_rows_with_lora(model(new=()), [], [3]) == [3], "nothing grew: what was asked for"


def test_tables_that_are_trained_whole() -> None:
    assert new_rows_with_lora(model(), ["embed_tokens", "lm_head"], None) is None
    assert new_rows_with_lora(model(tied=True), ["embed_tokens"], [2]) == [2]
    with pytest.raises(ArgumentError, match="only embed_tokens would be trained"):
        new_rows_with_lora(model(), ["embed_tokens"], None)


def test_a_head_with_a_bias_is_refused() -> None:
    biased = model()
    biased.lm_head = nn.Linear(8, 10)
    with pytest.raises(ArgumentError, match="the head has a bias"):
        new_rows_with_lora(biased, [], None)


def test_rows_alone() -> None:
    config = new_rows_config(model())
    assert config.trainable_token_indices == {"embed_tokens": [8, 9], "lm_head": [8, 9]}
    assert config.modules_to_save is None and config.task_type == "CAUSAL_LM"
    with pytest.raises(ArgumentError, match="no token is new"):
        new_rows_config(model(new=()))
