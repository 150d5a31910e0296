"""Lines and branches of hftune/ that tests reach, in the processes that they start as well.   make coverage

    python benchmarks/covered.py --write-docs                      the tests of `make test`, into docs/reliability.md
    python benchmarks/covered.py --tests tests/unit/merging --keep  one folder, added to what was measured before

Forked processes and those that end by `os._exit` write what they reached, too (coverage's patches).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from attempts import paste

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "coverage"
SETTINGS = f"""
[run]
branch = true
source = {ROOT / "hftune"}
data_file = {WORK / "data"}
parallel = true
patch = subprocess, _exit
sigterm = true
[report]
exclude_also =
    if TYPE_CHECKING:
    raise AssertionError
    ^ *\\.\\.\\.$
    class .*\\(Protocol\\):
"""
SUITE = ["tests/unit", "tests/parity", "tests/security", "tests/integration", "tests/faults"]
BARS = {"lines": 0.92, "branches": 0.85}


def main() -> None:
    """Run the tests, add up, show, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", nargs="*", default=SUITE, help="folders and files; none: only add up what is there")
    parser.add_argument("--marks", default="not slow and not gpu", help="which of them, as for pytest -m")
    parser.add_argument("--jobs", type=int, default=2, help="tests at once")
    parser.add_argument("--keep", action="store_true", help="add to what was measured before")
    parser.add_argument(
        "--holes", type=int, default=0, help="show so many files with the most lines that are not reached"
    )
    parser.add_argument("--quick", action="store_true", help="the tests of the rooms with the losses alone")
    parser.add_argument("--write-docs", action="store_true")
    asked = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "settings").write_text(SETTINGS)
    if not asked.keep:
        for file in WORK.glob("data*"):
            file.unlink()
    tests = ["tests/unit/trainers/losses"] if asked.quick else asked.tests
    if tests:
        measure(tests, asked.marks, asked.jobs)
    found = add_up()
    table = rooms_table(found)
    print(table)
    for count, file in sorted(
        ((len(one["missing_lines"]), file) for file, one in found["files"].items()), reverse=True
    )[: asked.holes]:
        print(f"{count:5} {file}: {found['files'][file]['missing_lines'][:12]}")
    if asked.write_docs:
        paste(ROOT / "docs/reliability.md", "coverage", table)
    figures = shares([found["totals"]])
    bars = {name: {"value": figures[name], "bar": bar, "holds": figures[name] >= bar} for name, bar in BARS.items()}
    print(json.dumps({"benchmark": "covered", "figures": figures, "bars": bars}))


def measure(tests: list[str], marks: str, jobs: int) -> None:
    """Run the tests; a failure is told, and does not end the measurement."""
    spread = ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []
    run = [sys.executable, "-m", "coverage", "run", f"--rcfile={WORK / 'settings'}", "-m", "pytest", "-q", "-m", marks]
    subprocess.run([*run, "-p", "no:cacheprovider", *spread, *tests], cwd=ROOT, check=False)


def add_up() -> Any:
    """Coverage's report as JSON, of all processes."""
    import coverage

    measured = coverage.Coverage(config_file=str(WORK / "settings"))
    measured.combine([str(WORK)], keep=True)
    measured.json_report(outfile=str(WORK / "report.json"))
    return json.loads((WORK / "report.json").read_text())


def rooms_table(found: Any) -> str:
    """Shares of lines and branches, by room."""
    rooms: dict[str, list[Any]] = defaultdict(list)
    for file, one in found["files"].items():
        parts = Path(file).relative_to("hftune").parts
        rooms[f"{parts[0]}/" if len(parts) > 1 else "hftune/*.py"].append(one["summary"])
    rows = [(name, shares(summaries)) for name, summaries in sorted(rooms.items())] + [
        ("all", shares([found["totals"]]))
    ]
    lines = [f"| {name} | {one['count']:,} | {one['lines']:.1%} | {one['branches']:.1%} |" for name, one in rows]
    return "\n".join(["| room | lines | reached | branches reached |", "| --- | ---: | ---: | ---: |", *lines])


def shares(summaries: list[Any]) -> dict[str, float]:
    """Statements, and the shares of them and of branches that were reached."""
    names = ("num_statements", "covered_lines", "num_branches", "covered_branches")
    lines, reached, branches, taken = (sum(one[name] for one in summaries) for name in names)
    return {"count": lines, "lines": reached / max(lines, 1), "branches": taken / branches if branches else 1.0}


if __name__ == "__main__":
    main()
