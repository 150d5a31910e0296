"""The first tokens of a text without the rest: always those of the whole text, whatever the tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hftune.data.tokenizing.labels import labels_by_ranges, token_span
from hftune.data.tokenizing.prefixes import PrefixEncoder
from tests.unit.data.helpers import CORPUS, SPECIAL, make_tokenizer


def sentencepiece_like(*, words: bool) -> PreTrainedTokenizerFast:
    """BPE over the whole text at once, as Llama 2 has it, or over words that Metaspace cuts."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    if words:
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", *SPECIAL], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>", unk_token="<unk>")


TOKENIZERS = {
    "bytes": make_tokenizer(),
    "bytes, trimmed": make_tokenizer(trim_offsets=True),
    "words": sentencepiece_like(words=True),
    "one word": sentencepiece_like(words=False),
}
PIECES = ["hello world", " ", "\n", "  \n\n", "!", "!<|", "<|im_end|>", "<|im_start|>", "you", "天气", "🙂"]
PIECES += ["1234567", "'s", "<"]
TEXTS = st.lists(st.sampled_from(PIECES), min_size=0, max_size=60).map("".join)


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


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS.filter(bool), data=st.data())
def test_tokens_of_a_span(name: str, text: str, data: st.DataObject) -> None:
    """The quick way gives what looking at every token gives, or says that it cannot."""
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    encoding = TOKENIZERS[name].backend_tokenizer.encode(text, add_special_tokens=False)
    found = token_span(encoding, start, end, len(text))
    expected = np.array(labels_by_ranges(encoding, [(start, end)])) != -100
    if found is not None:
        mask = np.zeros(len(encoding), dtype=bool)
        mask[slice(*found)] = True
        assert mask.tolist() == expected.tolist()
    elif name == "bytes":
        raise AssertionError("a tokenizer with exact ranges always knows")


def test_spans_behind_the_cut() -> None:
    encoding = TOKENIZERS["bytes"].backend_tokenizer.encode("you you you", add_special_tokens=False)
    assert token_span(encoding, 11, 20, 11) == (len(encoding), len(encoding))
    assert token_span(encoding, 4, 40, 11) == (1, 3)
