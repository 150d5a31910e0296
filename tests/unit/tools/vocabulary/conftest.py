"""Small tokenizers of every kind that can grow, and a corpus that they have not seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hftune.tools.vocabulary.train import from_sentencepiece, read_sentencepiece, train_sentencepiece

ENGLISH = [
    "The patient was given aspirin and rested for two days. It's 12345 km to the sea, he said.",
    "She asked the doctor whether the medicine would help against the fever, and it did.",
    "  def f(x):\n\treturn x + 1  # two blanks\n\n",
    "An early diagnosis helps. An early treatment helps. The early treatment of the fever helps the patient.",
]
CHINESE = [
    "患者出现发热和咳嗽，医生建议休息两天，并多喝水。",
    "早期诊断有助于治疗，早期治疗有助于康复。",
    "医生说：患者需要休息，需要早期诊断和治疗。",
    "治疗期间患者需要多喝水，注意休息；发热时应及时就医。",
] * 3
KINDS = ("byte_bpe", "byte_bpe_beside", "bpe", "unigram")


def byte_bpe(*, beside: bool) -> PreTrainedTokenizerFast:
    """GPT-2's kind; `beside`: special tokens have ids behind the vocabulary, and whole words win, as Llama 3's do."""
    backend = Tokenizer(models.BPE(ignore_merges=beside))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    # Some bytes are lacking, as in SmolLM2's tokenizer: 0xF1 of UTF-8 and a control byte.
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"ñ", "Ą"})
    special = [] if beside else ["<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(ENGLISH, trainer)
    if beside:
        backend.add_special_tokens(["<|end|>", "<|tool|>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", pad_token="<|end|>")


@pytest.fixture(scope="session")
def tokenizers(workspace: Path) -> dict[str, PreTrainedTokenizerFast]:
    made = {"byte_bpe": byte_bpe(beside=False), "byte_bpe_beside": byte_bpe(beside=True)}
    for kind in ("bpe", "unigram"):
        file = workspace / f"{kind}.model"
        train_sentencepiece(ENGLISH * 3, 320, [], kind, file)
        made[kind] = from_sentencepiece(read_sentencepiece(file))
    return made
