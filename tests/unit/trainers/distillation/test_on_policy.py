"""Which tokens are the prompt, what takes the place of an answer, and which steps draw answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.constants import IGNORE_INDEX, ORIGIN
from hftune.data.collators import causal_collator
from hftune.logging import notices
from hftune.trainers.distillation.on_policy import PATIENCE, OnPolicyAnswers, prompt_of, records_of
from tests.unit.trainers.features import made_up

NO = IGNORE_INDEX
RECORDS = [
    {"input_ids": [1, 2, 3, 4, 5, 6], "labels": [NO, 2, NO, NO, 5, 6]},
    {"input_ids": [7, 8, 9], "labels": [NO, NO, NO]},
    {"input_ids": [10, 11, 12, 13], "labels": [NO, NO, 12, NO]},
]


@pytest.mark.parametrize(
    ("labels", "prompt"),
    [
        ([NO, 1, 1], [0]),
        ([NO, 1, NO, NO, 4], [0, 1, 2, 3]),
        ([NO, NO, 2, NO], [0, 1]),
        ([NO, NO, NO], None),
        ([1, 1, 1], None),
        ([], None),
    ],
)
def test_the_prompt_ends_where_the_last_trained_answer_begins(labels: list[int], prompt: list[int] | None) -> None:
    assert prompt_of({"input_ids": list(range(len(labels))), "labels": labels}) == prompt


@pytest.mark.parametrize("flat", [True, False])
def test_records_come_back_from_a_batch(flat: bool) -> None:
    assert records_of(causal_collator(0, flat=flat)(RECORDS)) == RECORDS


class Student:
    """Answers with what it is told, and remembers what it was asked."""

    def __init__(self, answers: list[list[int]]) -> None:
        self.answers, self.asked, self.modes = answers, [], []

    def run(self, *, flat: bool = False, share_ended: bool = True, **given: Any) -> Any:
        model = torch.nn.Linear(1, 1)
        found = made_up.run(model=model, data_collator=causal_collator(0, flat=flat), **given)
        found.accelerator.unwrap_model = lambda model, **kwargs: model
        found.accelerator.gather = lambda tensor: tensor
        found._metrics = {"train": {name: [] for name in NAMES}}
        found._logs, found.max_completion_length = {}, 8
        found.eos_token_ids = [99]
        found.processing_class = SimpleNamespace(pad_token_id=0, decode=lambda ids: " ".join(map(str, ids)))

        def generate(prompts: list[list[int]], images: Any, fields: Any) -> list[list[int]]:
            self.asked.append(prompts)
            self.modes.append(model.training)
            return self.answers[: len(prompts)]

        found._generate_single_turn = generate
        found.is_world_process_zero = lambda: True
        return found


NAMES = ("completions/mean_length", "completions/clipped_ratio")


@pytest.mark.parametrize("flat", [True, False])
def test_answers_take_the_place_of_the_last_ones(flat: bool) -> None:
    student = Student([[20, 99], [21, 22, 23]])
    run = student.run(flat=flat, args={"gradient_accumulation_steps": 2})
    step = [run.data_collator(RECORDS[:2]) | {ORIGIN: "here"}, run.data_collator(RECORDS[2:])]
    answers = OnPolicyAnswers(1.0)
    assert not answers.drawing
    first, second = answers.batches(run, iter(step))
    assert answers.drawing
    assert student.asked == [[[1, 2, 3, 4], [10, 11]]] and student.modes == [False] and run.model.training
    assert records_of(first) == [
        {"input_ids": [1, 2, 3, 4, 20, 99], "labels": [NO] * 4 + [20, 99]},
        RECORDS[1],
    ]
    assert records_of(second) == [{"input_ids": [10, 11, 21, 22, 23], "labels": [NO, NO, 21, 22, 23]}]
    assert first[ORIGIN] == "here" and ORIGIN not in second
    metrics = run._metrics["train"]
    assert metrics["completions/mean_length"] == [2.5] and metrics["completions/clipped_ratio"] == [0.5]
    assert run._logs["prompt"] == ["1 2 3 4", "10 11"] and run._logs["completion"] == ["20 99", "21 22 23"]


def test_a_process_without_answers_takes_part_and_no_step_is_answered_twice() -> None:
    student = Student([[20, 99]] * 2)
    run = student.run()
    (batch,) = OnPolicyAnswers(1.0).batches(run, iter([run.data_collator(RECORDS[1:2])]))
    assert student.asked.pop() == [[7]] and records_of(batch) == RECORDS[1:2]
    run = student.run(args={"gradient_accumulation_steps": 2})
    rest = iter([run.data_collator(RECORDS[:1]) for _ in range(3)])
    answers = OnPolicyAnswers(1.0)
    assert [len(list(answers.batches(run, rest))) for _ in range(3)] == [2, 1, 0] and len(student.asked) == 2


def test_the_share_of_steps_depends_on_seed_and_step_alone() -> None:
    def drawn(seed: int, share: float) -> list[bool]:
        found = []
        for step in range(400):
            run = made_up.run(args={"seed": seed})
            run.state.global_step = step
            found.append(OnPolicyAnswers(share).draws(run))
        return found

    assert drawn(1, 0.25) == drawn(1, 0.25) != drawn(2, 0.25)
    assert 0.15 < sum(drawn(1, 0.25)) / 400 < 0.35
    assert all(drawn(1, 1.0)) and not any(drawn(1, 0.0))


def test_a_step_that_draws_nothing_trains_the_records() -> None:
    student = Student([])
    run = student.run()
    batch = run.data_collator(RECORDS[:1])
    answers = OnPolicyAnswers(0.0)
    assert list(answers.batches(run, iter([batch]))) == [batch] and not student.asked and not answers.drawing


def test_answers_without_an_end_are_said_once_they_last() -> None:
    student = Student([[5] * 20])
    run = student.run()
    answers = OnPolicyAnswers(1.0)
    for _ in range(PATIENCE - 1):
        list(answers.batches(run, iter([run.data_collator(RECORDS[:1])])))
    assert not notices()
    list(answers.batches(run, iter([run.data_collator(RECORDS[:1])])))
    assert any("--max_completion_length 8" in one for one in notices())
