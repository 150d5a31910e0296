"""All that wants a GPU: kernels against each other, every stage with every method, speeds and memory.

python benchmarks/gpu_suite.py --output gpu.json           what fits into 9 minutes; the same again goes on from there
python benchmarks/gpu_suite.py --parts runs                one of them: tests, deepspeed, runs, rollouts, speed, memory
python benchmarks/gpu_suite.py --parts speed --only '1b-*' these runs, cases or test files alone
python benchmarks/gpu_suite.py --parts runs --at-once 12   so many runs beside each other: most of a run is imports
python benchmarks/gpu_suite.py --list                      names of all runs, and why some must be refused here
python benchmarks/gpu_suite.py --quick                     two steps of a tiny model, on any machine
python benchmarks/gpu_suite.py --unsloth PYTHON --llamafactory PYTHON     these beside TRL, in their environments
python benchmarks/gpu_suite.py --publish gpu.json          what it found into docs/benchmarks.md and docs/planning.md

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
import shutil
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import children  # noqa: E402
import gpu_speed  # noqa: E402
import memory  # noqa: E402
from gpu_runs import Run, machine_here, plan, refusal  # noqa: E402
from harness import machine  # noqa: E402
from made_up import make_in_own_process  # noqa: E402
from publish import publish, section  # noqa: E402

RUN_CAP = 180.0
"""Seconds that a run may take: most of it is imports, and the compiling of one or two."""
TEST_CAP = 300.0
"""Seconds of a file of tests."""
ENOUGH = 20.0
"""Seconds without which no file of tests, run or benchmark is begun."""
ROLLOUTS = ("grpo", "rloo", "online_dpo")
"""Algorithms of `rollouts.py` that TRL has as well."""


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

    def each(
        self,
        part: str,
        names: Iterable[str],
        run: Callable[[str], dict[str, Any]],
        at_once: int = 1,
        judge: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """Run what is left to do of a part, keep each result at once, and say for what no time was left.

        Args:
            run: Gives the result of a name.
            judge: Gives bars from a name and its result, kept as PART-BAR; left out: the exit code.
        """
        known = self.found.cases(part)
        todo = children.to_do(names, known, self.options.only)
        self.found.cases("skipped").pop(part, None)
        late: list[str] = []
        pool = ThreadPoolExecutor(at_once)
        try:
            runs = {pool.submit(self.in_time, run, name): name for name in todo}
            for done in as_completed(runs):
                name, result = runs[done], done.result()
                if result is None:
                    late.append(name)
                    continue
                known[name] = result
                children.say(name, result)
                prefix = f"{part}-" if judge else ""  # a case of `speed` may be one of `memory`, too
                self.found.bars.pop(prefix + name, None)
                self.found.bars |= {prefix + bar: one for bar, one in (judge or exit_code)(name, result).items()}
                self.found.keep()
        finally:
            pool.shutdown(cancel_futures=True)  # after SIGTERM no other run may begin
        if late:
            self.found.figures["skipped"][part] = [name for name in todo if name in late]
            print(f"no time left for: {', '.join(self.found.figures['skipped'][part])}", flush=True)

    def in_time(self, run: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any] | None:
        """Its result; None where it would begin too late."""
        if self.clock.left < ENOUGH:
            return None
        try:
            return run(name)
        except OSError as error:  # a full disk
            return {"failed": repr(error)}


def exit_code(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """A bar. What was cut short by the suite's own end has none."""
    if result.get("cut"):
        return {}
    holds = children.is_good(result)
    return {name: {"value": result.get("exit"), "bar": result.get("expected", 0), "holds": holds}}


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


def test_files(*, deepspeed: bool) -> list[Path]:
    """DeepSpeed's own tests, some of which build C++ operators first; or all others."""
    files = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    return [file for file in files if (file.stem == "test_deepspeed") == deepspeed]


