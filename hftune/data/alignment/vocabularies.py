"""What two vocabularies have in common, and whether they are one and the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from hftune.data.alignment.token_bytes import SAMPLES


@dataclass(frozen=True)
class SharedVocabulary:
    """Tokens of two vocabularies that write the same bytes.

    Args:
        student_ids: Of the tokens that both have, int64 (shared,).
        teacher_ids: The same tokens there.
        others: Whether both have further tokens of text, which only the other lacks. Special tokens do not count: what
            a teacher says of its other words must not become a student's mark of padding.
        sizes: Ids of the student and of the teacher; what a padded head has beyond them is no token.
    """

    student_ids: np.ndarray
    teacher_ids: np.ndarray
    others: bool
    sizes: tuple[int, int]

    @property
    def share(self) -> float:
        """Of the teacher's tokens, those that the student has: 0 to 1."""
        return len(self.teacher_ids) / self.sizes[1]


def shared_vocabulary(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, written: list[bytes], others: list[bytes]
) -> SharedVocabulary:
    """The tokens that both have, matched by the bytes they write; those that end an answer match each other.

    Args:
        written: `token_bytes` of the student.
        others: Those of the teacher.
    """
    own, theirs = _first_of(written), _first_of(others)
    pairs = np.array([(index, theirs[text]) for text, index in own.items() if text in theirs], dtype=np.int64)
    pairs = pairs.reshape(-1, 2)
    lacking = own.keys() - theirs.keys(), theirs.keys() - own.keys()
    special = _special(student), _special(teacher)
    free = [
        any(ids[text] not in marks for text in left)
        for ids, left, marks in zip((own, theirs), lacking, special, strict=True)
    ]
    return SharedVocabulary(pairs[:, 0], pairs[:, 1], all(free), (len(written), len(others)))


def _first_of(written: list[bytes]) -> dict[bytes, int]:
    """The token of each text. A SentencePiece vocabulary has characters twice: as a piece, and before it as a byte."""
    return {text: index for index, text in enumerate(written) if text}  # so the last one is kept


def _special(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return {index for index, token in added.items() if token.special}


def same_tokenizer(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether ids mean the same in both, so that a teacher can read what a student reads.

    Every id that both have is the same token, and texts become the same ids: a vocabulary that is padded, or has further
    tokens at its end, is no other one.
    """
    vocabularies = one.get_vocab(), other.get_vocab()
    if vocabularies[0] != vocabularies[1]:
        pieces = [{index: piece for piece, index in each.items()} for each in vocabularies]
        if any(pieces[0][index] != pieces[1][index] for index in pieces[0].keys() & pieces[1].keys()):
            return False
        # A piece that both have stands at one place; so neither vocabulary is a part of the other's middle.
        if any(
            vocabularies[0][piece] != vocabularies[1][piece]
            for piece in vocabularies[0].keys() & vocabularies[1].keys()
        ):
            return False
    return all(
        one(sample, add_special_tokens=False)["input_ids"] == other(sample, add_special_tokens=False)["input_ids"]
        for sample in (*SAMPLES, *(f" {sample.lower()}" for sample in SAMPLES), "Cafe\u0301 \u2126 ﬁ  \r\n")
    )
