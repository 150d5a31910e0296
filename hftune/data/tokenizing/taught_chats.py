"""Conversations for a student whose teacher has another tokenizer: next to its tokens what the teacher reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from hftune.data.alignment.aligner import Aligner
from hftune.data.readers.files import Row
from hftune.data.records.conversations import to_conversation
from hftune.data.templates.rewritten import KEEP
from hftune.data.templates.span_finder import SpanFinder
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.tokenizing.chats import ChatEncoder
from hftune.data.tokenizing.encoder import IDS
from hftune.data.tokenizing.labels import span_of_tokens
from hftune.data.tokenizing.prefixes import PrefixEncoder
from hftune.errors import DataError
from hftune.models.tokenizer_fingerprint import fingerprint_of
from hftune.template_arguments import template_arguments_of

TEACHER_COLUMNS = ("teacher_input_ids", "teacher_at", "teacher_prompt")


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
        # Whole texts have no answers whose places could be compared; the teacher reads what the student reads.
        self.teacher_finder = (
            SpanFinder(
                teacher,
                last_turn_only=finder.last_turn_only,
                by_marks=finder.by_marks,
                borders_in_text=finder.guard.mode,
                empty_thoughts=finder.empty_thoughts,
                rewritten=KEEP,  # one text that holds all answers, in whatever rows the student's are
            )
            if teacher.chat_template and not finder.train_everything
            else None
        )
        self.teacher_encodings = PrefixEncoder(teacher, None)
        names: dict[str, pa.DataType] = {"teacher_input_ids": IDS, "teacher_at": IDS, "teacher_prompt": pa.int32()}
        for name, kind in names.items():
            self.schema = self.schema.append(pa.field(name, kind))
