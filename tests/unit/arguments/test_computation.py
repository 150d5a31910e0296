"""Dropout that is asked for, a router's loss that is left to the model, groups of processes and time-outs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from hftune import logging
from hftune.arguments.computation import ComputationFields
from hftune.distributed import ranks
from hftune.errors import ArgumentError


@dataclass
class Computation(ComputationFields):
    """With the field of transformers that the time-out moves."""

    ddp_timeout: int = 1800


def checked(**given: Any) -> Computation:
    """In one of eight processes."""
    found = Computation(**given)
    with ranks.planning_for(ranks.PlannedWorld(8, 8, on_cpu=True)):
        found.check_computation()
    return found


def test_dropout_and_losses_of_routers_are_the_models_unless_they_are_given() -> None:
    fields = ComputationFields()
    assert fields.router_aux_loss_coef is None and fields.moe_z_loss_coef == 0 and not fields.asks_for_dropout
    # 0 is asked for as well
    asked: list[dict[str, Any]] = [{"hidden_dropout_prob": 0.0}, {"attention_probs_dropout_prob": 0.1}]
    assert all(ComputationFields(**one).asks_for_dropout for one in asked)


@pytest.mark.parametrize(
    ("hang", "collectives", "expected"),
    [
        (1500.0, 1800, 1800),  # the defaults: 300 seconds apart, which is enough
        (1500.5, 1800, 1800),  # whole seconds
        (1501.0, 1800, 1801),
        (0.0, 10, 10),  # no time-out of ours to come before
    ],
)
def test_torchs_own_time_out_comes_later(
    hang: float, collectives: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    assert checked(hang_timeout=hang, ddp_timeout=collectives).ddp_timeout == expected
    assert bool(logging.notices()) == (collectives < hang + 300 and hang > 0)


@pytest.mark.parametrize(("sizes", "sees"), [({}, 8), ({"tensor": 2}, 4), ({"sequence": 4}, 2), ({"expert": 2}, 8)])
def test_who_sees_rows_of_its_own(sizes: dict[str, int], sees: int) -> None:
    args = checked(**{f"{kind}_parallel_size": size for kind, size in sizes.items()})
    with ranks.planning_for(ranks.PlannedWorld(8, 8, on_cpu=True)):
        assert args.data_parallel_size == sees
        found = (args.mesh.tensor, args.mesh.sequence, args.mesh.expert)
        assert found == tuple(sizes.get(kind, 1) for kind in ("tensor", "sequence", "expert"))


@pytest.mark.parametrize(
    "given",
    [
        {"tensor_parallel_size": 3},
        {"sequence_parallel_size": 0},
        {"expert_parallel_size": 16},
        {"profile_step_start": 0, "profile_step_end": 3},
    ],
)
def test_sizes_and_steps_that_cannot_be(given: dict[str, int]) -> None:
    assert checked(profile_step_start=4, profile_step_end=4)
    with pytest.raises(ArgumentError):
        checked(**given)