def run_runs(suite: Suite) -> None:
    """Every script with every method and engine."""
    by_name = {run.name: run for run in plan(quick=suite.options.quick, compiler=machine_here().cuda_compiler)}
    shape = "tiny" if suite.options.quick else "smollm2-135m"
    if is_made(suite, "runs", shape):
        suite.each("runs", by_name, lambda name: train(suite, by_name[name], shape), at_once=suite.options.at_once)


def run_rollouts(suite: Suite) -> None:
    """RL beside TRL, an algorithm a process."""
    shape = "tiny" if suite.options.quick else "llama-3.2-1b"
    if is_made(suite, "rollouts", shape):
        suite.each("rollouts", ROLLOUTS, lambda name: beside_trl(suite, name, shape))


def is_made(suite: Suite, part: str, shape: str) -> bool:
    """Whether there is a model of that shape now; where not, the part is skipped."""
    unmade = make_in_own_process(shape, suite.folder, suite.clock)
    if unmade:
        suite.found.cases("skipped")[part] = unmade["failed"]
        suite.found.bars[part] = {"value": "no model", "bar": "a model", "holds": False}
    return not unmade


def beside_trl(suite: Suite, algorithm: str, shape: str) -> dict[str, Any]:
    """Steps of hftune and of TRL in turns; bars are those of `rollouts.py`."""
    command = [sys.executable, "benchmarks/rollouts.py", "--quick", "--algorithm", algorithm]
    command += ["--model", str(suite.folder / shape), *(["--cuda"] if machine_here().gpu else [])]
    sizes = (4, 2, 4) if suite.options.quick else (64, 8, 128)
    for name, size in zip(("answers", "group", "tokens"), sizes, strict=True):
        command += [f"--{name}", str(size)]
    ended = suite.clock.run(command, children.environment(suite.folder), TEST_CAP)
    result = {"exit": ended.code, "expected": 0, "seconds": round(ended.seconds, 1)}
    if ended.code != 0:
        return result | ended.failure
    told = json.loads(ended.out.splitlines()[-1])
    if not suite.options.quick:
        suite.found.bars |= told["bars"]
    of_tools = {tool: runs[-1] for tool, runs in told["figures"][algorithm].items()}
    return result | {
        f"{tool}_seconds_a_step": round(one["seconds"] / one["steps"], 3) for tool, one in of_tools.items()
    }


def train(suite: Suite, run: Run, shape: str) -> dict[str, Any]:
    """One run of a script: how it ended, its losses, its speed and its memory."""
    own, quick = suite.folder / run.name, suite.options.quick
    own.mkdir(exist_ok=True)  # what DeepSpeed offloads to a disk goes there too
    out = own / "out"
    rows = (4 if quick else 16) if run.stage == "rl" else (2 if quick else 8)
    steps = 2 if quick else 10 if run.stage == "rl" else 20
    command = [sys.executable, f"run_{run.stage}.py", "--output_dir", str(out)]
    command += ["--dummy_data", "64" if quick else "512", "--max_steps", str(steps), "--logging_steps", "1"]
    command += ["--per_device_train_batch_size", str(rows), "--save_strategy", "no", "--disable_tqdm", "True"]
    command += ["--report_to", "none", *run.flags(str(own), str(suite.folder / shape))]
    ended = suite.clock.run(command, children.environment(suite.folder), RUN_CAP)
    result = judged(run, ended, out)
    shutil.rmtree(own, ignore_errors=True)
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


def run_speed(suite: Suite) -> None:
    """Models of real sizes, and other tools beside; MFU is over the rate of a large product, measured first."""
    jobs, known = gpu_speed.jobs_of(suite.options), suite.found.cases("speed")
    rate = None
    if children.to_do(jobs, known, suite.options.only) and suite.clock.left >= ENOUGH:
        rate = gpu_speed.rate_here(suite.folder, suite.clock)
        suite.found.figures["matmul_tflops"] = rate and rate.measured / 1e12
        print(f"bf16 products: {rate.measured / 1e12:.0f} TFLOP/s" if rate else "MFU is not measured", flush=True)
    suite.each(
        "speed",
        jobs,
        lambda name: jobs[name](suite.folder, suite.clock, rate),
        judge=lambda *_: gpu_speed.bars_of(known, quick=suite.options.quick),
    )


