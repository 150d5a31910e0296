"""How fast models of real sizes train on one GPU: share of its matmul rate, FP8 over bf16, long context, other tools.

python benchmarks/gpu_speed.py                            all cases, some 20 minutes on an H200; bars at the end
python benchmarks/gpu_speed.py --only '1b-*' 4b-fp8       these alone; --minutes 9 starts no further one after this time
python benchmarks/gpu_speed.py --output speed.json        written after each; the same again goes on where it stopped
python benchmarks/gpu_speed.py --unsloth PYTHON --llamafactory PYTHON     their environments; TRL is always there
python benchmarks/gpu_speed.py --quick                    tiny models on any machine, to see whether it runs

Weights are drawn and records made up; rows are packed. Tokens a second are real ones, of the steps after the first two,
as the run's own logs have them. MFU is the arithmetic of those tokens (without what is recomputed) over the rate of a
large bf16 product measured just before, not over a data sheet. Other tools train the same records by their own entry
points (`train_tools.py --cuda`), and are compared by the same watch. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import children  # noqa: E402
import memory  # noqa: E402
from harness import bar  # noqa: E402
from made_up import make_in_own_process  # noqa: E402

WARM_UP = 2
CAP = 420.0
"""Seconds that a case may take unless it says otherwise."""
BARS = {"mfu": 0.55, "fp8": 1.2, "unsloth": 1.0, "others": 1.3, "alike": 1.0, "memory": 1.0}
PACKED = ["--packing", "--bf16", "True", "--logging_steps", "1", "--activation_checkpointing", "auto"]
COMPILED = ["--torch_compile", "True"]
LONG = ["--packing", "--bf16", "True", "--logging_steps", "1", "--tiled_mlp", "True"]
LONG += ["--activation_checkpointing", "full", "--activation_checkpointing_offload", "True"]


@dataclass(frozen=True)
class Case:
    """One training.

    Args:
        name: Unique.
        shape: A key of `memory.SHAPES`.
        length: Tokens of a row.
        rows: Of a micro batch.
        flags: Further arguments of run_sft.py.
        steps: Optimizer steps, of which the first `WARM_UP` do not count.
        needs: GiB of a device without which it is not tried: the least that `hftune plan` gives, and a tenth.
        cap: Seconds that it may take.
    """

    name: str
    shape: str
    length: int
    rows: int
    flags: list[str] = field(default_factory=list)
    steps: int = 8
    needs: int = 0
    cap: float = CAP


CASES = [
    Case("1b-full", "llama-3.2-1b", 4096, 4, PACKED),
    Case("1b-full-compiled", "llama-3.2-1b", 4096, 4, PACKED + COMPILED),
    Case("1b-fp8", "llama-3.2-1b", 4096, 4, [*PACKED, *COMPILED, "--fp8", "tensorwise"]),
    Case("4b-full", "qwen3-4b", 4096, 2, PACKED, needs=70),
    Case("4b-full-compiled", "qwen3-4b", 4096, 2, PACKED + COMPILED, needs=70),
    Case("4b-fp8", "qwen3-4b", 4096, 2, [*PACKED, *COMPILED, "--fp8", "tensorwise"], needs=70),
    Case("8b-lora-128k", "qwen3-8b", 131072, 1, [*memory.LORA, *LONG], 3, needs=66, cap=540.0),
]
QUICK = [
    Case("quick-full", "tiny", 256, 2, PACKED, 4),
    Case("quick-lora-long", "tiny", 1024, 1, [*memory.LORA, *LONG], 3),
]
COMPARED = {"lora": 16, "qlora": 4}
"""Bits of the frozen base that other tools train upon, too."""
PEERS = ("trl", "unsloth", "llamafactory")
RECOMPUTING = "hftune-recomputing"
"""hftune computes again what memory has no room for; its peers all of it, as this one does."""
MFU_OF = ("1b", "4b")
SET_FOR = ", set for one H200"


class Rate(NamedTuple):
    """Operations a second of a large bf16 product.

    Args:
        measured: Here.
        sheet: As the device's data sheet has it, which the MFU of hftune's logs is a share of.
    """

    measured: float
    sheet: float


@dataclass(frozen=True)
class Job:
    """A case, or a tool beside others.

    Args:
        kind: "cases", or a key of `COMPARED`, under which the result is kept.
        case: Within it.
        shape: Of the model.
        run: Gives the result, from a folder, the clock and the rate of a large product.
    """

    kind: str
    case: str
    shape: str
    run: Callable[[Path, children.Clock, Rate | None], dict[str, Any]]

    @property
    def name(self) -> str:
        """As `--only` has it."""
        return self.case if self.kind == "cases" else f"{self.kind}-{self.case}"


def main() -> int:
    """Run what fits into the time; 0 where all that ran ended well and every bar holds."""
    options = arguments()
    if options.rate:
        print(json.dumps(rate_of_products()))
        return 0
    children.begin()
    found = children.Found(options.output, "gpu_speed", machine(), quick=options.quick)
    jobs = {job.name: job for job in jobs_of(options)}
    todo = [jobs[name] for name in children.to_do(jobs, results_of(found), options.only)]
    run_all(todo, children.Clock(options.minutes), found)
    found.say_bars(SET_FOR)
    print(found.keep(complete=True))
    return 0 if all(map(children.is_good, results_of(found).values())) and found.holds else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases, or lora-TOOL and qlora-TOOL; also as '1b-*'")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no further case after this time")
    parser.add_argument("--output", type=Path, help="the JSON, written anew after each case; gone on with if there")
    parser.add_argument("--unsloth", metavar="PYTHON")
    parser.add_argument("--llamafactory", metavar="PYTHON")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rate", action="store_true", help="measure a large product alone, in operations a second")
    return parser.parse_args()


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """All there are, in their order."""
    cases = QUICK if options.quick else CASES
    shape = "tiny" if options.quick else "qwen3-8b"
    return [
        *(Job("cases", case.name, case.shape, partial(train, case)) for case in cases),
        *(
            Job(kind, tool, shape, partial(compare, tool, python, bits, quick=options.quick))
            for kind, bits in COMPARED.items()
            for tool, python in tools_of(options).items()
        ),
    ]


def tools_of(options: argparse.Namespace) -> dict[str, str]:
    """Tools and their interpreters: ours in two ways, TRL beside it, and what was given."""
    given = {tool: getattr(options, tool) for tool in PEERS if tool != "trl"}
    ours = dict.fromkeys(("hftune", RECOMPUTING, "trl"), sys.executable)
    return ours | {tool: path for tool, path in given.items() if path}


def results_of(found: children.Found) -> dict[str, dict[str, Any]]:
    """All results by the names of their jobs."""
    beside = found.cases("tools")
    return found.cases("cases") | {f"{kind}-{tool}": one for kind in beside for tool, one in beside[kind].items()}


def run_all(todo: list[Job], clock: children.Clock, found: children.Found) -> None:
    """Run these as far as time goes, and keep each result at once."""
    found.figures["skipped"] = []
    with children.work_folder() as folder:
        rate = rate_here(folder, clock) if todo else None
        if rate:
            found.figures["matmul_tflops"] = rate.measured / 1e12
        print(f"bf16 products: {rate.measured / 1e12:.0f} TFLOP/s" if rate else "MFU is not measured", flush=True)
        for number, job in enumerate(todo):
            if clock.left <= 0:
                found.figures["skipped"] = [later.name for later in todo[number:]]
                print(f"no time left for: {', '.join(found.figures['skipped'])}", flush=True)
                return
            results = found.cases("cases") if job.kind == "cases" else found.cases("tools").setdefault(job.kind, {})
            results[job.case] = result = run_job(job, folder, clock, rate)
            children.say(job.name, result)
            if not any(later.shape == job.shape for later in todo[number + 1 :]):
                shutil.rmtree(folder / job.shape, ignore_errors=True)
            found.bars = bars_of(found)
            found.keep()


def run_job(job: Job, folder: Path, clock: children.Clock, rate: Rate | None) -> dict[str, Any]:
    """Its result; a full disk ends it alone."""
    try:
        return make_in_own_process(job.shape, folder, clock) or job.run(folder, clock, rate)
    except OSError as error:
        return {"failed": repr(error)}


def rate_here(folder: Path, clock: children.Clock) -> Rate | None:
    """From a process of its own, which leaves nothing on the GPU; None without one, or where that fails."""
    ended = clock.run([sys.executable, __file__, "--rate"], children.environment(folder), CAP)
    if ended.code != 0:
        children.say("rate", ended.failure)
        return None
    rate = json.loads(ended.out.splitlines()[-1])
    return rate and Rate(*rate)


def rate_of_products(size: int = 8192, times: int = 20) -> Rate | None:
    """Measured here and now; None without a GPU."""
    import torch

    from hftune.tools.planning.clusters import cluster_here

    if not torch.cuda.is_available():
        return None
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        left @ right
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        left @ right
    end.record()
    torch.cuda.synchronize()
    sheet = (cluster_here().device.tflops or 0.0) * 1e12
    return Rate(2 * size**3 * times / (begin.elapsed_time(end) / 1e3), sheet)


def train(case: Case, folder: Path, clock: children.Clock, rate: Rate | None) -> dict[str, Any]:
    """Speed and memory of one case, or the end of what it said."""
    has = memory_here()
    if has is not None and has < case.needs:
        return {"skipped": f"it needs a device of {case.needs} GiB, and this one has {has:.1f}"}
    made = memory.Case(case.name, "sft", case.shape, case.length, case.rows)
    flags = [*memory.make(made, folder), *case.flags, "--max_steps", str(case.steps)]
    if has is None:
        flags += ["--use_cpu", "True", "--bf16", "False"]
    command = [sys.executable, "run_sft.py", *flags, "--num_train_epochs", "1000"]
    ended = clock.run(command, children.environment(folder), case.cap)
    try:
        return ended.failure if ended.code != 0 else speed_of(folder / case.name, rate)
    except children.NO_FIGURES as error:
        return {"failed": f"no figures: {error!r}"}
    finally:
        shutil.rmtree(folder / case.name, ignore_errors=True)


def speed_of(out: Path, rate: Rate | None) -> dict[str, Any]:
    """Figures of a finished run; its MFU over the rate that was measured here."""
    figures = children.figures_of(out, WARM_UP)
    found = {name: figures[name] for name in ("tokens_per_second", "peak_gigabytes")}
    if rate and "mfu" in figures:
        found["mfu"] = round(figures["mfu"] * rate.sheet / rate.measured, 4)
    return found


def memory_here() -> float | None:
    """GiB of the device; None without a GPU."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory / 2**30 if torch.cuda.is_available() else None


