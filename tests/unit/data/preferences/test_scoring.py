"""Records of any format as the texts that a reward model scores."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.encode_rewards import ScoringEncoder
from hftune.errors import DataError
from tests.unit.data.helpers import (
    make_tokenizer,
    row,
)
from tests.unit.data.templates.test_turn_token_guard import CHAT, MODES, PREFERENCE, STEPWISE


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [CHAT, PREFERENCE, STEPWISE], ids=["chat", "pair", "steps"])
def test_scored_conversations(value: dict[str, Any], mode: str, steps: bool) -> None:
    tokenizer = make_tokenizer()
    make = ScoringEncoder(tokenizer, steps=steps, borders_in_text=mode)
    if mode == "error":
        with pytest.raises(DataError) as caught:
            make(row(5, **value))
        assert caught.value.place == "data.jsonl:5"
        return
    for one in make(row(5, **value)):
        number = one.ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>"))
        assert (number == 2) is (mode == "split")
        assert {*one.turn_tokens} == {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}
