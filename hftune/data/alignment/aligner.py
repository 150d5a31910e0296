"""Rows of a student next to what a teacher with another tokenizer reads in their place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from hftune.data.alignment.groups import aligned_groups
from hftune.data.alignment.token_bytes import END, end_of_answer, joined, token_bytes
from hftune.data.alignment.vocabularies import shared_vocabulary
from hftune.data.templates.spans import Span, SpannedText

NO_PLACE = -1
"""At a token of the student at which no group begins."""


class Aligner:
    """Knows what the tokens of student and teacher write.

    Raises:
        ArgumentError: As `token_bytes`.
    """

    def __init__(self, student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
        self.student, self.teacher = student, teacher
        self.written = token_bytes(student, "--model_name_or_path")
        self.others = token_bytes(teacher, "--teacher_model_name_or_path")
        self.shared = shared_vocabulary(student, teacher, self.written, self.others)
        self.ends = end_of_answer(student), end_of_answer(teacher)
        self._texts = self._spelled(student, self.ends[0]), self._spelled(teacher, self.ends[1])

    @staticmethod
    def _spelled(tokenizer: PreTrainedTokenizerBase, token: int | None) -> str:
        return "" if token is None else str(tokenizer.convert_ids_to_tokens(token))

    def places(
        self, ids: np.ndarray, owner: np.ndarray, teacher_ids: np.ndarray, teacher_owner: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Where the groups of a row begin, and what of the teacher's row is needed for them.

        Args:
            ids: The student's tokens.
            owner: The span that each belongs to, -1 for none.
            teacher_ids: The teacher's.
            teacher_owner: The spans of these, by the same numbers.

        Returns:
            For each student token the place of the teacher's token at which its group begins, `NO_PLACE` where none
            begins, int32; the teacher's tokens as far as they are asked for; and how many of them stand before the last
            span that the student's row holds.
        """
        places = np.full(len(ids), NO_PLACE, dtype=np.int32)
        prompt = 1
        for span in range(int(owner.max(initial=-1)) + 1):
            own, theirs = np.flatnonzero(owner == span), np.flatnonzero(teacher_owner == span)
            if not len(own) or not len(theirs):
                continue
            prompt = max(prompt, int(theirs[0]))
            written, others = [self.written[i] for i in ids[own]], [self.others[i] for i in teacher_ids[theirs]]
            for group in aligned_groups(written, others):
                # Nothing before its first token could tell what a teacher says there.
                if theirs[group.other_first]:
                    places[own[group.first]] = theirs[group.other_first]
        return places, teacher_ids[: max(prompt, int(places.max(initial=0)) + 1)], prompt

    def answer(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """An answer that the student drew, as tokens of the teacher.

        Returns:
            The teacher's tokens, and for each student token the place among them at which its group begins.
        """
        ended = bool(ids) and ids[-1] == self.ends[0]
        # What a token has begun and none has ended is no text; nothing is aligned there.
        text = joined(self.written, ids[: len(ids) - ended]).replace(END, b"").decode("utf-8", "replace")
        found = self.teacher(text, add_special_tokens=False)["input_ids"]
        found += [self.ends[1]] if ended and self.ends[1] is not None else []
        places = [NO_PLACE] * len(ids)
        for group in aligned_groups([self.written[i] for i in ids], [self.others[i] for i in found]):
            places[group.first] = group.other_first
        return found, places

    def respelled(self, one: SpannedText) -> SpannedText:
        """A student's text for a teacher without a template for it: answers end with its own token."""
        ending, other = self._texts
        text, spans, done = "", list[Span](), 0
        for span in one.spans:
            said = str(one.text[span.start : span.end])
            if ending and other and ending in said:
                head, _, tail = said.rpartition(ending)
                said = head + other + tail
            text += one.text[done : span.start]
            spans.append(Span(len(text), len(text) + len(said), span.weight))
            text, done = text + said, span.end
        return SpannedText(text + one.text[done:], spans)
