"""Batches with a teacher's rows, and own answers that a teacher reads."""

from __future__ import annotations

from hftune.constants import IGNORE_INDEX
from hftune.data.alignment.aligner import Aligner
from hftune.data.batches.collators import causal_collator
from hftune.trainers.distillation.aligned import AlignedAnswers, AlignedCollator
from tests.unit.data.templates.turn_token_families import family_tokenizer

EXAMPLES = [
    {"input_ids": [1, 2, 3], "labels": [IGNORE_INDEX, 2, 3], "teacher_input_ids": [5, 6, 7], "teacher_at": [-1, 2, -1]},
    {"input_ids": [4, 5], "labels": [IGNORE_INDEX, 5], "teacher_input_ids": [8, 9], "teacher_at": [-1, 1]},
]


def _examples() -> list[dict]:
    return [one | {"teacher_prompt": at + 1} for at, one in enumerate(EXAMPLES)]


def test_places_count_through_the_batch() -> None:
    for flat in (True, False):
        batch = AlignedCollator(causal_collator(0, flat=flat))(_examples())
        assert batch["teacher_input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]
        assert batch["teacher_attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
        # The second row of the teacher begins at place 3 of the flattened batch.
        assert batch["teacher_at"].tolist() == ([[-1, 2, -1, -1, 4]] if flat else [[-1, 2, -1], [-1, 4, -1]])
        assert batch["teacher_prompt"].tolist() == [1, 2]


def test_the_teacher_reads_the_students_answer_behind_its_own_prompt() -> None:
    student, teacher = family_tokenizer("chatml", "bytes"), family_tokenizer("mistral", "pieces")
    answers = AlignedAnswers(1.0, Aligner(student, teacher))
    batch = AlignedCollator(causal_collator(0, flat=True))(_examples())
    (record, other) = answers.records_of(batch)
    assert record["teacher_input_ids"] == [5] and other["teacher_input_ids"] == [8, 9]
    said = student("hello user", add_special_tokens=False)["input_ids"]
    found = answers.renewed(record, iter([said]))
    assert found["input_ids"] == [1, *said] and found["labels"] == [IGNORE_INDEX, *said]
    read = teacher.convert_tokens_to_ids(["▁hello", "▁user"])
    assert found["teacher_input_ids"] == [5, *read] and found["teacher_at"] == [-1, 1, 2, -1]
    untrained = record | {"labels": [IGNORE_INDEX] * 3}
    kept = answers.renewed(untrained, iter([]))
    assert kept["teacher_at"] == [-1, -1, -1] and kept["teacher_input_ids"] == [5]
