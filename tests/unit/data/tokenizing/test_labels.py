"""Labels: the quick way to a span's tokens is the definition, whatever the tokenizer; weights and cuts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.mask import in_span, span_of_tokens, token_range, tokens_of, widened
from hftune.data.turns import Span
from tests.unit.data.helpers import make_tokenizer
from tests.unit.data.tokenizing.tokenizers import TEXTS, TOKENIZERS

BYTES = TOKENIZERS["bytes"].backend_tokenizer


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS.filter(bool), data=st.data())
def test_the_quick_way_is_the_definition(name: str, text: str, data: st.DataObject) -> None:
    """It gives what looking at every token gives, or says that it cannot."""
    start = data.draw(st.integers(0, len(text) - 1))
    span = Span(start, data.draw(st.integers(start + 1, len(text))))
    encoding = TOKENIZERS[name].backend_tokenizer.encode(text, add_special_tokens=False)
    found, expected = token_range(encoding, span, len(text)), in_span(encoding.offsets, span)
    if found is not None:
        mask = np.zeros(len(encoding), dtype=bool)
        mask[slice(*found)] = True
        assert mask.tolist() == expected.tolist()
    elif name == "bytes":
        raise AssertionError("a tokenizer with exact ranges always knows")
    if expected.any():
        inside = np.flatnonzero(expected)
        assert tokens_of(encoding, span, len(text)) == (inside[0], inside[-1] + 1)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(text=TEXTS.filter(bool), data=st.data())
def test_each_token_belongs_to_the_span_that_it_shares_a_character_with(
    name: str, text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = [Span(start, end) for start, end in zip(cuts[::2], cuts[1::2], strict=False)]
    encoding = TOKENIZERS[name].backend_tokenizer.encode(text, add_special_tokens=False)
    expected = np.full(len(encoding), -1)
    for index, span in enumerate(spans):
        expected[in_span(encoding.offsets, span)] = index
    assert span_of_tokens(encoding, spans, len(text)).tolist() == expected.tolist()


def test_by_hand() -> None:
    offsets = [(0, 0), (0, 3), (3, 5), (5, 5), (5, 8), (8, 9), (9, 12)]
    # A token that reaches into a span is trained; one of zero width inside a span is not.
    found = [in_span(offsets, span) for span in (Span(4, 7), Span(9, 10))]
    assert (found[0] | found[1]).tolist() == [False, False, True, False, True, False, True]
    assert in_span([], Span(0, 1)).tolist() == []


def test_spans_behind_the_cut() -> None:
    encoding = BYTES.encode("you you you", add_special_tokens=False)
    assert token_range(encoding, Span(11, 20), 11) == (len(encoding), len(encoding))
    assert token_range(encoding, Span(4, 40), 11) == (1, 3)
    assert span_of_tokens(encoding, [Span(0, 3), Span(8, 11), Span(11, 20)], 11).tolist() == [0, -1, 1]


def test_all_bytes_of_a_character_are_trained() -> None:
    encoding = BYTES.encode("a🙂b", add_special_tokens=False)
    assert span_of_tokens(encoding, [Span(1, 2)], 3).tolist() == [-1, 0, 0, 0, 0, -1]
    assert tokens_of(encoding, Span(1, 2), 3) == (1, 5)


def test_a_token_in_two_spans_belongs_to_the_later() -> None:
    encoding = BYTES.encode("you", add_special_tokens=False)
    assert len(encoding) == 1 and span_of_tokens(encoding, [Span(0, 1), Span(2, 3)], 3).tolist() == [1]


def test_only_ranges_of_no_width_are_widened() -> None:
    """Up to where the ones before reach; a gap before a token with a range of its own is nobody's."""
    assert widened([(0, 3), (5, 8)]) == [(0, 3), (5, 8)]
    assert widened([(1, 1), (1, 3)]) == [(0, 1), (1, 3)], "in front of the first word"
    assert widened([(0, 3), (5, 5), (5, 8)]) == [(0, 3), (3, 5), (5, 8)]
    assert widened([(0, 4), (1, 2), (3, 3), (6, 6)]) == [(0, 4), (1, 2), (3, 3), (4, 6)]


def test_white_space_gets_its_range_back() -> None:
    trimmed, exact = make_tokenizer(trim_offsets=True), make_tokenizer()
    text = "<|im_end|>\n\nyou  \n x 🙂"
    for tokenizer in (trimmed, exact):
        offsets = widened(tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"])
        assert all(end > start for start, end in offsets)
    assert tuple(offsets[1]) == (10, 11)
