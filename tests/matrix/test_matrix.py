"""What must not matter does not: processes, the cut into micro batches, a stop, workers, layout, ZeRO, recomputation.

HFTUNE_MATRIX_SEED=7 pytest tests/matrix -m slow      other cases than those of the day
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import options
from tests.matrix.cases import DIMENSIONS, STAGES_WITH, Case, all_cases, cases
from tests.matrix.commands import prepare
from tests.matrix.compare import differences
from tests.matrix.pairs import Pairs

QUICK = 60
"""Cases of seed 0 in `make test`, in which most values that can meet do."""
SEED = int(os.environ.get("HFTUNE_MATRIX_SEED") or time.strftime("%Y%m%d"))

UNMENDED: tuple[tuple[dict[str, tuple[str, ...]], str], ...] = ()
"""Cases that differ by a fault that is known: some of their values, and the fault."""


def known_fault(case: Case) -> str | None:
    """Why a case differs, if that is known."""
    return next((why for values, why in UNMENDED if case.has(values)), None)


def parameter(case: Case) -> object:
    """A case as a test, which fails where the fault is known."""
    why = known_fault(case)
    return pytest.param(case, id=case.name, marks=[pytest.mark.xfail(reason=why, strict=True)] if why else [])


@pytest.fixture(scope="module")
def pairs(run: Callable, workspace: Path) -> Pairs:
    prepared = workspace / "matrix"
    prepare(prepared)
    return Pairs(run, prepared, prepared / "runs")


@pytest.mark.parametrize("case", [parameter(case) for case in cases(seed=0)[:QUICK]])
def test_nothing_that_must_not_matter_does(pairs: Pairs, case: Case) -> None:
    said = pairs.differences(case)
    assert not said, "\n".join([*said[:10], f"{len(said)} differences between", pairs.lines(case)])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stage", DIMENSIONS["stage"])
def test_all_pairs_of_the_day(pairs: Pairs, stage: str) -> None:
    """All values of a stage meet, two by two."""
    wrong = []
    for case in all_cases(stage, SEED):
        said = pairs.differences(case) if known_fault(case) is None else []
        wrong += [f"{case}:", *said[:5], pairs.lines(case), ""] if said else []
    assert not wrong, "\n".join([f"seed {SEED}", *wrong])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_argument_of_the_schema(pairs: Pairs) -> None:
    """In a case that the day draws for it; where it cannot be, both runs say so."""
    wrong = []
    for case in options.cases_with_options(SEED):
        said = pairs.differences(case) if known_fault(case) is None else []
        wrong += [f"{case}:", *said[:5], pairs.lines(case), ""] if said else []
    assert not wrong, "\n".join([f"seed {SEED}", *wrong])


PLANTED = {
    "head_left_out": Case("grpo", "zero2", head="untied", batches="empty"),
    "recorded_in_16_bits": Case("rloo", "recording", precision="bf16"),
    "an_opinion_on_all": Case("online_dpo", "unscored"),
    "portions_across_epochs": Case("sft", "processes", order="streamed"),
    "order_of_the_first_epoch": Case("sft", "resume", order="by_length", draw=5),
    "new_answers": Case("grpo", "resume", rounds="iterations", draw=4),
}
"""Cases that each of the faults in `planted.py` turns red."""


QUICK_FAULTS = ("head_left_out", "portions_across_epochs", "order_of_the_first_epoch")


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=() if name in QUICK_FAULTS else pytest.mark.slow) for name in PLANTED]
)
def test_a_planted_fault_is_seen(pairs: Pairs, fault: str) -> None:
    case = PLANTED[fault]
    assert not pairs.differences(case)
    assert pairs.differences(case, planted=fault)


@pytest.mark.parametrize("seed", range(3))
def test_all_values_that_can_meet_do(seed: int) -> None:
    chosen = cases(seed)
    every = [case for stage in DIMENSIONS["stage"] for case in all_cases(stage, seed)]
    assert {pair for case in chosen for pair in case.pairs} == {pair for case in every for pair in case.pairs}
    for name, values in DIMENSIONS.items():
        assert {getattr(case, name) for case in chosen[:QUICK]} == set(values), name
    for (name, value), stages in STAGES_WITH.items():
        assert all(case.stage in stages for case in every if getattr(case, name) == value)


def test_an_argument_joins_by_its_entry_in_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    properties, before = options._properties, list(options.cases_with_options(0))

    def with_one_more(stage: str) -> dict[str, Any]:
        return properties(stage) | {"made_up": {"anyOf": [{"type": "boolean"}], "default": True}}

    monkeypatch.setattr(options, "_properties", with_one_more)
    after = list(options.cases_with_options(0))
    (joined,) = [case for case in after if case not in before]
    assert joined.option == ("--made_up", "False") and len(after) == len(before) + 1


def test_a_difference_is_seen() -> None:
    case = Case("sft", "cut")
    good = [{"loss": 2.0, "grad_norm": 1.0, "batch": 7.0} for _ in range(8)]
    assert differences(case, good, good) == []
    near = [*good[:7], {"loss": 2.0003, "grad_norm": 0.9999, "batch": 7.0}]
    assert differences(case, good, near) == []
    for name, value in {"loss": 2.0005, "grad_norm": 0.9997, "batch": 8.0}.items():
        assert differences(case, good, [*good[:7], good[7] | {name: value}]) == [
            f"{name} of step 8 is {good[7][name]}, then {value}"
        ]
    assert differences(case, good, good[:7]) == ["8 steps, then 7"]
    assert differences(case, good, [*good[:7], {"loss": 2.0, "grad_norm": 1.0}]), "a figure is missing"
    assert differences(case.at(change="resume"), good, good[-7:]) == [], "stopped behind the first step"
