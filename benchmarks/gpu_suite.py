"""All that wants a GPU: kernels against each other, every stage with every method, speeds and memory.

python benchmarks/gpu_suite.py --output gpu.json           what fits into 9 minutes; the same again goes on from there
python benchmarks/gpu_suite.py --parts runs                one of them: tests, deepspeed, runs, speed, memory
python benchmarks/gpu_suite.py --parts speed --only '1b-*' these runs, cases or test files alone
python benchmarks/gpu_suite.py --parts runs --share 1/3    every third run: three such at once keep one GPU busy
python benchmarks/gpu_suite.py --list                      names of all runs, and why some must be refused here
python benchmarks/gpu_suite.py --quick                     two steps of a tiny model, on any machine

Nothing is downloaded: the model has SmolLM2-135M's sizes and random weights, and the records are generated. Each stage
is run by its own script. The last line is JSON. `--output` is written after every run, case and test file: whatever
stops the suite, what was finished by then is there. What `pip install --target FOLDER` brought is found through
PYTHONPATH=FOLDER.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import children  # noqa: E402
from gpu_runs import Run, machine_here, plan, refusal  # noqa: E402
from made_up import make_in_own_process  # noqa: E402

RUN_CAP = 180.0
"""Seconds that a run may take: most of it is imports, and the compiling of one or two."""
TEST_CAP = 300.0
"""Seconds of a file of tests."""
ENOUGH = 20.0
"""Seconds without which no file of tests, run or benchmark is begun."""


class Suite(NamedTuple):
    """What every part is given.

    Args:
        options: The command line.
        clock: The time that is left.
        found: Results so far.
        folder: For weights, runs and caches.
    """

    options: argparse.Namespace
    clock: children.Clock
    found: children.Found
    folder: Path

    def each(self, part: str, names: Iterable[str], run: Callable[[str], dict[str, Any]]) -> None:
        """Run what is left to do of a part, keep each result at once, and say for what no time was left."""
        known = self.found.cases(part)
        todo = children.to_do(names, known, self.options.only)
        self.found.cases("skipped").pop(part, None)
        for number, name in enumerate(todo):
            if self.clock.left < ENOUGH:
                self.found.figures["skipped"][part] = todo[number:]
                print(f"no time left for: {', '.join(todo[number:])}", flush=True)
                break
            known[name] = result = run(name)
            children.say(name, result)
            self.judge(name, result)
            self.found.keep()

    def judge(self, name: str, result: dict[str, Any]) -> None:
        """A bar: the exit code. What was cut short by the suite's own end has none."""
        if result.get("cut"):
            self.found.bars.pop(name, None)
        else:
            holds = children.is_good(result)
            self.found.bars[name] = {"value": result["exit"], "bar": result.get("expected", 0), "holds": holds}


def run_tests(suite: Suite, part: str, files: list[Path]) -> None:
    """Files of tests, a process each, so that what is done is kept."""
    missing = [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]
    if missing:
        suite.found.cases("skipped")[part] = f"not installed: {', '.join(missing)}"
        print(f"{part}: not installed: {', '.join(missing)}", flush=True)
        return
    by_name = {file.stem: file for file in files}
    suite.each(part, by_name, lambda name: run_test(suite, by_name[name]))


def run_test(suite: Suite, file: Path) -> dict[str, Any]:
    """How the tests of a file ended."""
    command = [sys.executable, "-m", "pytest", str(file), "-m", "gpu", "-v", "--no-header", "-p", "no:cacheprovider"]
    command += ["--basetemp", str(suite.folder / "pytest")]
    ended = suite.clock.run(command, children.environment(suite.folder), TEST_CAP, show=True)
    lines = ended.out.rstrip().splitlines() or [""]
    result = {"exit": ended.code, "seconds": round(ended.seconds, 1), "said": lines[-1].strip("= ")}
    # 5: nothing was there to run, such as without torchao.
    return result if ended.code in (0, 5) else result | replace(ended, words=ended.out or ended.words).failure


def run_kernels(suite: Suite) -> None:
    """Tests that compile nothing for DeepSpeed."""
    run_tests(suite, "tests", [file for file in _test_files() if file.stem != "test_deepspeed"])


def run_deepspeed(suite: Suite) -> None:
    """DeepSpeed's own, some of which build C++ operators first."""
    run_tests(suite, "deepspeed", [file for file in _test_files() if file.stem == "test_deepspeed"])


def _test_files() -> list[Path]:
    return sorted((ROOT / "tests" / "gpu").glob("test_*.py"))


def run_runs(suite: Suite) -> None:
    """Every script with every method and engine."""
    share, shares = (int(number) for number in suite.options.share.split("/"))
    by_name = {run.name: run for run in plan(quick=suite.options.quick)[share - 1 :: shares]}
    shape = "tiny" if suite.options.quick else "smollm2-135m"
    suite.each("runs", by_name, lambda name: train(suite, by_name[name], shape))


