"""Runs the table, or a slice of it, and says what is wrong.

python -m tests.table.table --work FOLDER [--planes architectures stages] [--seconds 90] [--write-docs]

What has a result in FOLDER is not run again, so that the whole table can be run in pieces.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.architectures import make_model
from tests.conftest import ROOT, without_launcher
from tests.table.cells import PLANES, Cell, all_cells, cells_of, references
from tests.table.checks import Outcome, problems, read_outcome
from tests.table.data import write_data
from tests.table.drive import RESULT
from tests.table.plain import changes


def main() -> None:
    """Run what is missing, then print the problems; the exit code says whether there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--planes", nargs="*", default=list(PLANES), choices=list(PLANES))
    parser.add_argument("--seconds", type=float, help="stop after the cell in which this time is over")
    parser.add_argument("--only", default="", help="cells whose name holds this text")
    parser.add_argument("--stale", action="store_true", help="let results of older code count")
    parser.add_argument("--again", action="store_true", help="run those cells again that were wrong")
    parser.add_argument("--write-docs", action="store_true", help="docs/training_table.md, from what has a result")
    arguments = parser.parse_args()
    wanted = [cell for plane in arguments.planes for cell in cells_of(plane)]
    cells = [cell for cell in with_references(wanted) if arguments.only in cell.name]
    if arguments.again:
        forget_wrong(cells, arguments.work)
    outcomes = run_cells(cells, arguments.work, arguments.seconds, stale=arguments.stale)
    found = all_problems(outcomes)
    for cell, lines in found.items():
        print(f"{cell.name}\n  " + "\n  ".join(line.strip().replace("\n", "\n    ") for line in lines))
    print(summary(cells, outcomes, found))
    if arguments.write_docs:
        from tests.table import page

        page.write(outcomes, found)
    sys.exit(1 if found else 0)


def run_cells(
    cells: Iterable[Cell], work: Path, seconds: float | None = None, *, stale: bool = False
) -> dict[Cell, Outcome]:
    """Run those that have no result of the present code in `work`, and read them all; `stale`: of any code."""
    cells = list(cells)
    prepare(cells, work)
    code = None if stale else code_fingerprint()
    drive([cell.as_line(work) for cell in cells], work, seconds, code)
    read = {cell: read_outcome(cell, work, code) for cell in cells}
    return {cell: outcome for cell, outcome in read.items() if outcome is not None}


def drive(cells: list[dict[str, Any]], work: Path, seconds: float | None = None, code: str | None = None) -> None:
    """Have the driver run what has no result in `work` yet, in a process of its own.

    Args:
        cells: Lines for the driver.
        work: Results go below `work/cells`.
        seconds: Stop after the cell in which this time is over.
        code: Only results made by this code count; None: any.
    """
    work.mkdir(parents=True, exist_ok=True)
    lines = work / f"cells-{os.getpid()}.jsonl"
    lines.write_text("".join(json.dumps(cell) + "\n" for cell in cells), encoding="utf-8")
    command = [sys.executable, "-m", "tests.table.drive", "--cells", str(lines), "--work", str(work / "cells")]
    command += ["--code", code] if code is not None else []
    command += ["--seconds", str(seconds)] if seconds is not None else []
    subprocess.run(command, cwd=ROOT, check=True, env=environment(work))
    lines.unlink()


def code_fingerprint() -> str:
    """Of all that a result depends on here: hftune, its scripts, and what runs a cell."""
    files = [*ROOT.glob("hftune/**/*.py"), *ROOT.glob("run_*.py"), *ROOT.glob("ds_configs/*.json")]
    files += [ROOT / "tests" / "table" / f"{name}.py" for name in ("drive", "witness", "reload", "data")]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def environment(work: Path) -> dict[str, str]:
    """Offline, a thread a process, caches of its own; a guard on the path stays first."""
    own = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HFTUNE_CACHE": str(work / "cache"),
        "HF_HOME": str(work / "hf"),
        "CUDA_VISIBLE_DEVICES": "",
        # DeepSpeedCPUAdam would be compiled for minutes; without a compiler torch's AdamW does the same.
        "CXX": "no-compiler-in-the-table",
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]),
    }
    return {**without_launcher(os.environ), **own}


def prepare(cells: Iterable[Cell], work: Path) -> None:
    """Make the models and the data that cells use."""
    write_data(work / "data")
    for name in dict.fromkeys(cell.architecture for cell in cells):
        folder = work / "models" / name
        if not (folder / "tokenizer.json").is_file():
            make_model(name, folder, **changes(name))


def with_references(cells: Iterable[Cell]) -> list[Cell]:
    """Cells and all that they are compared with, in an order in which what is compared with comes first."""
    wanted = {every for cell in cells for every in (cell, *references(cell))}
    order = {cell: place for place, cell in enumerate(all_cells())}
    return sorted(wanted, key=lambda cell: order[cell])


def forget_wrong(cells: Iterable[Cell], work: Path) -> None:
    """Drop the results of cells that are wrong."""
    read = {cell: read_outcome(cell, work) for cell in cells}
    for cell in all_problems({cell: outcome for cell, outcome in read.items() if outcome is not None}):
        (work / "cells" / cell.name / RESULT).unlink()


def all_problems(outcomes: dict[Cell, Outcome]) -> dict[Cell, list[str]]:
    """What is wrong, by cell; a cell whose references were not run yet is left for later."""
    found = {}
    for cell, outcome in outcomes.items():
        if all(reference in outcomes for reference in references(cell)):
            lines = problems(outcome, outcomes)
            if lines:
                found[cell] = lines
    return found


def summary(cells: list[Cell], outcomes: dict[Cell, Outcome], found: dict[Cell, list[str]]) -> str:
    """A line of counts."""
    seconds = sum(outcome.seconds for outcome in outcomes.values())
    ran = sum(outcome.code == 0 for outcome in outcomes.values())
    refused = sum(outcome.code == 2 for outcome in outcomes.values())
    return (
        f"{time.strftime('%H:%M')} {len(outcomes)} of {len(cells)} cells have a result: {ran} ran, {refused} were "
        f"refused, {len(found)} are wrong; {seconds:.0f} s in all"
    )


if __name__ == "__main__":
    main()
