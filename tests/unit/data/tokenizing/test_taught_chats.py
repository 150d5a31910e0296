"""Rows of a student with what a teacher with another tokenizer and template reads in their place."""

from __future__ import annotations

import copy
from typing import Any

from hftune.constants import IGNORE_INDEX
from hftune.data.readers.files import Row
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.tokenizing.counts import Counts
from hftune.data.tokenizing.taught_chats import TaughtChatEncoder
from hftune.errors import DataError
from tests.unit.data.helpers import template
from tests.unit.data.templates.turn_token_families import family_tokenizer

STUDENT, TEACHER = family_tokenizer("chatml", "bytes"), family_tokenizer("mistral", "pieces")


def _rows(encoder: TaughtChatEncoder, *turns: str) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    said = [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]
    parsed = encoder.parse(Row({"messages": said}, "data.jsonl", 1))
    columns = encoder.encode([parsed], Counts())
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _pairs(row: dict[str, Any], teacher: Any = TEACHER) -> list[tuple[str, str]]:
    """The tokens at which groups begin, the student's and the teacher's."""
    tokens = STUDENT.convert_ids_to_tokens(list(row["input_ids"]))
    others = teacher.convert_ids_to_tokens(list(row["teacher_input_ids"]))
    return [(tokens[at], others[place]) for at, place in enumerate(row["teacher_at"]) if place >= 0]


def test_the_teacher_reads_its_own_template() -> None:
    (row,) = _rows(TaughtChatEncoder(STUDENT, TEACHER, max_length=None), "hello", "hello user", "er", "he")
    first = _pairs(row)[:3]
    assert first == [("hello", "▁hello"), ("Ġ", "▁user"), ("<|im_end|>", "</s>")]
    assert _pairs(row)[-1] == ("<|im_end|>", "</s>")
    # Groups begin at trained tokens alone, and the teacher's row holds its own marks of turns.
    assert all(label != IGNORE_INDEX for label, at in zip(row["labels"], row["teacher_at"], strict=True) if at >= 0)
    said = TEACHER.convert_ids_to_tokens(list(row["teacher_input_ids"]))
    assert said.count("[INST]") == 2 and "<|im_start|>" not in said
    assert said[row["teacher_prompt"] - 1] == "[/INST]"


def test_without_a_template_it_reads_the_students_text() -> None:
    teacher = copy.deepcopy(TEACHER)
    teacher.chat_template = None
    (row,) = _rows(TaughtChatEncoder(STUDENT, teacher, max_length=None), "hello", "hello user")
    said = TEACHER.convert_tokens_to_string(TEACHER.convert_ids_to_tokens(list(row["teacher_input_ids"])))
    assert "<|im_start|>" in said and _pairs(row)[-1] == ("<|im_end|>", "</s>")


def test_a_cut_row_needs_less_of_the_teacher() -> None:
    (row,) = _rows(TaughtChatEncoder(STUDENT, TEACHER, max_length=None), "hello", "hello user hello user")
    cut = TaughtChatEncoder(STUDENT, TEACHER, max_length=len(row["input_ids"]) - 4)
    (short,) = _rows(cut, "hello", "hello user hello user")
    assert len(short["teacher_at"]) == len(short["input_ids"]) == len(row["input_ids"]) - 4
    assert list(short["teacher_at"]) == list(row["teacher_at"][: len(short["teacher_at"])])
    assert len(short["teacher_input_ids"]) == max(short["teacher_at"]) + 1


def test_the_teacher_is_part_of_the_fingerprint() -> None:
    made = [TaughtChatEncoder(STUDENT, one, max_length=8).settings() for one in (TEACHER, family_tokenizer("llama3"))]
    assert made[0] != made[1]


def test_whole_texts_are_read_as_the_student_reads_them() -> None:
    """They have no answers whose places could be compared."""
    encoder = TaughtChatEncoder(STUDENT, TEACHER, max_length=None, train_on_inputs=True)
    (row,) = _rows(encoder, "hello", "hello user")
    said = TEACHER.convert_tokens_to_string(TEACHER.convert_ids_to_tokens(list(row["teacher_input_ids"])))
    assert "<|im_start|>" in said and "[INST]" not in said


def test_the_teacher_is_asked_as_the_student_is() -> None:
    options = {"last_turn_only": True, "by_marks": False, "borders_in_text": "allow", "empty_thoughts": "train"}
    encoder = TaughtChatEncoder(STUDENT, TEACHER, max_length=None, **options)
    finder = encoder.teacher_finder
    assert finder is not None
    asked = (finder.last_turn_only, finder.by_marks, finder.guard.mode, finder.empty_thoughts, finder.rewritten)
    assert asked == (True, False, "allow", "train", "keep")
    assert encoder.schema.names[-3:] == ["teacher_input_ids", "teacher_at", "teacher_prompt"]


