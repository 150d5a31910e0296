"""Tokenizers that cut words and report character ranges in different ways, and texts that try them."""

from __future__ import annotations

from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

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
