"""One process, several, every ZeRO stage, offload and recomputing: the same 20 losses and gradient norms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.table.parity import ENGINES, RATES, RECOMPUTED, STEPS, TOLERANCE, Setting, distance, distances, run, settings


def test_the_table_holds_every_setting() -> None:
    every = settings()
    for script in ("sft", "pt"):
        for method in RATES:
            assert {s.engine for s in every if (s.script, s.method) == (script, method)} == set(ENGINES)
            for engine in ("alone", "zero2", "zero3"):
                assert {s.recomputed for s in every if s == Setting(script, method, engine, s.recomputed)} == set(
                    RECOMPUTED
                )
    assert set(ENGINES) >= {"alone", "ddp", "zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload"}
    assert all(setting.reference in every for setting in every)


def test_what_is_off_is_seen() -> None:
    good = [(2.0, 4.0)] * STEPS
    assert distance(good, good) == (0.0, 0.0)
    for place in (0, STEPS - 1):
        curve = list(good)
        curve[place] = (2.0, 4.001)
        assert distance(curve, good) == (0.0, pytest.approx(2.5e-4))
        curve[place] = (2.001, 4.0)
        assert distance(curve, good)[0] == pytest.approx(5e-4)
    with pytest.raises(AssertionError):
        distance(good[:-1], good)


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_sharing_and_recomputing_change_nothing(workspace: Path) -> None:
    found = distances(run(settings(), workspace / "parity"))
    assert len(found) == len(settings()) - 4, "every setting but the four references"
    assert {s.name: values for s, values in found.items() if max(values) > TOLERANCE} == {}
