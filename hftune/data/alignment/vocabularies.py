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
    free = _has_others(own, theirs, student) and _has_others(theirs, own, teacher)
    return SharedVocabulary(pairs[:, 0], pairs[:, 1], free, (len(written), len(others)))


def _first_of(written: list[bytes]) -> dict[bytes, int]:
    """The token of each text. A SentencePiece vocabulary has characters twice: as a piece, and before it as a byte."""
    return {text: index for index, text in enumerate(written) if text}  # so the last one is kept


def _has_others(own: dict[bytes, int], theirs: dict[bytes, int], tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a vocabulary has tokens of text that the other lacks."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return any(own[text] not in added or not added[own[text]].special for text in own.keys() - theirs.keys())


def same_tokenizer(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether ids mean the same in both, so that a teacher can read what a student reads.

    Every id that both have is the same token, and texts become the same ids: a vocabulary that is padded, or has
    further tokens at its end, is no other one.
    """
    own, theirs = one.get_vocab(), other.get_vocab()
    if own != theirs:
        pieces = {index: piece for piece, index in own.items()}
        if any(pieces.get(index, piece) != piece or own.get(piece, index) != index for piece, index in theirs.items()):
            return False
    return all(
        one(sample, add_special_tokens=False)["input_ids"] == other(sample, add_special_tokens=False)["input_ids"]
        for sample in (*SAMPLES, *(f" {sample.lower()}" for sample in SAMPLES), "Cafe\u0301 \u2126 ﬁ  \r\n")
    )
