"""Rows that may be longer than what a model was made for are said, once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.logging import notices
from hftune.preflight.rules.model import say_context


@pytest.mark.parametrize(
    ("limits", "context", "said"),
    [
        (
            {"max_length": 1_000_000},
            512,
            "rows of up to 1000000 tokens are let through, and the model was made for 512",
        ),
        ({"block_size": 513}, 512, "rows of up to 513 tokens"),
        ({"max_prompt_length": 500, "max_completion_length": 13}, 512, "rows of up to 513 tokens"),
        ({"block_size": 512}, 512, ""),
        ({"max_length": None}, 512, ""),
        ({"max_length": 9}, None, ""),  # as of recurrent models
        ({"max_length": 9}, -1, ""),
    ],
)
def test_longer_rows_than_the_model_was_made_for(limits: dict[str, Any], context: Any, said: str) -> None:
    text = SimpleNamespace(max_position_embeddings=context)
    config: Any = SimpleNamespace(get_text_config=lambda: text)
    limited: Any = SimpleNamespace(**limits)
    say_context(config, limited)
    assert len(notices()) == bool(said) and said in "".join(notices())
