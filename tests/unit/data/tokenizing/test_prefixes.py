"""The first tokens of a text without the rest: always those of the whole text, whatever the tokenizer."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from hftune.data.encode import PrefixEncoder
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


@pytest.mark.parametrize("length", [None, 3])
def test_a_tokenizer_that_begins_texts_by_itself_begins_none_here(length: int | None) -> None:
    """A template has written the special tokens of a text."""
    tokenizer = copy.deepcopy(TOKENIZERS["bytes"])
    backend = tokenizer.backend_tokenizer
    first = backend.id_to_token(0)
    backend.post_processor = TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 0)])
    assert backend.encode("ab").ids[0] == 0 and len(backend.encode("ab")) == 3
    ((found, covered),) = PrefixEncoder(tokenizer, length)(["ab"])
    assert (found.ids, covered) == (backend.encode("ab", add_special_tokens=False).ids, 2)


def test_long_texts_are_not_read_to_their_end() -> None:
    encoder = PrefixEncoder(TOKENIZERS["bytes"], 64)
    texts = ["hello world, how are you? " * 4000, "天气很好。" * 4000] * 8
    encoder(texts)
    assert all(covered < 600 for _, covered in encoder(texts))


def characters_read(monkeypatch: pytest.MonkeyPatch, texts: list[str], rounds: int) -> float:
    """Characters that the tokenizer is given for the first 128 tokens of texts, over those that hold these tokens."""
    tokenizer, length = TOKENIZERS["bytes"], 128
    encoder, read = PrefixEncoder(tokenizer, length), []
    encode = encoder._encode
    monkeypatch.setattr(encoder, "_encode", lambda given: read.extend(map(len, given)) or encode(given))
    for _ in range(rounds):
        encoder(texts)
    whole = [tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).offsets for text in texts]
    return sum(read) / sum(offsets[length - 1][1] for offsets in whole) / rounds


def test_little_more_is_read_than_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = [
        ("hello world, " * english + "鬱，鬱，鬱，" * chinese) * 100 for english in range(4) for chinese in range(4)
    ]
    # The tokenizer's time is what preprocessing takes: with one density for each script 1.8 times as much were read.
    assert characters_read(monkeypatch, mixed[1:], rounds=20) < 1.3


@pytest.mark.parametrize("said", ["hello world, ", "鬱，"])
def test_the_first_texts_are_not_read_by_a_guess(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    assert characters_read(monkeypatch, [said * 1000] * 16, rounds=1) < 1.6


def test_guesses_by_hand() -> None:
    """Sixteenths of a byte a character tell kinds of text; each has its density, of which a tenth is new each time."""
    encoder = PrefixEncoder(TOKENIZERS["bytes"], 4)
    assert [encoder._kind(text) for text in ("abcd", "鬱鬱鬱鬱", "ab鬱鬱", "abcd鬱鬱", "")] == [16, 48, 32, 16, 0]
    assert encoder._kind("a") == encoder._kind("a\ud800") == 16, "of a single character; half a pair is one, too"
    encoder._learn("abcd", 2.0)
    encoder._learn("abcd", 4.0)
    encoder._learn("鬱鬱鬱鬱", 0.5)
    assert encoder.density == pytest.approx({16: 2.2, 48: 0.5})
    assert [encoder._expected(text) for text in ("xyz", "鬱鬱鬱鬱", "abc鬱", "a鬱鬱鬱")] == pytest.approx(
        [2.2, 0.5, 2.2, 0.5]
    )
    # A tenth more than 4 tokens of 2.2 characters, and 16: 25; never beyond the end; short texts whole.
    assert [encoder._reach("x" * length) for length in (3, 4, 5, 24, 25, 26, 99)] == [3, 4, 5, 24, 25, 25, 25]
    # Two tokens a character: a text of 40 is read whole, as most have fewer.
    encoder = PrefixEncoder(TOKENIZERS["bytes"], 40)
    encoder._learn("鬱", 0.5)
    assert [encoder._reach("鬱" * length) for length in (39, 40, 41, 99)] == [39, 40, 38, 38]


def test_the_first_guess_is_what_a_beginning_has() -> None:
    encoder = PrefixEncoder(TOKENIZERS["bytes"], 8)
    text = "hello world, how are you?"
    (head,) = encoder._encode([text[:8]])
    assert encoder._expected(text) == 8 / len(head) and encoder.density == {16: 8 / len(head)}
    # Also where it is a single token.
    short = PrefixEncoder(TOKENIZERS["bytes"], 4)
    assert short._expected("user user") == 4.0 and short.density == {16: 4.0}


def test_what_is_read_is_learnt_from() -> None:
    for text, density in (("you", {16: 3.0}), ("you you you", {16: 11 / 3}), ("", {0: 0.0})):
        encoder = PrefixEncoder(TOKENIZERS["bytes"], 40)
        encoder([text])
        assert encoder.density == pytest.approx(density)


def test_what_was_too_short_is_read_again_a_quarter_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, ends = PrefixEncoder(TOKENIZERS["bytes"], 4), []
    monkeypatch.setattr(encoder, "_reach", lambda text: 8)
    monkeypatch.setattr(encoder, "_is_final", lambda found, prefix: ends.append(len(prefix)) or False)
    ((_, covered),) = encoder(["x" * 20])
    assert ends == [8, 11, 14, 18] and covered == 20


def test_what_a_cut_may_have_divided() -> None:
    """Two words are left between what is kept and the cut; near a letter that opens an added token, its length more."""
    encoder = PrefixEncoder(TOKENIZERS["bytes"], 2)
    added = TOKENIZERS["bytes"].get_added_vocab()
    assert encoder.longest == max(map(len, added)) and encoder.openings == {token[0] for token in added} == {"<"}
    text = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    final = [end for end in range(len(text)) if encoder._is_final(encoder._encode([text[:end]])[0], text[:end])]
    assert final == list(range(final[0], len(text))) and final[0] == 7
    opened = "a b c d e f <"
    assert not encoder._is_final(encoder._encode([opened])[0], opened)
    assert encoder._is_final(encoder._encode([opened.replace("<", ">")])[0], opened.replace("<", ">"))