THOUGHTS = ("hello", "<think>\nhe\n</think>\n\nuser", "er", "<think>\nhe\n</think>\n\nhello")


def thinking() -> Any:
    """A student whose template drops the thoughts of earlier turns: each answer is a row of its own."""
    student = copy.deepcopy(STUDENT)
    student.chat_template = template("qwen3")
    return student


def test_each_row_of_a_conversation_has_its_own_answers_in_the_teachers_text() -> None:
    """A template that writes the last answer in another way gives the student a row for each; the teacher one text."""
    rows = _rows(TaughtChatEncoder(thinking(), TEACHER, max_length=None), *THOUGHTS)
    assert len(rows) == 2
    said = [TEACHER.convert_ids_to_tokens(list(row["teacher_input_ids"])) for row in rows]
    assert said[1][: len(said[0])] == said[0] and len(said[1]) > len(said[0])
    places = [[int(at) for at in row["teacher_at"] if at >= 0] for row in rows]
    assert places[0][-1] == len(said[0]) - 1 and said[0][places[0][-2]] == "u"
    assert places[1][0] >= len(said[0]) and said[1][places[1][-2]] == "h"


def test_without_a_template_each_row_is_respelled() -> None:
    teacher = copy.deepcopy(TEACHER)
    teacher.chat_template = None
    rows = _rows(TaughtChatEncoder(thinking(), teacher, max_length=None), *THOUGHTS)
    ends = [[int(at) for at in row["teacher_at"] if at >= 0] for row in rows]
    assert [one[-1] + 1 for one in ends] == [len(row["teacher_input_ids"]) for row in rows], "each in its own text"


def test_the_order_of_a_tokenizers_keys_is_no_other_tokenizer(monkeypatch: Any) -> None:
    made = []
    for state in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):
        monkeypatch.setattr("hftune.data.tokenizing.taught_chats.tokenizer_state", lambda _, state=state: state)
        made.append(TaughtChatEncoder(STUDENT, TEACHER, max_length=8).settings()["teacher"])
    assert made[0] == made[1]


def test_what_the_teachers_template_refuses_is_read_in_the_students_text(monkeypatch: Any) -> None:
    def refuse(*given: Any) -> Any:
        raise DataError("roles must alternate")

    encoder = TaughtChatEncoder(STUDENT, TEACHER, max_length=None)
    # Nor with an answer less, or one more: whose places are whose?
    two = [Span(0, 1), Span(1, 2)]
    for rows in (refuse, lambda *_: [SpannedText("ab", [])], lambda *_: [SpannedText("ab", two)]):
        monkeypatch.setattr(encoder.teacher_finder, "rows", rows)
        (row,) = _rows(encoder, "hello", "hello user")
        said = TEACHER.convert_tokens_to_string(TEACHER.convert_ids_to_tokens(list(row["teacher_input_ids"])))
        assert "<|im_start|>" in said and "[INST]" not in said


def test_the_teacher_is_told_what_the_record_brings(monkeypatch: Any) -> None:
    """Its tools, and its arguments for the template."""
    student = copy.deepcopy(STUDENT)
    student.chat_template += "{% if now %}{% endif %}"
    encoder, given = TaughtChatEncoder(student, TEACHER, max_length=None), []
    monkeypatch.setattr(encoder.teacher_finder, "rows", lambda *said: given.append(said) or [SpannedText("", [])])
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    tools, arguments = [{"type": "function", "function": {"name": "get"}}], {"now": "today"}
    encoder.parse(Row({"messages": said, "tools": tools, "chat_template_kwargs": arguments}, "data.jsonl", 1))
    assert given == [(said, tools, arguments)]


def test_of_three_rows_the_last_has_the_third_answer(monkeypatch: Any) -> None:
    encoder = TaughtChatEncoder(STUDENT, TEACHER, max_length=None)
    monkeypatch.setattr(encoder.finder, "rows", lambda *_: [SpannedText("a", [Span(0, 1)]) for _ in range(3)])
    spans = [Span(at, at + 1) for at in range(3)]
    monkeypatch.setattr(encoder.teacher_finder, "rows", lambda *_: [SpannedText("xyz", spans)])
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    parsed = encoder.parse(Row({"messages": said}, "data.jsonl", 1))
    assert [one.teacher.spans for one in parsed] == [[span] for span in spans]
