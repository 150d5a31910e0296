"""Processes that share rows, of which one is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.data.collators import FlatCollator
from hftune.distributed.ranks import Mesh
from hftune.trainers.features import sequence_parallel
from hftune.trainers.features.sequence_parallel import SequenceParallel
from tests.unit.trainers.features import made_up


class Group:
    """The second of two processes that share rows; whether they are the same is set."""

    size = 2
    same_rows, compared = True, 0

    def slice_of(self, tokens: int) -> slice:
        half = -(-tokens // 2)
        return slice(half, 2 * half)

    def same(self, value: torch.Tensor) -> bool:
        self.compared += 1
        return self.same_rows


def run_of(**given: Any) -> Any:
    args = {"mesh": Mesh(world=2, sequence=2), "gradient_accumulation_steps": 2, "world_size": 2}
    return made_up.run(args=args, sequence_group=Group(), **given)


def batch() -> dict[str, Any]:
    """A row of one document."""
    return FlatCollator()([{"input_ids": [*range(8)], "labels": [*range(8)]}])


def test_slices_and_rows_are_counted_once() -> None:
    run, feature = run_of(), SequenceParallel()
    (own, other) = feature.batches(run, iter([batch(), batch()]))
    assert own["input_ids"].tolist() == [[4, 5, 6, 7]] == other["input_ids"].tolist()
    assert own["shift_labels"].tolist() == [[5, 6, 7, -100]], "what comes next, also behind a slice"
    assert run.sequence_group.compared == 1
    feature.compare_again()
    assert feature.slice(run, batch())["input_ids"].shape == (1, 4)
    assert run.sequence_group.compared == 2, "evaluations have loaders of their own"


def test_other_rows_in_a_group_are_an_error() -> None:
    run = run_of()
    run.sequence_group.same_rows = False
    with pytest.raises(AssertionError, match="different rows"):
        SequenceParallel().slice(run, batch())


def test_each_process_and_micro_batch_draws_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    before = torch.random.get_rng_state()
    for rank in (0, 1):
        monkeypatch.setattr(sequence_parallel.ranks, "rank", lambda rank=rank: rank)
        run, feature = run_of(), SequenceParallel()
        for step in (0, 0, 1):
            run.state.global_step = step
            with feature.own_random_numbers(run):
                seen.append(float(torch.rand(())))
    assert len(set(seen)) == 6
    assert torch.equal(torch.random.get_rng_state(), before), "samplers draw from it as well"


def test_noise_is_scaled_by_the_whole_row() -> None:
    run = run_of(model=SimpleNamespace(), neftune_noise_alpha=6.0)
    SequenceParallel().on_built(run)
    assert run.neftune_noise_alpha == pytest.approx(6 / 2**0.5)