def train(suite: Suite, run: Run, shape: str) -> dict[str, Any]:
    """One run of a script: how it ended, its losses, its speed and its memory."""
    out, quick = suite.folder / "out", suite.options.quick
    unmade = make_in_own_process(shape, suite.folder, suite.clock)
    if unmade:
        return {"exit": None, **unmade}
    rows = (4 if quick else 16) if run.stage == "rl" else (2 if quick else 8)
    steps = 2 if quick else 10 if run.stage == "rl" else 20
    command = [sys.executable, f"run_{run.stage}.py", "--output_dir", str(out)]
    command += ["--dummy_data", "64" if quick else "512", "--max_steps", str(steps), "--logging_steps", "1"]
    command += ["--per_device_train_batch_size", str(rows), "--save_strategy", "no", "--disable_tqdm", "True"]
    command += ["--report_to", "none", *run.flags(str(suite.folder), str(suite.folder / shape))]
    ended = suite.clock.run(command, children.environment(suite.folder), RUN_CAP)
    result = judged(run, ended, out)
    shutil.rmtree(out, ignore_errors=True)
    for offloaded in suite.folder.glob("zero_stage_3*"):  # DeepSpeed's, on a disk
        shutil.rmtree(offloaded, ignore_errors=True)
    return result


def judged(run: Run, ended: children.Ended, out: Path) -> dict[str, Any]:
    """What a run that has ended comes to; "failed" where it is not what it should be."""
    reason = refusal(run, machine_here())
    result = {"exit": ended.code, "expected": 2 if reason else 0, "seconds": round(ended.seconds, 1)}
    if ended.code != result["expected"]:
        return result | ended.failure
    if reason:
        # Unknown flags end with 2 as well.
        refused = reason.lower() in " ".join(ended.words.split()).lower()
        return result | ({"refused": reason} if refused else ended.failure)
    try:
        figures = children.figures_of(out)
    except children.NO_FIGURES as error:
        return result | {"failed": f"no figures: {error!r}"}
    losses = figures.pop("losses")
    if not losses or not all(math.isfinite(loss) for loss in losses):
        return result | {"failed": f"losses: {losses}"}
    return result | figures | {"first_loss": losses[0], "last_loss": losses[-1]}


def run_other(suite: Suite, part: str, benchmark: str) -> None:
    """A benchmark of its own, whose results are taken over as they come."""
    if suite.clock.left < ENOUGH:
        suite.found.cases("skipped")[part] = "no time left"
        return
    suite.found.cases("skipped").pop(part, None)
    file = suite.folder / f"{part}.json"
    if "machine" in suite.found.figures.get(part, {}):
        file.write_text(json.dumps(suite.found.figures[part]), encoding="utf-8")
    command = [sys.executable, f"benchmarks/{benchmark}.py", "--output", str(file)]
    command += ["--minutes", f"{suite.clock.left / 60:.2f}", *(["--quick"] if suite.options.quick else [])]
    command += ["--only", *suite.options.only] if suite.options.only else []
    # It ends what it runs itself, a little before it would be ended.
    cap = suite.clock.left + children.GRACE + 15
    ended = children.run(
        command, children.environment(suite.folder), cap, show=True, meanwhile=lambda: take_over(suite, part, file)
    )
    take_over(suite, part, file)
    if not suite.found.figures.get(part, {}).get("complete"):
        suite.found.bars[part] = {"value": ended.code, "bar": 0, "holds": False}
        suite.found.figures.setdefault(part, {}).update(ended.failure)
        print(ended.failure["failed"], flush=True)
        suite.found.keep()


def take_over(suite: Suite, part: str, file: Path) -> None:
    """What another benchmark has written by now; nothing where that is known."""
    written = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    if written is None or written == suite.found.figures.get(part):
        return
    suite.found.figures[part] = written
    others = {name: bar for name, bar in suite.found.bars.items() if name.partition("-")[0] != part}
    suite.found.bars = others | {f"{part}-{name}": bar for name, bar in written["bars"].items()}
    suite.found.keep()


PARTS: dict[str, Callable[[Suite], None]] = {
    "tests": run_kernels,
    "deepspeed": run_deepspeed,
    "runs": run_runs,
    "speed": lambda suite: run_other(suite, "speed", "gpu_speed"),
    "memory": lambda suite: run_other(suite, "memory", "memory"),
}


def machine() -> str:
    """The device, in words."""
    import torch

    if not torch.cuda.is_available():
        return f"no GPU, {os.cpu_count()} cores, torch {torch.__version__}"
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="the JSON, written anew after all that ends; gone on with if there")
    parser.add_argument("--minutes", type=float, default=9.0, help="start nothing after this time; the end is 1 later")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="always in this order")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="runs, cases and test files, also as 'sft-full-*'")
    parser.add_argument("--share", default="1/1", metavar="K/N", help="of the runs, the K-th of every N")
    parser.add_argument("--list", action="store_true", help="name the runs and end")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main() -> int:
    """Run everything that fits into the time; 0 if all that ran did as it should."""
    options = arguments()
    if options.list:
        for run in plan(quick=options.quick):
            reason = refusal(run, machine_here())
            print(run.name, f"(to be refused: {reason})" if reason else "")
        return 0
    children.begin()
    found = children.Found(options.output, "gpu_suite", machine(), quick=options.quick)
    clock = children.Clock(options.minutes)
    with children.work_folder() as folder:
        for part, run_part in PARTS.items():
            if part in options.parts:
                run_part(Suite(options, clock, found, folder))
                found.keep()
    found.say_bars(" (those of speed were set for one H200)")
    print(found.keep(complete=True))
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(main())
