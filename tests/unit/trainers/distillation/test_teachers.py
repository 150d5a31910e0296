"""Targets of a batch: from a server, which is asked about each document as far as it is trained, and stored ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hftune.data.collators import CausalCollator, FlatCollator
from hftune.trainers.distillation.teachers import ServerTeacher, StoredTeacher
from hftune.trainers.features.token_loss import next_tokens
from tests.unit.data.target_files import VOCABULARY, conversations, said_at, write
from tests.unit.trainers.features import made_up

RECORDS: list[dict[str, Any]] = [
    {"input_ids": [1, 2, 3, 4, 5], "labels": [-100, -100, 3, -100, -100]},
    {"input_ids": [6, 7], "labels": [-100, -100]},
    {"input_ids": [8, 9, 10], "labels": [-100, 9, 10]},
]


class Server:
    """Says of each place the token itself with log-probability -1, and 1000 with -3."""

    k = 2

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def said(self, texts: list[list[int]]) -> Iterator[Any]:
        self.asked += texts
        for ids in texts:
            found = np.array([[one, 1000] for one in ids[1:]])
            yield found, np.array([[-1.0, -3.0]] * len(found), dtype=np.float32)


@pytest.mark.parametrize("collator", [CausalCollator(0), FlatCollator()])
def test_documents_are_asked_about_up_to_their_last_label(collator: Any) -> None:
    server: Any = Server()
    teacher, batch = ServerTeacher(server), collator(RECORDS)
    labels = next_tokens(batch).reshape(-1)
    at = (labels != -100).nonzero().squeeze(1)
    run = made_up.run(model=SimpleNamespace(training=True))
    found = teacher.targets(run, batch, at)
    assert server.asked == [[1, 2, 3], [8, 9, 10]]
    assert found.ids.tolist() == [[3, 1000], [9, 1000], [10, 1000]] and found.vocabulary is None
    assert found.log_probs.tolist() == [[-1.0, -3.0]] * 3


def test_a_batch_without_labels_asks_nothing() -> None:
    server: Any = Server()
    batch = CausalCollator(0)(RECORDS[1:2])
    found = ServerTeacher(server).targets(
        made_up.run(model=SimpleNamespace(training=False)), batch, torch.zeros(0, dtype=torch.long)
    )
    assert server.asked == [] and found.ids.shape == (0, 2)


def test_the_targets_of_a_batch(tmp_path: Path) -> None:
    write(tmp_path / "targets", conversations([8, 5]))
    teacher, run = StoredTeacher(str(tmp_path / "targets")), None
    given: Any = run
    # Two rows of four tokens: the label at place 2 is predicted at place 1, those of the second row at 4 and 6.
    inputs = {"teacher_rows": torch.tensor([[-1, -1, 3, -1], [-1, 7, -1, 0]])}
    found = teacher.targets(given, inputs, torch.tensor([1, 4, 6]))
    ids, log_probs = said_at(np.array([3, 7, 0]))
    np.testing.assert_array_equal(found.ids, ids)
    np.testing.assert_allclose(found.log_probs, log_probs, rtol=1e-6)
    assert found.vocabulary == VOCABULARY
    # Slices of a row come shifted like their labels.
    shifted = {"teacher_rows": torch.tensor([[-1, 3, -1]]), "shift_labels": torch.tensor([[-100, 5, -100]])}
    np.testing.assert_array_equal(teacher.targets(given, shifted, torch.tensor([1])).ids, ids[:1])
