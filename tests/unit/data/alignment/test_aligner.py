"""A student's answers as tokens of the teacher."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hftune.data.alignment.aligner import NO_PLACE, Aligner
from hftune.data.templates.spans import Span, SpannedText
from tests.unit.data.templates.turn_token_families import family_tokenizer

STUDENT, TEACHER = family_tokenizer("chatml", "bytes"), family_tokenizer("mistral", "pieces")
ALIGNER = Aligner(STUDENT, TEACHER)


def test_an_answer_by_hand() -> None:
    ids = STUDENT("hello user", add_special_tokens=False)["input_ids"] + [ALIGNER.ends[0]]
    read, places = ALIGNER.answer(ids)
    assert TEACHER.convert_ids_to_tokens(read) == ["▁hello", "▁user", "</s>"]
    # "hello", then " user" in two tokens, and the end.
    assert STUDENT.convert_ids_to_tokens(ids) == ["hello", "Ġ", "user", "<|im_end|>"]
    assert places == [0, 1, NO_PLACE, 2]


def test_an_answer_that_has_not_ended_ends_nowhere() -> None:
    read, _ = ALIGNER.answer(STUDENT("hello", add_special_tokens=False)["input_ids"])
    assert TEACHER.convert_ids_to_tokens(read) == ["▁hello"]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), st.integers(1, 60))
def test_groups_begin_where_texts_are_the_same(text: str, kept: int) -> None:
    # Cut anywhere, also within a character.
    ids = STUDENT(text, add_special_tokens=False)["input_ids"][:kept]
    read, places = ALIGNER.answer(ids)
    if "\ufffd" in STUDENT.decode(ids):
        # A part of a character is read as another one, whose bytes may be the same by chance.
        return
    before = [(at, place) for at, place in enumerate(places) if place != NO_PLACE]
    for at, place in before:
        own = b"".join(ALIGNER.written[i] for i in ids[:at])
        theirs = b"".join(ALIGNER.others[i] for i in read[:place])
        assert theirs in (own, b" " + own) or own.lstrip(b" ") == theirs.lstrip(b" ")


def test_the_student_s_text_ends_answers_with_the_teacher_s_token() -> None:
    one = SpannedText("Q<|im_end|>A<|im_end|>\nQ<|im_end|>B<|im_end|>", [Span(11, 22), Span(34, 45)])
    found = ALIGNER.respelled(one)
    assert found.text == "Q<|im_end|>A</s>\nQ<|im_end|>B</s>"
    assert [found.text[span.start : span.end] for span in found.spans] == ["A</s>", "B</s>"]
