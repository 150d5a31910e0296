"""Fixtures of the data room."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from tests.unit.data.helpers import make_tokenizer


@pytest.fixture(scope="session")
def chatml() -> PreTrainedTokenizerFast:
    """The tokenizer with the plain ChatML template."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def samples() -> Path:
    """Sample data of other projects, which lies beside the repository on some machines only."""
    folder = Path(__file__).parents[4] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no sample data beside the repository")
    return folder