def compare(
    tool: str, python: str, bits: int, folder: Path, clock: children.Clock, _: Rate | None, *, quick: bool
) -> dict[str, Any]:
    """One tool on the shared records: LoRA of rank 8 on the 8B shape, rows of 4,096 tokens, packed."""
    shape, length, steps = ("tiny", 256, 4) if quick else ("qwen3-8b", 4096, 8)
    case = memory.Case("compared", "sft", shape, length, 2)
    memory.make(case, folder)
    data = folder / "compared.jsonl"
    with data.open("w") as file:
        for line in (folder / f"sft-{length}" / "data.jsonl").read_text().splitlines() * 4:
            question, answer = (turn["content"] for turn in json.loads(line)["messages"])
            turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
            file.write(json.dumps({"conversations": turns}) + "\n")
    name = tool.partition("-")[0]
    command = [python, str(ROOT / "benchmarks" / "train_tools.py"), name, "--data", str(data), "--packing"]
    command += ["--model", str(folder / shape), "--max_length", str(length), "--steps", str(steps), "--pad_id", "0"]
    command += [] if quick else ["--cuda"]
    command += ["--bits", str(bits)]
    command += ["--recompute"] if tool == RECOMPUTING else []
    environment = children.environment(folder, BENCHMARK_BEGAN=repr(time.time()))
    environment |= {} if python == sys.executable else {"PYTHONPATH": ""}  # packages of another interpreter
    ended = clock.run(command, environment, CAP)
    if ended.code != 0:
        return ended.failure
    try:
        seen = json.loads(ended.out.splitlines()[-1])
        seconds = seen["ended"][-1] - seen["ended"][WARM_UP - 1]
    except children.NO_FIGURES as error:
        return {"failed": f"no figures: {error!r}\n{ended.out[-children.SHOWN :]}"}
    speed = sum(seen["real"][WARM_UP:]) / seconds
    return {"tokens_per_second": round(speed, 1), "peak_gigabytes": seen.get("peak_gigabytes")}


