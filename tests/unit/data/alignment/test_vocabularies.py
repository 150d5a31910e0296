"""What two vocabularies share, and when they are one."""

from __future__ import annotations

import copy

from hftune.data.alignment.aligner import Aligner
from hftune.data.alignment.vocabularies import same_tokenizer
from tests.conftest import tiny_tokenizer
from tests.unit.data.templates.turn_token_families import family_tokenizer

BYTES, PIECES = family_tokenizer("chatml", "bytes"), family_tokenizer("mistral", "pieces")


def test_tokens_are_matched_by_what_they_write() -> None:
    aligner = Aligner(BYTES, PIECES)
    shared = aligner.shared
    pairs = dict(zip(shared.student_ids.tolist(), shared.teacher_ids.tolist(), strict=True))
    assert all(aligner.written[own] == aligner.others[other] for own, other in pairs.items())

    def of(piece: str, other: str) -> bool:
        return pairs.get(BYTES.convert_tokens_to_ids(piece)) == PIECES.convert_tokens_to_ids(other)

    assert of("Ġ", "▁") and of("a", "a") and of("<think>", "<think>") and of("<|im_end|>", "</s>")
    assert shared.others and shared.sizes == (len(aligner.written), len(aligner.others))


def test_of_one_vocabulary_all_is_shared() -> None:
    shared = Aligner(BYTES, copy.deepcopy(BYTES)).shared
    assert shared.student_ids.tolist() == shared.teacher_ids.tolist() == list(range(len(BYTES)))
    assert not shared.others and shared.share == 1.0


def test_further_tokens_at_the_end_are_no_other_tokenizer() -> None:
    plain, longer = tiny_tokenizer(), tiny_tokenizer()
    longer.add_special_tokens({"additional_special_tokens": ["<tool>"]})
    assert same_tokenizer(plain, longer) and same_tokenizer(longer, plain)


def test_other_ids_and_other_words_are_another() -> None:
    assert not same_tokenizer(BYTES, PIECES)
    one, other = tiny_tokenizer(), tiny_tokenizer()
    one.add_tokens(["<a>"])
    other.add_tokens(["<b>"])
    assert not same_tokenizer(one, other)
    # The same ids, but a text becomes others.
    worded = tiny_tokenizer()
    worded.add_tokens(["world"])
    assert not same_tokenizer(tiny_tokenizer(), worded)
