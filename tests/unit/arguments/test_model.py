"""When the embeddings may get other rows than the checkpoint has."""

from __future__ import annotations

import pytest

from hftune.arguments.model import ModelArguments


@pytest.mark.parametrize(
    ("given", "adds", "grows"),
    [
        ({}, False, False),
        ({"add_tokens": "<a>,<b>"}, True, True),
        ({"add_special_tokens": "<a>"}, True, True),
        ({"add_tokens": ""}, False, False),
        ({"resize_vocab": True}, False, True),
        ({"pad_vocab_to_multiple_of": 64}, False, True),
    ],
)
def test_growth(given: dict[str, object], adds: bool, grows: bool) -> None:
    args = ModelArguments(**given)  # type: ignore[arg-type] # values by name
    assert (args.adds_tokens, args.grows) == (adds, grows)
