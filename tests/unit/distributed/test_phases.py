"""Phases are counted, timed while asked, and cost next to nothing."""

from __future__ import annotations

import timeit

import pytest

from hftune.distributed import phases


def test_phases_are_counted_and_timed_only_while_asked() -> None:
    before = phases.now()
    with pytest.raises(KeyError), phases.timed("starting"):
        phases.enter(phases.FORWARD, 5)
        inside = phases.now()
        assert inside.timed and inside.step == 5 and inside.count == before.count + 2
        raise KeyError
    assert not phases.now().timed and phases.now().name == phases.FORWARD, "an error is told with its phase"
    phases.enter(phases.PREPARATION, 0)


def test_a_phase_costs_next_to_nothing() -> None:
    times = timeit.repeat(lambda: phases.enter(phases.FORWARD), number=2000, repeat=5)
    assert min(times) / 2000 < 50e-6, "seven of them a step"