def bars_of(found: children.Found) -> dict[str, Any]:
    """What was wanted: that all of hftune's end well, and, of what is not tiny, figures."""
    ours = {name: one for name, one in results_of(found).items() if not name.endswith(PEERS) and "cut" not in one}
    bars = {name: {"value": "failed", "bar": "ends", "holds": False} for name, one in ours.items() if "failed" in one}
    return bars if found.quick else bars | bars_of_cases(found.cases("cases")) | bars_of_tools(found.cases("tools"))


def bars_of_cases(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of hftune alone."""
    bars: dict[str, Any] = {}
    for size in MFU_OF:
        bf16 = [results[name] for name in (f"{size}-full", f"{size}-full-compiled") if name in results]
        shares = [one["mfu"] for one in bf16 if "mfu" in one]
        if shares:
            bars[f"{size}: MFU in bf16"] = bar(max(shares), BARS["mfu"], above=True)
        speeds = [one["tokens_per_second"] for one in bf16 if "tokens_per_second" in one]
        ours = results.get(f"{size}-fp8", {}).get("tokens_per_second")
        if speeds and ours:
            bars[f"{size}: FP8 over bf16"] = bar(ours / max(speeds), BARS["fp8"], above=True)
    if "tokens_per_second" in results.get("8b-lora-128k", {}):
        bars["8b: 131,072 tokens train"] = bar(1.0, 1.0, above=True)
    return bars


def bars_of_tools(beside: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of tools beside each other."""
    bars: dict[str, Any] = {}
    for kind, tools in beside.items():
        ran = {tool: found for tool, found in tools.items() if "failed" not in found}
        if "hftune" not in ran:
            continue
        ours, peers = ran["hftune"], {tool: found for tool, found in ran.items() if tool in PEERS}
        others = [found["tokens_per_second"] for tool, found in peers.items() if tool != "unsloth"]
        if "unsloth" in peers:
            ratio = ours["tokens_per_second"] / peers["unsloth"]["tokens_per_second"]
            bars[f"{kind}: speed over Unsloth's"] = bar(ratio, BARS["unsloth"], above=True)
        if others:
            bars[f"{kind}: speed over the best of the others"] = bar(
                ours["tokens_per_second"] / max(others), BARS["others"], above=True
            )
        peaks = [found["peak_gigabytes"] for found in peers.values() if found["peak_gigabytes"]]
        alike = ran.get(RECOMPUTING, {})
        if others and "tokens_per_second" in alike:
            ratio = alike["tokens_per_second"] / max(others)
            bars[f"{kind}: speed over the best of the others, all recomputing"] = bar(ratio, BARS["alike"], above=True)
        if peaks and alike.get("peak_gigabytes"):
            ratio = alike["peak_gigabytes"] / min(peaks)
            bars[f"{kind}: memory over the smallest peer's, all recomputing"] = bar(ratio, BARS["memory"])
    return bars


def machine() -> str:
    """The device, in words."""
    return memory.machine(memory.accelerator())


if __name__ == "__main__":
    sys.exit(main())
