"""Stored targets of a batch: those of the labels that are predicted, wherever they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hftune.trainers.distillation.stored_teacher import StoredTeacher
from tests.unit.data.target_files import VOCABULARY, conversations, said_at, write


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
