"""Conversations for a student whose teacher has another tokenizer: next to its tokens what the teacher reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from transformers import PreTrainedTokenizerBase

from hftune.data.alignment.aligner import Aligner
from hftune.data.readers.files import Row
from hftune.data.records.conversations import to_conversation
from hftune.data.storage.cache import tokenizer_state
from hftune.data.templates.span_finder import SpanFinder
from hftune.data.templates.spans import SpannedText
from hftune.data.tokenizing.chats import ChatEncoder
from hftune.data.tokenizing.encoder import IDS
from hftune.data.tokenizing.labels import span_of_tokens
from hftune.data.tokenizing.prefixes import PrefixEncoder
from hftune.errors import DataError


@dataclass(frozen=True, slots=True)
class TaughtText(SpannedText):
    """A text of the student, and what the teacher reads in its place: a text with the same spans, in the same order."""

    teacher: SpannedText


class TaughtChatEncoder(ChatEncoder):
    """As `ChatEncoder`, with what a teacher with another tokenizer reads in the place of each row.

    The teacher reads the same messages in its own chat template. Where it has none, cannot write a record with it, or
    does not write as many answers, it reads the student's text.

    Further columns: teacher_input_ids, as many as are asked for; teacher_at, for each token of the row the place in
    these at which its aligned group begins (`hftune.data.alignment.groups`), or -1; teacher_prompt, how many of them
    stand before the last answer. All int32.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.teacher, self.aligner = teacher, Aligner(tokenizer, teacher)
        finder = self.finder
        # Whole texts have no answers whose places could be compared; the teacher reads what the student reads. Else it
        # reads one text that holds all answers, in whatever rows the student's are: a finder keeps rewritten turns.
        self.teacher_finder = (
            SpanFinder(
                teacher,
                last_turn_only=finder.last_turn_only,
                by_marks=finder.by_marks,
                borders_in_text=finder.guard.mode,
                empty_thoughts=finder.empty_thoughts,
            )
            if teacher.chat_template and not finder.train_everything
            else None
        )
        self.teacher_encodings = PrefixEncoder(teacher, None)
        for name in ("teacher_input_ids", "teacher_at"):
            self.schema = self.schema.append(pa.field(name, IDS))
        self.schema = self.schema.append(pa.field("teacher_prompt", pa.int32()))

    def settings(self) -> dict[str, Any]:
        """For the fingerprint, with the teacher's tokenizer."""
        state = json.dumps(tokenizer_state(self.teacher), sort_keys=True)
        return super().settings() | {"teacher": xxhash.xxh3_128(state.encode()).hexdigest()}

    def parse(self, row: Row) -> list[SpannedText]:
        """As `ChatEncoder.parse`; each text with what the teacher reads."""
        found = super().parse(row)
        whole = self._read_by_teacher(row, sum(len(one.spans) for one in found))
        taught: list[SpannedText] = []
        done = 0
        for one in found:
            # All rows of a conversation have one text of the teacher, and each of them its own answers in it.
            own = self.aligner.respelled(one) if whole is None else whole
            spans = own.spans if whole is None else own.spans[done : done + len(one.spans)]
            taught.append(TaughtText(one.text, one.spans, SpannedText(own.text, spans)))
            done += len(one.spans)
        return taught

    def _read_by_teacher(self, row: Row, answers: int) -> SpannedText | None:
        """The record in the teacher's own template; None where that does not write as many answers."""
        if self.teacher_finder is None:
            return None
        conversation = to_conversation(row)
        try:
            (found,) = self.teacher_finder.rows(
                conversation.messages, conversation.tools, conversation.template_arguments
            )
        except DataError:  # a role or an order that its template refuses
            return None
        return found if len(found.spans) == answers else None

    def more(self, one: SpannedText, ids: np.ndarray, owner: np.ndarray) -> dict[str, Any]:
        """The columns of the teacher."""
        assert isinstance(one, TaughtText)
        ((encoding, covered),) = self.teacher_encodings([one.teacher.text])
        theirs = np.array(encoding.ids, dtype=np.int32)
        spans = span_of_tokens(encoding, one.teacher.spans, covered)
        places, read, prompt = self.aligner.places(ids, owner, theirs, spans)
        return {"teacher_input_ids": read, "teacher_at": places, "teacher_prompt": prompt}
