"""Runs cells of the table: every library is imported once, then each cell gets processes of its own by fork.

python -m tests.table.drive --cells CELLS.jsonl --work FOLDER

A fork costs milliseconds where a launcher costs twelve seconds, and a cell can neither see nor disturb another: no
state of transformers, accelerate or DeepSpeed has to be reset, and a cell that hangs or dies is ended alone. What a
launcher tells its processes (rank, world size, where to meet) is told here by the same variables. `CELLS.jsonl` has a
line a cell: {"name", "script", "flags", "processes", "reload": ...}; with "reload" null nothing is reloaded. Cells that
have a result are not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from tests.forks import fork_and_wait, import_everything

RESULT = "result.json"


def main() -> None:
    """Run all cells that have no result yet, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--code", help="only results that were made with the same word here count")
    parser.add_argument("--seconds", type=float, help="stop after the cell in which this time is over")
    arguments = parser.parse_args()
    cells = [json.loads(line) for line in arguments.cells.read_text(encoding="utf-8").splitlines()]
    waiting = [cell for cell in cells if not is_done(cell, arguments.work / cell["name"], arguments.code)]
    if waiting:
        import_everything()
        import_observers()
    began = time.time()
    for number, cell in enumerate(waiting, start=1):
        result = run_cell(cell, arguments.work / cell["name"], arguments.code)
        print(f"{number}/{len(waiting)} {cell['name']}: {result['code']} in {result['seconds']} s", flush=True)
        if arguments.seconds is not None and time.time() - began > arguments.seconds:
            break


def import_observers() -> None:
    """What watches a cell, so that a fork has it already."""
    import tests.table.reload
    import tests.table.witness  # noqa: F401


def is_done(cell: dict[str, Any], folder: Path, code: str | None) -> bool:
    """Whether this very cell, with the same flags, has a result; `code` None lets one of any code count."""
    file = folder / RESULT
    if not file.is_file():
        return False
    result = json.loads(file.read_text(encoding="utf-8"))
    return result["cell"] == cell and code in (None, result["made_by"])


def run_cell(cell: dict[str, Any], folder: Path, made_by: str | None) -> dict[str, Any]:
    """Train, reload, and write `result.json`: exit code, the last words of its log, seconds."""
    from tests.table import reload, witness

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.time()
    log = folder / "log.txt"
    flags = [*cell["flags"], "--output_dir", str(folder / "out")]
    code = fork_and_wait(lambda: witness.run(cell["script"], flags, folder), log, cell["processes"])
    if code == 0 and cell["reload"]:
        code = fork_and_wait(lambda: reload.run(cell["reload"], folder), log, 1)
    said = log.read_text(encoding="utf-8", errors="replace")
    result = {
        "cell": cell,
        "made_by": made_by,
        "code": code,
        "seconds": round(time.time() - began, 2),
        "said": said[-4000:],
    }
    (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")
    return result


if __name__ == "__main__":
    main()
