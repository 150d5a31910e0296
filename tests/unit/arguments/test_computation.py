"""Dropout that is asked for, and a router's loss that is left to the model."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hftune import logging
from hftune.arguments.computation import (
    DropoutFields,
    HangTimeoutFields,
    ParallelArguments,
    ProfileFields,
    RouterFields,
)
from hftune.distributed import ranks
from hftune.errors import ArgumentError


@pytest.mark.parametrize(
    ("hidden", "attention", "asked"),
    [(None, None, False), (0.1, None, True), (None, 0.1, True), (0.0, None, True)],  # 0 is asked for as well
)
def test_dropout_other_than_the_models(hidden: float | None, attention: float | None, asked: bool) -> None:
    fields = DropoutFields(hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)
    assert fields.asks_for_dropout is asked


def test_a_routers_loss_is_the_models_unless_it_is_given() -> None:
    assert RouterFields().router_aux_loss_coef is None and RouterFields().moe_z_loss_coef == 0


@dataclass
class Watched(HangTimeoutFields):
    """With the field of transformers that the time-out moves."""

    ddp_timeout: int = 1800


@pytest.mark.parametrize(
    ("hang", "collectives", "expected"),
    [
        (1500.0, 1800, 1800),  # the defaults: 300 seconds apart, which is enough
        (1500.5, 1800, 1800),  # whole seconds
        (1501.0, 1800, 1801),
        (4000.0, 1800, 4300),
        (0.0, 10, 10),  # no time-out of ours to come before
    ],
)
def test_torchs_own_time_out_comes_later(
    hang: float, collectives: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    watched = Watched(hang_timeout=hang, ddp_timeout=collectives)
    watched.raise_ddp_timeout()
    assert watched.ddp_timeout == expected
    assert bool(logging.notices()) == (collectives < hang + 300 and hang > 0)


@pytest.mark.parametrize(("first", "last", "fits"), [(1, 1, True), (4, 6, True), (0, 3, False), (5, 4, False)])
def test_steps_of_a_profile(first: int, last: int, fits: bool) -> None:
    profile = ProfileFields(profile_step_start=first, profile_step_end=last)
    if fits:
        profile.check_profile()
        return
    with pytest.raises(ArgumentError, match=f"steps {first} to {last} are none"):
        profile.check_profile()


@pytest.mark.parametrize(("sizes", "sees"), [({}, 8), ({"tensor": 2}, 4), ({"sequence": 4}, 2), ({"expert": 2}, 8)])
def test_who_sees_rows_of_its_own(sizes: dict[str, int], sees: int) -> None:
    args = ParallelArguments(**{f"{kind}_parallel_size": size for kind, size in sizes.items()})
    with ranks.planning_for(ranks.PlannedWorld(8, 8, on_cpu=True)):
        args.check_parallel_sizes()
        assert args.data_parallel_size == sees
        assert (args.mesh.tensor, args.mesh.sequence, args.mesh.expert) == tuple(
            sizes.get(kind, 1) for kind in ("tensor", "sequence", "expert")
        )


@pytest.mark.parametrize(
    "sizes", [{"tensor_parallel_size": 3}, {"sequence_parallel_size": 0}, {"expert_parallel_size": 16}]
)
def test_sizes_for_which_the_processes_do_not_suffice(sizes: dict[str, int]) -> None:
    with ranks.planning_for(ranks.PlannedWorld(8, 8, on_cpu=True)), pytest.raises(ArgumentError):
        ParallelArguments(**sizes).check_parallel_sizes()
