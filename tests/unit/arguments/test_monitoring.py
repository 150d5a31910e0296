"""A time-out for hangs, and the steps of a profile."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hftune import logging
from hftune.arguments.computation import HangTimeoutFields, ProfileFields
from hftune.errors import ArgumentError


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
