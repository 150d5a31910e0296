"""The table of what trains where: methods, architectures, stages, ZeRO, quantised bases and optimizers.

`make test` asks preflight about a part of its cells, `make test-all` runs all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve
from tests.architectures import ARCHITECTURES
from tests.parity.shared_models import cells
from tests.table.cells import Cell, all_cells
from tests.table.refusals import rules_of
from tests.table.table import all_problems, prepare, run_cells, with_references

FULL_TABLE = os.environ.get("HFTUNE_TABLE", "")
"""A folder that keeps the results of the full table, so that a run that was interrupted goes on."""


def said_by_preflight(cell: Cell, work: Path) -> str:
    """What preflight says to a cell's command; empty where it lets it through."""
    line = cell.as_line(work)
    try:
        given = parse_arguments(cell.script, [*line["flags"], "--output_dir", str(work / "not-there")])
        check_run(resolve(cell.script, given))
    except UserError as error:
        return " ".join(str(error).split())
    return ""


@pytest.mark.parametrize(
    ("architecture", "every"), cells([("mixtral", 12), *product(ARCHITECTURES, [1])], [("mixtral", 12)])
)
def test_preflight_refuses_what_the_rules_say_and_nothing_else(workspace: Path, architecture: str, every: int) -> None:
    """All refusals come before a model is loaded, so that the whole table can be asked without training a cell."""
    # Without the plain launchers: to preflight, which does not start any, they are one.
    asked = [cell for cell in all_cells() if cell.architecture == architecture and cell.mode != "ddp"][::every]
    prepare(asked, workspace / "table")
    for cell in asked:
        words = said_by_preflight(cell, workspace / "table")
        expected = [rule.says for rule in rules_of(cell)]
        assert any(one in words for one in expected) if expected else not words, (cell.name, expected, words)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_the_whole_table(workspace: Path) -> None:
    """Run what has no result, and see that each is as it should be."""
    cells = with_references(all_cells())
    outcomes = run_cells(cells, Path(FULL_TABLE) if FULL_TABLE else workspace / "table")
    assert set(outcomes) == set(cells)
    wrong = all_problems(outcomes)
    assert not wrong, "\n".join(f"{cell.name}: {lines}" for cell, lines in wrong.items())


@pytest.mark.slow
def test_a_forked_cell_is_the_run_that_a_user_starts(run: Callable, workspace: Path) -> None:
    """In the middle of others, by fork, or by the launcher alone: the same losses, to the last bit."""
    cell = Cell("sft", "llama", "lora", "zero3", "fp32", "adamw")
    before = cell.at(mode="zero2", method="full")
    work = workspace / "table"
    outcome = run_cells([before, cell, before.at(mode="alone")], work)[cell]
    line = cell.as_line(work)
    folder = workspace / "launched"
    run(f"run_{cell.script}.py", *line["flags"], "--output_dir", str(folder), launcher="deepspeed --num_gpus 2").check()
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    assert [entry["loss"] for entry in history if "loss" in entry] == outcome.record["losses"]
