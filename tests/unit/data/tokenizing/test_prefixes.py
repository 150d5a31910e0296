"""The first tokens of a text without the rest: always those of the whole text, whatever the tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.tokenizing.prefixes import PrefixEncoder
from tests.unit.data.tokenizing.tokenizers import TEXTS, TOKENIZERS


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), length=st.integers(1, 40))
def test_first_tokens_are_those_of_the_whole_text(name: str, texts: list[str], length: int) -> None:
    tokenizer = TOKENIZERS[name]
    encoder = PrefixEncoder(tokenizer, length)
    for text, (encoding, covered) in zip(texts, encoder(texts), strict=True):
        whole = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        assert encoding.ids[:length] == whole.ids[:length]
        assert covered == len(text) or len(encoding) > length


def test_long_texts_are_not_read_to_their_end() -> None:
    encoder = PrefixEncoder(TOKENIZERS["bytes"], 64)
    texts = ["hello world, how are you? " * 4000, "天气很好。" * 4000] * 8
    encoder(texts)
    assert all(covered < 600 for _, covered in encoder(texts))
