"""Fixtures of the data room."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from tests.unit.data.helpers import make_tokenizer


@pytest.fixture(scope="session")
def chatml() -> PreTrainedTokenizerFast:
    """The tokenizer with the plain ChatML template."""
    return make_tokenizer()
