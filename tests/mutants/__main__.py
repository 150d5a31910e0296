"""Plants faults in the core files and shows which of them the fast tests notice.   make mutants MUTANTS="--seed 7"

A survivor wants a test that states what was broken, or, where the fault changes nothing, a row in `equivalent.toml`.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
from pathlib import Path

from tests.mutants import faults, reach, trials

sys.path.append(str(faults.ROOT / "benchmarks"))
from attempts import paste

FILES_AT_ONCE = 80
"""Test files of one process that notes reach: its imports cost some ten seconds; what it has noted stays if the next is
stopped."""


def main() -> int:
    """Note reach where tests have changed, draw, try, tell; 1 if a group of files, or all, is below its bar."""
    asked = parsed()
    note_reach(asked.jobs, asked.tests)
    if not asked.number:
        return 0
    table = faults.groups()
    wanted = {
        name: [file for file in group["files"] if any(fnmatch.fnmatch(file, one) for one in asked.files)]
        for name, group in table.items()
        if asked.groups is None or name in asked.groups
    }
    files = [file for group in wanted.values() for file in group]
    reached, known = reach.load(), outcomes(asked.output)
    found = [
        trials.Trial(fault, *trials.chosen(fault, reached)) for fault in faults.draw(files, asked.number, asked.seed)
    ]
    for trial in found:
        trial.outcome = known.get(key_of(trial), "")
    left = [trial for trial in found if not trial.outcome]
    if left:
        try_out(left, found, asked)
    rows = summary(found, wanted, table, asked.seed)
    print("\n".join(rows))
    if asked.write_docs:
        paste(faults.ROOT / "docs/reliability.md", "mutants", "\n".join(rows))
    return int(any("| no |" in row for row in rows))


def try_out(left: list[trials.Trial], found: list[trials.Trial], asked: argparse.Namespace) -> None:
    """Give each trial its outcome, and keep what is known so far in the file."""
    trials.import_libraries()
    with trials.copies(asked.jobs) as places:
        sound = control(next(trial for trial in left if trial.tests), places)
        if sound.outcome != "survived":
            sys.exit(f"the tests fail without a fault:\n{places[0].with_suffix('.log').read_text()}")
        for trial in trials.run_all(left, places):
            tell(trial)
            if asked.output:
                asked.output.write_text(json.dumps([[*key_of(one), one.outcome] for one in found if one.outcome]))


def outcomes(kept: Path | None) -> dict[tuple[str, ...], str]:
    """What is known of trials from before, but for survivors, which a new test may notice."""
    rows = json.loads(kept.read_text()) if kept and kept.exists() else []
    return {tuple(key): outcome for *key, outcome in rows if outcome != "survived"}


def key_of(trial: trials.Trial) -> tuple[str, ...]:
    """What tells a fault from others, also when lines before it have come or gone."""
    return trial.fault.file, trial.fault.before, trial.fault.after


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=60, help="faults; 0: note only what tests reach")
    parser.add_argument("--files", nargs="+", default=["*"], help="patterns of files, of those in core.toml")
    parser.add_argument("--groups", nargs="+", help="groups of core.toml")
    parser.add_argument("--tests", nargs="+", default=["tests/unit"], help="files and folders of the fast tests")
    parser.add_argument("--jobs", type=int, default=1, help="trials at once")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reliability.md")
    parser.add_argument(
        "--output", type=Path, help="a JSON file of outcomes: the same command again tries survivors, and what is left"
    )
    return parser.parse_args()


def note_reach(jobs: int, folders: list[str]) -> None:
    """Run the test files that have changed, or of which a core file has, since their reach was noted."""
    known = {file: noted.digest for file, noted in reach.load().items() if not noted.is_stale}
    places = [faults.ROOT / folder for folder in folders]
    found = {file for place in places for file in ([place] if place.is_file() else place.rglob("test_*.py"))}
    files = sorted(str(file.relative_to(faults.ROOT)) for file in found)
    stale = [file for file in files if known.get(file) != reach.digest_of(file)]
    for at in range(0, len(stale), FILES_AT_ONCE):
        print(f"noting what {len(stale) - at} files of tests reach", flush=True)
        spread = ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else ["-p", "no:xdist"]
        options = ["-q", "-m", reach.FAST, "-p", "no:cacheprovider", "-p", "tests.mutants.reach", *spread]
        now = stale[at : at + FILES_AT_ONCE]
        subprocess.run([sys.executable, "-m", "pytest", *options, *now], cwd=faults.ROOT, check=False)


def control(trial: trials.Trial, places: list[Path]) -> trials.Trial:
    """The first trial without its fault."""
    fault = trial.fault
    sound = faults.Fault(fault.file, 0, "", "", (faults.ROOT / fault.file).read_text(), fault.inside)
    return next(iter(trials.run_all([trials.Trial(sound, trial.tests, trial.seconds)], places[:1])))


def tell(trial: trials.Trial) -> None:
    """A line for a fault that was noticed, three for one that was not."""
    fault = trial.fault
    print(f"{trial.outcome:8} {fault.file}:{fault.line} ({len(trial.tests)} tests)", flush=True)
    if trial.outcome == "survived":
        print(f"    - {fault.before}\n    + {fault.after}", flush=True)


def summary(found: list[trials.Trial], wanted: dict[str, list[str]], table: dict, seed: int) -> list[str]:
    """A table: the share of faults that were noticed, by group of files, and whether that is its bar or more."""
    rows = [f"| files (seed {seed}) | faults | noticed | bar | holds |", "| --- | ---: | ---: | ---: | --- |"]
    for name, files in wanted.items():
        mine = [trial.outcome != "survived" for trial in found if trial.fault.file in files]
        if mine:
            share, bar = sum(mine) / len(mine), table[name]["bar"]
            rows.append(f"| {name} | {len(mine)} | {share:.1%} | {bar:.0%} | {'yes' if share >= bar else 'no'} |")
    share = sum(trial.outcome != "survived" for trial in found) / len(found)
    return [*rows, f"| all | {len(found)} | {share:.1%} | 90% | {'yes' if share >= 0.9 else 'no'} |"]


if __name__ == "__main__":
    sys.exit(main())