def run_memory(suite: Suite) -> None:
    """What is planned against what is taken."""
    names = memory.cases(quick=suite.options.quick)
    suite.each(
        "memory", names, lambda name: memory.in_own_process(name, suite.folder, suite.clock), judge=memory.bar_of
    )


PARTS: dict[str, Callable[[Suite], None]] = {
    "tests": lambda suite: run_tests(suite, "tests", test_files(deepspeed=False)),
    "deepspeed": lambda suite: run_tests(suite, "deepspeed", test_files(deepspeed=True)),
    "runs": run_runs,
    "rollouts": run_rollouts,
    "speed": run_speed,
    "memory": run_memory,
}


def table(figures: dict[str, Any]) -> str:
    """What ended, a line each; what was never begun, or cut off by the end of the time, is left out."""
    lines = [f"{'run, test file or case':<84} exit  wanted   peak GB   loss, first and last"]
    for name, one in {**figures.get("tests", {}), **figures.get("deepspeed", {}), **figures.get("runs", {})}.items():
        if "cut" in one:
            continue
        losses = f"{one['first_loss']:.4g} {one['last_loss']:.4g}" if "first_loss" in one else one.get("said", "")
        peak = f"{one['peak_gigabytes']:.2f}" if "peak_gigabytes" in one else ""
        lines.append(f"{name:<84} {one['exit']!s:>4} {one.get('expected', 0):>7} {peak:>9}   {losses}".rstrip())
    for name, one in figures.get("rollouts", {}).items():
        told = {tool: one.get(f"{tool}_seconds_a_step") for tool in ("hftune", "trl")}
        seconds = ", ".join(f"{tool} {value:.2f}" for tool, value in told.items() if value is not None)
        lines.append(f"{f'{name}, seconds a step':<84} {one['exit']!s:>4} {one['expected']:>7}           {seconds}")
    for name, one in figures.get("speed", {}).items():
        if "tokens_per_second" in one:
            speed = f"{one['tokens_per_second']:,.0f} tokens/s, {one['peak_gigabytes']:.1f} GB"
            lines.append(f"{gpu_speed.in_words(name):<84} {speed}")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="the JSON, written anew after all that ends; gone on with if there")
    parser.add_argument("--minutes", type=float, default=9.0, help="start nothing after this time; the end is 1 later")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="always in this order")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="runs, cases and test files, also as 'sft-full-*'")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="of the runs: speeds mean nothing then")
    parser.add_argument(
        "--publish", type=Path, metavar="FILE", help="put what an --output holds into the page, and end"
    )
    for tool in gpu_speed.GIVEN:
        parser.add_argument(f"--{tool}", metavar="PYTHON", help="of its environment, for the part `speed`")
    parser.add_argument("--list", action="store_true", help="name the runs and end")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main() -> int:
    """Run everything that fits into the time; 0 if all that ran did as it should."""
    options = arguments()
    if options.list:
        for run in plan(quick=options.quick, compiler=machine_here().cuda_compiler):
            reason = refusal(run, machine_here())
            print(run.name, f"(to be refused: {reason})" if reason else "")
        return 0
    if options.publish:
        result = json.loads(options.publish.read_text(encoding="utf-8"))
        flags = ["--output", options.publish.name]
        publish("gpu_suite", section("gpu_suite", flags, table(result["figures"]), result, here=False))
        if result["figures"].get("memory"):
            memory.write_docs(result["figures"]["memory"], result["machine"])
        return 0
    children.begin()
    found = children.Found(
        options.output, "gpu_suite", machine(cuda=memory.accelerator() == "cuda"), quick=options.quick
    )
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
