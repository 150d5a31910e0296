"""Ids and labels without character ranges are those by ranges, for every way in which tokenizers cut words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hftune.data.tokenizing.bytewise import ByteTokenizer, is_bytewise
from hftune.data.tokenizing.labels import mask_labels
from hftune.data.tokenizing.words import has_borders, nearest_border
from tests.unit.data.helpers import CORPUS, SPECIAL, make_tokenizer

pytestmark = pytest.mark.long

# As they stand in the tokenizer.json of these models.
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
QWEN = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{REST}"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{REST}"
)
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + REST
)


def bytes_of(*steps: Any, normalizer: Any = None, added: list[AddedToken] | None = None) -> PreTrainedTokenizerFast:
    """Byte-level BPE that cuts words by these steps."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    if normalizer is not None:
        backend.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([*CORPUS, "don't, hello. 天气很好。 world's\n\n 12345"] * 3, trainer)
    backend.add_tokens(added or [])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")


def split(pattern: str) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


PLAIN = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
TOKENIZERS = {
    "gpt2": make_tokenizer(),
    "trimmed": make_tokenizer(trim_offsets=True),
    "digits": bytes_of(pre_tokenizers.Digits(True), GPT2),
    "qwen2": bytes_of(split(QWEN), PLAIN, normalizer=normalizers.NFC()),
    "qwen3.5": bytes_of(split(QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+")), PLAIN),
    "llama3": bytes_of(split(QWEN.replace(r"\p{N}| ", r"\p{N}{1,3}| ")), PLAIN),
    "o200k": bytes_of(split(O200K), PLAIN),
    "deepseek": bytes_of(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), PLAIN),
}
OTHERS = {
    "a space in front": bytes_of(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "words of several": bytes_of(split(r"\p{L}+ \p{L}+|\s+"), PLAIN),
    "no letters cut": bytes_of(split(r"\p{N}{1,3}"), PLAIN),
    "no bytes": bytes_of(split(QWEN)),
    "lower case": bytes_of(GPT2, normalizer=normalizers.Lowercase()),
    "a token with a border": bytes_of(GPT2, added=[AddedToken("hello, you")]),
    "a token that takes spaces": bytes_of(GPT2, added=[AddedToken("<mask>", lstrip=True)]),
    "other pieces": bytes_of(pre_tokenizers.Punctuation(), GPT2),
}
PIECES = [
    "hello world",
    "don't",
    " ",
    "\n",
    "  \n\n",
    "!",
    "a,b",
    ". ",
    "<|im_end|>",
    "<|im_start|>",
    "天气",
    "很好。",
    "，你",
]
PIECES += ["🙂", "1234567", "<", "e\u0301", "é", "x" * 40, "/\n", "Ab", "ß;"]
TEXT = st.lists(st.sampled_from(PIECES), min_size=1, max_size=60).map("".join)


class Cutter:
    """A pre-tokenizer in Python."""

    def pre_tokenize(self, text: Any) -> None:
        """Leave it whole."""


def test_which_are_bytewise() -> None:
    assert [name for name, tokenizer in TOKENIZERS.items() if not is_bytewise(tokenizer)] == []
    assert [name for name, tokenizer in OTHERS.items() if is_bytewise(tokenizer)] == []
    written = make_tokenizer()
    for cutter in (pre_tokenizers.PreTokenizer.custom(Cutter()), None):
        written.backend_tokenizer.pre_tokenizer = cutter
        assert not is_bytewise(written)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(text=TEXT, goal=st.integers(1, 200))
def test_both_sides_of_a_border_are_words_of_their_own(name: str, text: str, goal: int) -> None:
    tokenizer = TOKENIZERS[name]
    border = nearest_border(text, goal, 0)
    if border is None or not has_borders(tokenizer):
        return
    ids = [tokenizer.backend_tokenizer.encode(part).ids for part in (text, text[:border], text[border:])]
    assert ids[0] == ids[1] + ids[2]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(texts=st.lists(TEXT, min_size=1, max_size=4), length=st.none() | st.integers(2, 60), data=st.data())
def test_same_as_by_ranges(name: str, texts: list[str], length: int | None, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    bounds = [data.draw(st.lists(st.integers(0, len(text)), max_size=6, unique=True).map(sorted)) for text in texts]
    spans = [list(zip(cuts[::2], cuts[1::2], strict=False)) for cuts in bounds]
    weights = [[0.5 + number for number in range(len(ranges))] for ranges in spans]
    found = ByteTokenizer(tokenizer, length)(texts, spans, weights)
    for text, ranges, tokens in zip(texts, spans, found, strict=True):
        if tokens is None:
            # Only what the normalizer changes, or what has no border, goes the other way.
            assert "e\u0301" in text or nearest_border(text, 10**6, 0) is None or length is not None
            continue
        whole = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        assert tokens.ids.tolist() == whole.ids[:length]
        assert tokens.cut == (len(whole.ids) > len(tokens.ids))
        # Ranges by an untrimmed post-processor, so that white space has its characters.
        exact = _untrimmed(tokenizer).encode(text, add_special_tokens=False)
        assert tokens.labels.tolist() == mask_labels(exact.ids, exact.offsets, ranges)[:length]
        assert tokens.trained == np.count_nonzero(tokens.labels[1:] != -100)
        assert tokens.weights is not None
        assert ((tokens.weights > 0) == (tokens.labels != -100)).all()


def _untrimmed(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    from tokenizers import processors

    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend


def test_labels_by_hand() -> None:
    tokenizer = TOKENIZERS["gpt2"]
    text = "you 🙂<|im_end|>天气"
    start, end = text.index("🙂"), text.index("天")
    (tokens,) = ByteTokenizer(tokenizer, None)([text], [[(start, end)]])
    assert tokens is not None
    trained = [token for token in tokens.labels.tolist() if token != -100]
    # Four bytes of the smile, the first joined to the space before it or not, and the terminator.
    assert tokenizer.decode(trained).strip() == "🙂<|im_end|>"
    assert tokens.trained == len(trained)


def test_a_text_whose_bytes_do_not_add_up_goes_the_other_way() -> None:
    tokenizer = TOKENIZERS["qwen2"]
    found = ByteTokenizer(tokenizer, None)(["é fine.", "e\u0301 is written anew.", "fine, too"], [[(0, 3)]] * 3)
    assert [tokens is None for tokens in found] == [False, True, False]
    # Their neighbours' labels are not touched.
    expected = [ByteTokenizer(tokenizer, None)([text], [[(0, 3)]])[0] for text in ("é fine.", "fine, too")]
    for got, alone in zip((found[0], found[2]), expected, strict=True):
        assert got is not None and alone is not None
        assert got.labels.tolist() == alone.labels.tolist()


def test_long_texts_are_not_read_to_their_end() -> None:
    reader = ByteTokenizer(TOKENIZERS["gpt2"], 64).read
    texts = ["hello world, how are you? " * 4000, "天气很好。" * 4000] * 8
    reader(texts)
    assert all(prefix is not None and prefix.covered < 600 for prefix in reader(texts))


def test_without_a_border_near_the_text_goes_the_other_way() -> None:
    reader = ByteTokenizer(TOKENIZERS["gpt2"], 64).read
    assert reader(["0" * 5000, "hello you " * 500])[0] is None
