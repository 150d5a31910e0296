"""What teachers say of the tokens of a micro batch: models next to the student, a server, or what is stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel
from trl.models import prepare_deepspeed

from hftune.constants import TEACHER_ROWS
from hftune.data.teacher_targets import StoredTargets
from hftune.models.kernels.divergences import TopTargets
from hftune.models.kernels.heads import TeacherStates, add_answer_head
from hftune.trainers.distillation.on_policy import spans_of
from hftune.trainers.distillation.teacher_server import TeacherServer
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run
from hftune.trainers.features.token_loss import OF_LABELS, next_values


class LoadedTeacher(Feature):
    """A frozen model next to the student: on its device, partitioned by ZeRO-3 where the student is.

    Args:
        model: In evaluation mode.
        vocabulary: Rows of its head that tokens have.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: int) -> None:
        self.model: Any = model
        self.vocabulary = vocabulary

    def on_built(self, run: Run) -> None:
        """Place it where and as this run computes."""
        add_answer_head(self.model)
        if run.is_deepspeed_enabled:
            self.model = prepare_deepspeed(self.model, run.accelerator)
        else:
            self.model = run.accelerator.prepare_model(self.model, evaluation_mode=True)

    def targets(self, run: Run, inputs: Inputs, at: torch.Tensor) -> TeacherStates:
        """As `said`, of the batch of the student, computed as the student is."""
        with run.accelerator.autocast():
            return self.said({name: value for name, value in inputs.items() if name not in OF_LABELS}, at)

    @torch.no_grad()
    def said(self, inputs: Inputs, at: torch.Tensor) -> TeacherStates:
        """What is said of the tokens whose predictions are at places `at` (tokens,) of the flattened batch."""
        return replace(self.model(**inputs, answer_at=at, answer_states=True), vocabulary=self.vocabulary)


class StoredTeacher(Feature):
    """Targets of a folder, read as each batch wants them; of the size of a batch, whatever the folder's size."""

    def __init__(self, folder: str) -> None:
        self.stored = StoredTargets(folder)

    def targets(self, run: Run, inputs: Inputs, at: torch.Tensor) -> TopTargets:
        """What was said of the tokens whose predictions are at places `at` (tokens,) of the flattened batch.

        Args:
            inputs: With teacher_rows, the places of the targets of each token.
        """
        rows = next_values(inputs, TEACHER_ROWS, -1).reshape(-1)[at]
        ids, log_probs = self.stored.take(rows)
        return TopTargets(ids.to(at.device), log_probs.to(at.device), self.stored.about["vocabulary"])


class ServerTeacher(Feature):
    """Asks for the targets of each batch; each process for those of its own documents, all of them side by side."""

    def __init__(self, server: TeacherServer) -> None:
        self.server = server

    def targets(self, run: Run, inputs: Inputs, at: torch.Tensor) -> TopTargets:
        """As `said`."""
        return self.said(inputs, at)

    def said(self, inputs: Inputs, at: torch.Tensor) -> TopTargets:
        """What is said of the tokens whose predictions are at places `at` (tokens,) of the flattened batch, ascending.

        Raises:
            ArgumentError: The server is away, or its answer cannot be used.
        """
        flat, length = inputs["input_ids"].reshape(-1).cpu(), inputs["input_ids"].shape[1]
        places, starts = at.cpu(), torch.tensor([row * length + span.start for row, span in spans_of(inputs)])
        # Of each document with labels the text up to the last of them; a label is never the first token of one.
        of = torch.searchsorted(starts, places, right=True) - 1
        documents, counts = torch.unique_consecutive(of, return_counts=True)
        ends = counts.cumsum(0) - 1
        firsts, lasts = starts[documents].tolist(), places[ends].tolist()
        texts = [flat[first : last + 2].tolist() for first, last in zip(firsts, lasts, strict=True)]
        parts = list(zip(texts, places.split(counts.tolist()), firsts, strict=True))
        ids = torch.full((len(places), self.server.k), -1)
        log_probs = torch.zeros(len(places), self.server.k)
        begin = 0
        for said, (_, wanted, first) in zip(self.server.said(texts), parts, strict=True):
            rows = slice(begin, begin + len(wanted))
            # At its place in a text the token after it is predicted, of which the table has one row less.
            ids[rows], log_probs[rows] = (torch.from_numpy(one)[wanted - first] for one in said)
            begin = rows.stop
        return TopTargets(ids.to(at.device), log_probs.to(at.device))
