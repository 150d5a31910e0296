"""Asks preflight alone about cells, without training any: does it refuse just those that the rules say, in their words?

python -m tests.table.sweep --work FOLDER [--architectures qwen2 mixtral]

About 50 ms a cell, in one process: the ZeRO stage is in the config, and the number of processes does not matter.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable
from pathlib import Path

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.logging import get_logger
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve
from tests.architectures import ARCHITECTURES
from tests.table.cells import Cell, all_cells
from tests.table.refusals import rules_of
from tests.table.table import prepare


def main() -> None:
    """Print what preflight and the rules disagree on; the exit code says whether there is any such cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--architectures", nargs="*", default=ARCHITECTURES, choices=ARCHITECTURES)
    arguments = parser.parse_args()
    get_logger().setLevel(logging.ERROR)
    # Without the plain launchers: to preflight, which does not start any, they are one.
    cells = [cell for cell in all_cells() if cell.architecture in arguments.architectures and cell.mode != "ddp"]
    prepare(cells, arguments.work)
    found = list(disagreements(cells, arguments.work))
    print("\n".join(found))
    print(f"{len(cells)} cells, {len(found)} disagreements")
    sys.exit(1 if found else 0)


def disagreements(cells: Iterable[Cell], work: Path) -> Iterable[str]:
    """A line a cell that is refused without a rule, in other words than its own, or not though there is one."""
    for cell in cells:
        said, rules = refusal(cell, work), rules_of(cell)
        if said and not rules:
            yield f"{cell.name}: refused, and no rule says so: {said}"
        elif rules and not any(rule.says in said for rule in rules):
            yield f"{cell.name}: {[rule.says for rule in rules]} expected: {said or 'not refused'}"


def refusal(cell: Cell, work: Path) -> str:
    """What preflight says to a cell's command; empty where it lets it through."""
    line = cell.as_line(work)
    try:
        given = parse_arguments(cell.script, [*line["flags"], "--output_dir", str(work / "not-there")])
        check_run(resolve(cell.script, given))
    except UserError as error:
        return " ".join(str(error).split())
    return ""


if __name__ == "__main__":
    main()
