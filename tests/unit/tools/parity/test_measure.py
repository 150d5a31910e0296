"""How a row is judged, and how it is shown."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.errors import UserError
from hftune.tools.parity import entry
from hftune.tools.parity.measure import BF16, Outcome, compared, distance, measure
from hftune.tools.parity.page import line, tables, write_docs
from hftune.tools.parity.rows import ByHand, Known, Row
from hftune.tools.parity.runs import Run, RunFailed

ONE, OTHER = Run("sft"), Run("sft", ("--seed", "1"))
ROW = Row("Group", "this = that", ONE, OTHER, 1e-3)


class Lab:
    """Figures that are made up."""

    def __init__(self, found: Any, wanted: Any, gpus: int = 0) -> None:
        self.known, self.gpus, self.asked = {ONE: found, OTHER: wanted}, gpus, []

    def figures(self, run: Run) -> Any:
        if isinstance(self.known[run], RunFailed):
            raise self.known[run]
        return self.known[run]

    def by_hand(self, *what: Any, **more: Any) -> Any:
        self.asked.append((what, more))
        return self.known[OTHER]


def figures(*losses: float, norms: tuple[float, ...] = (1.0, 1.0)) -> dict[str, list[float]]:
    return {"loss": list(losses), "grad_norm": list(norms)}


def test_the_furthest_step_counts() -> None:
    outcome = measure(ROW, Lab(figures(3.0, 2.001), figures(3.001, 2.0)))  # type: ignore[arg-type]
    assert (outcome.found, outcome.wanted, outcome.at) == (2.001, 2.0, "loss, step 2")
    assert outcome.difference == pytest.approx(0.001 / 2.001) and outcome.holds
    outcome = measure(ROW, Lab(figures(3.0, 2.0, norms=(1.0, 1.1)), figures(3.0, 2.0)))  # type: ignore[arg-type]
    assert outcome.at == "grad_norm, step 2" and not outcome.holds


def test_the_tolerance_is_included_and_no_bit_may_differ_at_0() -> None:
    exact = Row("Group", "bits", ONE, OTHER, 0.0)
    assert compared(exact, 0.0, figures(2.0, 2.0), figures(2.0, 2.0)).holds
    assert not compared(exact, 0.0, figures(2.0, 2.0), figures(2.0, 2.0000000000000004)).holds
    assert compared(ROW, 0.5, figures(1.0, 2.0), figures(2.0, 2.0)).holds


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [(2.0, 1.0, 0.5), (1.0, 2.0, 0.5), (-1.0, 1.0, 2.0), (0.001, 0.0, 0.1), (math.nan, 1.0, math.inf), (0.0, 0.0, 0.0)],
)
def test_distances(one: float, other: float, apart: float) -> None:
    """Of the larger of both, or of 0.01 where both are smaller."""
    assert distance(one, other) == pytest.approx(apart)


def test_what_cannot_be_compared_does_not_hold() -> None:
    assert "0 and 2 values of loss" in compared(ROW, 1.0, {}, figures(1.0, 1.0)).problem
    assert "2 and 1 values of loss" in compared(ROW, 1.0, figures(1.0, 1.0), figures(1.0)).problem
    still = compared(ROW, 1.0, figures(1.0, 1.0), figures(1.0, 1.0, norms=(0.0, 0.0)))
    assert "nothing is trained" in still.problem and not still.holds
    failed = measure(ROW, Lab(RunFailed("exit code 1"), figures(1.0)))  # type: ignore[arg-type]
    assert failed.problem == "exit code 1" and not failed.holds and not failed.left_out


def test_on_gpus() -> None:
    lab = Lab(figures(2.0, 2.0), figures(2.0, 2.03), gpus=1)
    assert measure(ROW, lab).tolerance == BF16 and measure(ROW, lab).holds  # type: ignore[arg-type]
    two = Row("Group", "two", Run("sft", (), 2), ONE)
    assert measure(two, lab).left_out and "needs 2 GPUs" in measure(two, lab).problem  # type: ignore[arg-type]
    resumed = Row("Group", "resumed", Run("sft", after=Run("sft", (), 2)), ONE)
    assert measure(resumed, lab).left_out  # type: ignore[arg-type]
    for stage, left_out in (("rl", True), ("sft", False)):
        run = Run(stage, ("--seed", "2"))
        lab.known[run] = lab.known[ONE]
        by_hand = Row("Group", "TRL's", run, ByHand("trl", OTHER, "grpo"))
        assert measure(by_hand, lab).left_out == left_out  # type: ignore[arg-type]


def test_formulas_and_losses_by_hand() -> None:
    lab = Lab(figures(1.0, 1.0), figures(1.0, 1.0))
    known = Row("Group", "rates", ONE, Known((1.0, 1.0)), 0.0, ("loss",))
    assert measure(known, lab).holds  # type: ignore[arg-type]
    by_hand = Row("Group", "hand", ONE, ByHand("preferences", OTHER, "ipo", begun=True))
    assert measure(by_hand, lab).holds  # type: ignore[arg-type]
    assert lab.asked == [(("preferences", OTHER, "ipo"), {"begun": True})]


GOOD = Outcome(ROW, 1e-3, 2.001, 2.0, 5e-4, "loss, step 2")
BAD = Outcome(ROW, 1e-4, 2.001, 2.0, 5e-4, "loss, step 2")


def test_lines() -> None:
    assert line(GOOD) == "holds  this = that: 2.001 and 2, 5.0e-04 apart, 1e-03 allowed (loss, step 2)"
    assert line(BAD).startswith("FAILS  this")
    known = Outcome(Row("Group", "x", ONE, OTHER, upstream="https://github.com/a/b/issues/1"), 0.0, 1, 2, 0.5, "loss")
    assert line(known).startswith("known  x")
    assert line(Outcome(ROW, 0.0, problem="needs 2 GPUs", left_out=True)) == "left out  this = that: needs 2 GPUs"


def test_a_page_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "parity.md"
    page.write_text("# A\n<!-- parity -->\nbefore\n<!-- end -->\nrest\n")
    write_docs(page, tables([GOOD, BAD, Outcome(ROW, 0.0, problem="a | b")], "A machine", 90.0))
    text = page.read_text()
    assert text.startswith("# A\n<!-- parity -->\n1 of 3 rows hold; measured in 2 minutes on A machine.\n")
    assert text.endswith("<!-- end -->\nrest\n") and "before" not in text and text.count("### Group") == 1
    assert "| this = that | 2.001 | 2 | 5.0e-04 | 1e-03 |" in text and "5.0e-04 **fails**" in text
    assert "| this = that | a   b | | | |" in text
    with pytest.raises(UserError, match="there is no"):
        write_docs(tmp_path / "none.md", iter([]))


def test_a_row_that_fails_is_named_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "work"
    kept.mkdir()
    left_out = Outcome(ROW, 0.0, problem="needs 2 GPUs", left_out=True)
    with pytest.raises(SystemExit) as ended:
        entry._finish([GOOD, BAD, left_out], kept, 3.0, written=False)
    said = capsys.readouterr().out
    assert ended.value.code == 1 and kept.is_dir()
    assert "1 of 3 rows hold, in 3 s" in said and "1 rows fail" in said and "FAILS  this = that" in said
    entry._finish([GOOD, left_out], kept, 3.0, written=False)
    assert not kept.exists()
    monkeypatch.setattr(entry.child_processes, "run", lambda *_, **__: SimpleNamespace(stdout="warning\n"))
    assert entry._gpus() == 0
    monkeypatch.setattr(entry.child_processes, "run", lambda *_, **__: SimpleNamespace(stdout="2\n"))
    assert entry._gpus() == 2
