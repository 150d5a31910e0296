"""A teacher with another tokenizer: its rows next to the student's, in batches, in the loss and on-policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from hftune.arguments.training import StageArguments
from hftune.data.alignment.aligner import NO_PLACE, Aligner
from hftune.data.alignment.vocabularies import SharedVocabulary
from hftune.models.kernels.aligned_targets import AlignedTargets, Pairing
from hftune.models.kernels.lessons import Lesson, TeacherStates
from hftune.trainers.distillation.on_policy import OnPolicyAnswers, Record, prompt_of, records_of
from hftune.trainers.distillation.taught_loss import TaughtLoss
from hftune.trainers.distillation.teachers import Teachers
from hftune.trainers.features.answer_loss import next_tokens, next_values
from hftune.trainers.features.run import Inputs, Run

COLUMNS = ("teacher_input_ids", "teacher_at", "teacher_prompt")
_OF_TEACHER = (*COLUMNS, "teacher_attention_mask")


class AlignedCollator:
    """Another collator's batches, with the teacher's rows.

    Adds teacher_input_ids and teacher_attention_mask (examples, the longest of the teacher's rows), teacher_prompt
    (examples,), and teacher_at, of the shape of labels: places in the flattened teacher_input_ids, or -1.
    """

    def __init__(self, plain: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> None:
        self.plain = plain

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Examples with the columns of `TaughtChatEncoder`."""
        batch = self.plain(features)
        read = [torch.as_tensor(feature["teacher_input_ids"]).long() for feature in features]
        lengths = torch.tensor([len(one) for one in read])
        width = int(lengths.max())
        places = torch.full_like(batch["labels"], NO_PLACE)
        flat = len(places) == 1
        start = 0
        for row, feature in enumerate(features):
            own = torch.as_tensor(feature["teacher_at"]).long()
            own = torch.where(own == NO_PLACE, own, own + row * width)
            places[0 if flat else row, start : start + len(own)] = own
            start += len(own) if flat else 0
        return batch | {
            "teacher_input_ids": torch.nn.utils.rnn.pad_sequence(read, batch_first=True),
            "teacher_attention_mask": (torch.arange(width)[None] < lengths[:, None]).long(),
            "teacher_at": places,
            "teacher_prompt": torch.tensor([int(feature["teacher_prompt"]) for feature in features]),
        }


class AlignedLoss(TaughtLoss):
    """The loss where groups of both tokenisations begin; its mean is over all labels, as without a teacher's."""

    def __init__(
        self,
        teachers: Teachers,
        args: StageArguments,
        shared: SharedVocabulary,
        drawn: OnPolicyAnswers | None = None,
    ) -> None:
        super().__init__(teachers, args, drawn)
        weights = args.shared_token_weight, args.split_token_weight
        self.pairing = Pairing(
            torch.from_numpy(shared.student_ids),
            torch.from_numpy(shared.teacher_ids),
            shared.others,
            shared.sizes,
            (
                shared.share if weights[0] is None else weights[0],
                1 - shared.share if weights[1] is None else weights[1],
            ),
        )
        self._same = torch.full((shared.sizes[0],), -1).scatter(0, self.pairing.student_ids, self.pairing.teacher_ids)
        self._read: Inputs = {}

    def on_built(self, run: Run) -> None:
        """As before, and the vocabularies are put where the model is."""
        super().on_built(run)
        self.pairing, self._same = self.pairing.to(run.args.device), self._same.to(run.args.device)

    def make_loss(self, run: Run, model: Any, inputs: Inputs, counted: Any) -> tuple[torch.Tensor, Any] | None:
        """As before; what the teacher reads does not go to the student."""
        self._read = inputs
        return super().make_loss(
            run, model, {name: one for name, one in inputs.items() if name not in _OF_TEACHER}, counted
        )

    def more(self, run: Run, inputs: Inputs, at: torch.Tensor) -> dict[str, Any]:
        """Overrides `TaughtLoss.more`: what the teacher says in its own row, where a group begins."""
        labels = next_tokens(self._read).reshape(-1)[at]
        places = next_values(self._read, "teacher_at", NO_PLACE).reshape(-1)[at]
        begins = places != NO_PLACE
        ids = self._read["teacher_input_ids"]
        row = {"input_ids": ids, "attention_mask": self._read["teacher_attention_mask"]}
        states = self.teachers.targets(run, row, places[begins] - 1)
        assert isinstance(states, TeacherStates), "of one teacher"
        group = torch.where(begins, begins.cumsum(0) - 1, -1)
        alike = self._same[labels[begins]] == ids.reshape(-1)[places[begins]]
        return {"answer_teacher": Lesson(AlignedTargets(states, group, alike, self.pairing), self.minimised(run))}


class AlignedAnswers(OnPolicyAnswers):
    """The student's own answers, which the teacher reads behind its own prompt.

    Args:
        aligner: Knows both tokenizers.
    """

    def __init__(self, share: float, aligner: Aligner) -> None:
        super().__init__(share)
        self.aligner = aligner

    def records_of(self, batch: Inputs) -> list[Record]:
        """With the teacher's prompt of each."""
        prompts = zip(batch["teacher_input_ids"].tolist(), batch["teacher_prompt"].tolist(), strict=True)
        return [
            record | {"teacher_input_ids": ids[:length]}
            for record, (ids, length) in zip(records_of(batch), prompts, strict=True)
        ]

    def renewed(self, record: Record, answers: Iterator[list[int]]) -> Any:
        """With the teacher's tokens of the answer, and where groups begin."""
        found, read = super().renewed(record, answers), record["teacher_input_ids"]
        prompt = prompt_of(record)
        start = len(found["input_ids"]) if prompt is None else len(prompt)
        ids, places = self.aligner.answer(found["input_ids"][start:])
        after = [NO_PLACE if place == NO_PLACE else place + len(read) for place in places]
        return found | {
            "teacher_input_ids": [*read, *ids],
            "teacher_at": [NO_PLACE] * start + after,
            "teacher_prompt": len(read),
        }
